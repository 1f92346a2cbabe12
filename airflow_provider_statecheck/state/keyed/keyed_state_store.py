"""Where user functions ask for keyed state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.descriptors import StateKind

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import (
        AggregatingStateDescriptor,
        FoldingStateDescriptor,
        ListStateDescriptor,
        MapStateDescriptor,
        ReducingStateDescriptor,
        StateDescriptor,
        ValueStateDescriptor,
    )
    from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
    from airflow_provider_statecheck.state.keyed.states.aggregating_state import AggregatingState
    from airflow_provider_statecheck.state.keyed.states.folding_state import FoldingState
    from airflow_provider_statecheck.state.keyed.states.list_state import ListState
    from airflow_provider_statecheck.state.keyed.states.map_state import MapState
    from airflow_provider_statecheck.state.keyed.states.reducing_state import ReducingState
    from airflow_provider_statecheck.state.keyed.states.state import State
    from airflow_provider_statecheck.state.keyed.states.value_state import ValueState

T = TypeVar("T")
Acc = TypeVar("Acc")


class KeyedStateStore(Protocol):
    """
    Gives the states of a function.

    Each method registers a state at the first time and gives the same one afterwards. It raises ``InvalidConfigurationError``
    for a descriptor of another kind and for a name that another kind of state has, and ``StateMigrationError`` if restored
    state cannot go on with the descriptor.
    """

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state of one value."""
        ...

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state of a list."""
        ...

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state into which values are reduced."""
        ...

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state into which values are aggregated."""
        ...

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state into which values are folded."""
        ...

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state of a map."""
        ...


class DefaultKeyedStateStore:
    """
    Gives the states of a backend.

    :param backend: Where they are.
    """

    def __init__(self, backend: AbstractKeyedStateBackend) -> None:
        self._backend = backend

    def get_state(self, descriptor: ValueStateDescriptor[T]) -> ValueState[T]:
        """Return a state of one value."""
        return cast("ValueState[T]", self._state(descriptor, StateKind.VALUE))

    def get_list_state(self, descriptor: ListStateDescriptor[T]) -> ListState[T]:
        """Return a state of a list."""
        return cast("ListState[T]", self._state(descriptor, StateKind.LIST))

    def get_reducing_state(self, descriptor: ReducingStateDescriptor[T]) -> ReducingState[T]:
        """Return a state into which values are reduced."""
        return cast("ReducingState[T]", self._state(descriptor, StateKind.REDUCING))

    def get_aggregating_state(self, descriptor: AggregatingStateDescriptor[Acc]) -> AggregatingState[Any, Any]:
        """Return a state into which values are aggregated."""
        return cast("AggregatingState[Any, Any]", self._state(descriptor, StateKind.AGGREGATING))

    def get_folding_state(self, descriptor: FoldingStateDescriptor[Acc]) -> FoldingState[Any, Acc]:
        """Return a state into which values are folded."""
        return cast("FoldingState[Any, Acc]", self._state(descriptor, StateKind.FOLDING))

    def get_map_state(self, descriptor: MapStateDescriptor[T]) -> MapState[Any, T]:
        """Return a state of a map."""
        return cast("MapState[Any, T]", self._state(descriptor, StateKind.MAP))

    def _state(self, descriptor: StateDescriptor[Any], kind: StateKind) -> State:
        if descriptor.kind is not kind:
            raise InvalidConfigurationError(
                f"Expected the descriptor of a {kind} state, found the {descriptor.kind} state {descriptor.name}."
            )
        return self._backend.get_partitioned_state(descriptor)
