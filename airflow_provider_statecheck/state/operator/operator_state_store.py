"""What user functions ask for state that belongs to their subtask and not to a key."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.operator.broadcast_state import BroadcastState
from airflow_provider_statecheck.state.operator.list_state import PartitionableListState

T = TypeVar("T")


class OperatorStateStore(Protocol):
    """Lists and maps by name; the same descriptor gives the same state."""

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list whose elements are dealt out when the parallelism changes.

        :raises CoordinatorError: if the name is that of a union list.
        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_union_list_state(self, descriptor: ListStateDescriptor[T]) -> PartitionableListState[T]:
        """
        Return a list of which each subtask gets all elements of all subtasks when it is restored.

        :raises CoordinatorError: if the name is that of a list which is dealt out.
        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_broadcast_state(self, descriptor: MapStateDescriptor[T]) -> BroadcastState[Any, T]:
        """
        Return a map that is the same in all subtasks; it may have the name of a list.

        :raises InvalidConfigurationError: if the name is taken by other types, or state is to expire.
        :raises StateMigrationError: if restored state cannot go on with the descriptor.
        """
        ...

    def get_registered_state_names(self) -> frozenset[str]:
        """Return the names of lists, the restored ones included."""
        ...

    def get_registered_broadcast_state_names(self) -> frozenset[str]:
        """Return the names of broadcast maps, the restored ones included."""
        ...
