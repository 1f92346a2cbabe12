"""One accumulator for each key, into which values are folded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_statecheck.state.keyed.key_context import KeyContext
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState
from airflow_provider_statecheck.state.keyed.tables import StateTable

T = TypeVar("T")
Acc = TypeVar("Acc")


class FoldingState(CellState, Generic[T, Acc]):
    """
    The fold of all values that were added; new code uses an ``AggregatingState``.

    :param initial: Makes a new accumulator for a key.
    :param fold: Gives the accumulator after a value.
    """

    __slots__ = ("_fold", "_initial")

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        initial: Callable[[], Acc],
        fold: Callable[[Acc, T], Acc],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._initial = initial
        self._fold = fold

    def get(self) -> Acc | None:
        """
        Return the accumulator, ``None`` if nothing was added; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        value: Acc | None = self._value()
        return value

    def add(self, value: T | None) -> None:
        """
        Fold a value into the accumulator; ``None`` clears the state.

        :raises UnsupportedStateError: if the new accumulator is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        accumulator = self._value()
        if accumulator is None:
            accumulator = self._initial()
        self._set_value(self._fold(accumulator, value))
