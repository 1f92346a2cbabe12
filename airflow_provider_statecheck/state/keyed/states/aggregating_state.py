"""One accumulator for each key, and what is computed from it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_provider_statecheck.state.keyed.key_context import KeyContext
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.states.cell_state import CellState
from airflow_provider_statecheck.state.keyed.tables import StateTable

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import AggregateFunction

In = TypeVar("In")
Out = TypeVar("Out")


class AggregatingState(CellState, Generic[In, Out]):
    """
    The aggregate of all values that were added.

    :param aggregate: How values go into an accumulator, and what it means.
    """

    __slots__ = ("_aggregate",)

    def __init__(
        self,
        table: StateTable,
        context: KeyContext,
        namespace: str,
        values: StateValues,
        aggregate: AggregateFunction[In, Any, Out],
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._aggregate = aggregate

    def get(self) -> Out | None:
        """
        Return the result, ``None`` if nothing was added.

        :raises CoordinatorError: if there is no current key.
        """
        accumulator = self._value()
        return None if accumulator is None else self._aggregate.get_result(accumulator)

    def add(self, value: In | None) -> None:
        """
        Add a value to the accumulator; ``None`` clears the state.

        :raises UnsupportedStateError: if the new accumulator is of another type than the state's.
        :raises CoordinatorError: if there is no current key.
        """
        if value is None:
            self.clear()
            return
        accumulator = self._value()
        if accumulator is None:
            accumulator = self._aggregate.create_accumulator()
        self._set_value(self._aggregate.add(value, accumulator))

    def merge_from(self, source: AggregatingState[In, Out]) -> None:
        """Merge the accumulator of another namespace into this one, and clear that one."""
        other = source._cell()
        if other is None:
            return
        source.clear()
        own = self._cell()
        if own is None:
            self._set_cell(other)
        else:
            self._set_value(self._aggregate.merge(self._values.thawed(own), self._values.thawed(other)))
