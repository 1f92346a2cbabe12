"""One value for each key, into which others are reduced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

from airflow_provider_statecheck.state.keyed.key_context import KeyContext
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState
from airflow_provider_statecheck.state.keyed.tables import StateTable

T = TypeVar("T")


class ReducingState(CellState, Generic[T]):
    """
    The reduction of all values that were added.

    :param reduce: Gives one value for two.
    """

    __slots__ = ("_reduce",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        reduce: Callable[[T, T], T | None],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._reduce = reduce

    def get(self) -> T | None:
        """
        Return the reduction, ``None`` if nothing was added; to change it in place changes nothing in the state.

        :raises CoordinatorError: if there is no current key.
        """
        value: T | None = self._value()
        return value

    def add(self, value: T | None) -> None:
        """
        Reduce a value into the state; the first is taken as it is, and ``None`` clears the state.

        :raises UnsupportedStateError: if the new value is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        old = self._value()
        self._set_or_clear(value if old is None else self._reduce(old, value))

    def merge_from(self, source: ReducingState[T]) -> None:
        """Reduce what another namespace has into this one, and clear that one."""
        value = source.get()
        if value is not None:
            source.clear()
            self.add(value)

    def _set_or_clear(self, value: T | None) -> None:
        if value is None:
            self.clear()
        else:
            self._set_value(value)
