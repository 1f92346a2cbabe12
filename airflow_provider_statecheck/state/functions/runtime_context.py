"""What a function learns of where it runs, and the keyed state that it gets there."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.state.functions.keyed_state_access import require_keyed
from airflow_provider_statecheck.state.functions.open_span import OpenSpan

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.keyed.keyed_state_store import KeyedStateStore
    from airflow_provider_statecheck.state.keyed.states.aggregating_state import AggregatingState
    from airflow_provider_statecheck.state.keyed.states.folding_state import FoldingState
    from airflow_provider_statecheck.state.keyed.states.list_state import ListState
    from airflow_provider_statecheck.state.keyed.states.map_state import MapState
    from airflow_provider_statecheck.state.keyed.states.reducing_state import ReducingState
    from airflow_provider_statecheck.state.keyed.states.value_state import ValueState

T = TypeVar("T")
Acc = TypeVar("Acc")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskInfo:
    """Which subtask of which operator a function runs in."""

    task_name: str
    """The uid of the operator."""
    index_of_this_subtask: int
    number_of_parallel_subtasks: int
    max_number_of_parallel_subtasks: int
    """The number of key groups."""
    attempt_number: int = 0
    """How many tries of the task came before."""
    logical_date: datetime | None = None
    """Of the Dag run; it is the same in each try."""


class RuntimeContext:
    """
    Where a function runs, and its keyed state; of use from ``open`` to ``close``.

    :param task_info: Which subtask it is.
    :param keyed_state_store: Keyed state, where the operator has keys.
    """

    def __init__(self, task_info: TaskInfo, keyed_state_store: KeyedStateStore | None = None) -> None:
        self._task_info = task_info
        self._keyed = keyed_state_store
        self._span = OpenSpan("a RuntimeContext", "from open to close")

    @property
    def task_info(self) -> TaskInfo:
        """Return which subtask it is."""
        return self._task_info

    @property
    def logical_date(self) -> datetime | None:
        """Return the logical date of the Dag run, ``None`` outside of one."""
        return self._task_info.logical_date

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """
        Return keyed state of one value.

        :raises CoordinatorError: on an operator without keys, or after ``close``.
        """
        return self._store().get_state(descriptor)

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return keyed state of many values; raises as ``get_state``."""
        return self._store().get_list_state(descriptor)

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return keyed state that joins each value to those before; raises as ``get_state``."""
        return self._store().get_reducing_state(descriptor)

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return keyed state of an accumulator; raises as ``get_state``."""
        return self._store().get_aggregating_state(descriptor)

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return keyed state into which values are folded; raises as ``get_state``."""
        return self._store().get_folding_state(descriptor)

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return keyed state of entries; raises as ``get_state``."""
        return self._store().get_map_state(descriptor)

    def end(self) -> None:
        """End the use; what runs the function calls it after ``close``."""
        self._span.close()

    def _store(self) -> KeyedStateStore:
        self._span.require()
        return require_keyed(self._keyed)
