"""Function of K2: sum, count and maximum by key, element by element."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.functions.contexts import KeyedContext, RuntimeContext
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction


class RunningFigures(KeyedProcessFunction[int, Any, Any]):
    """Aggregate the figures of each key, and emit them at the end of input if ``gives``."""

    def __init__(self, *, gives: bool) -> None:
        self._gives = gives

    def open(self, runtime_context: RuntimeContext) -> None:
        """Register the state."""
        self._figures = runtime_context.get_state(ValueStateDescriptor("figures", tuple[float, int, float]))

    def process_element(self, value: Any, context: KeyedContext[int]) -> None:
        """Add one price."""
        total, count, top = self._figures.value() or (0.0, 0, 0.0)
        self._figures.update((total + value.price, count + 1, max(top, value.price)))

    def on_end_of_input(self, context: KeyedContext[int]) -> Any:
        """Emit the figures of a key."""
        if self._gives:
            yield context.current_key, *(self._figures.value() or ())
