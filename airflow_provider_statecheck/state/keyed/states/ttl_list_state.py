"""A list whose elements expire one by one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeVar

from airflow_provider_statecheck.state.keyed.key_context import KeyContext
from airflow_provider_statecheck.state.keyed.state_values import StateValues
from airflow_provider_statecheck.state.keyed.states.list_state import ListState
from airflow_provider_statecheck.state.keyed.tables import StateTable
from airflow_provider_statecheck.state.keyed.time_to_live import TimeToLive

T = TypeVar("T")


class TtlListState(ListState[T]):
    """
    A list whose elements each have their own time.

    :param time_to_live: What expires when.
    """

    __slots__ = ("_ttl",)

    def __init__(
        self, table: StateTable, context: KeyContext, namespace: str, values: StateValues, time_to_live: TimeToLive
    ) -> None:
        super().__init__(table, context, namespace, values)
        self._ttl = time_to_live

    def get(self) -> Iterable[T]:
        """
        Return the elements that can be seen; what is expired is removed.

        :raises CoordinatorError: if there is no current key.
        """
        cell = self._cell()
        if cell is None:
            return ()
        kept = self._ttl.after_read(cell)
        if kept is not cell:
            self._replace(kept)
        return self._given(element.value for element in (cell if self._ttl.shows_expired else kept))

    def _stored(self, elements: list[T]) -> list[Any]:
        return [self._ttl.stamped(kept) for kept in super()._stored(elements)]
