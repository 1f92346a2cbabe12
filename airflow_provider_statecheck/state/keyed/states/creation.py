"""The state that belongs to a descriptor."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
    StateKind,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.states.aggregating_state import AggregatingState
from airflow_provider_statecheck.state.keyed.states.folding_state import FoldingState
from airflow_provider_statecheck.state.keyed.states.list_state import ListState
from airflow_provider_statecheck.state.keyed.states.map_state import MapState
from airflow_provider_statecheck.state.keyed.states.reducing_state import ReducingState
from airflow_provider_statecheck.state.keyed.states.ttl_list_state import TtlListState
from airflow_provider_statecheck.state.keyed.states.value_state import DefaultedValueState, ValueState
from airflow_provider_statecheck.state.keyed.time_to_live import TimeToLive
from airflow_provider_statecheck.state.keyed.ttl_cells import TtlCells
from airflow_provider_statecheck.state.keyed.ttl_entries import TtlEntries

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.key_context import KeyContext
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keyed.states.state import State
    from airflow_provider_statecheck.state.keyed.tables import MapTable, StateTable


def create_state(
    descriptor: StateDescriptor[Any],
    registered: RegisteredState,
    table: StateTable | MapTable,
    context: KeyContext,
    namespace: str,
    now_ms: Callable[[], int],
) -> State:
    """Return a state over its table, with all that the descriptor wants of it."""
    ttl = None if registered.ttl is None else TimeToLive(registered.ttl, now_ms)
    if registered.kind is StateKind.MAP:
        return _map_state(registered, cast("MapTable", table), context, namespace, ttl)
    cells = cast("StateTable", table)
    if registered.kind is StateKind.LIST:
        return ListState(cells, context, namespace) if ttl is None else TtlListState(cells, context, namespace, ttl)
    return _single_state(descriptor, cells if ttl is None else TtlCells(cells, ttl), context, namespace)


def _map_state(
    registered: RegisteredState, table: MapTable, context: KeyContext, namespace: str, ttl: TimeToLive | None
) -> State:
    assert registered.key_serializer is not None  # noqa: S101 - for the type checker
    check = partial(registered.key_serializer.to_arrow, [None])
    return MapState(table if ttl is None else TtlEntries(table, ttl), context, namespace, check)


def _single_state(descriptor: StateDescriptor[Any], table: StateTable, context: KeyContext, namespace: str) -> State:
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingState(table, context, namespace, descriptor.reduce_function)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingState(table, context, namespace, descriptor.aggregate_function)
    if isinstance(descriptor, FoldingStateDescriptor):
        initial = partial(getattr, descriptor, "initial")
        return FoldingState(table, context, namespace, initial, descriptor.fold_function)
    if isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None:
        return DefaultedValueState(table, context, namespace, partial(getattr, descriptor, "default"))
    return ValueState(table, context, namespace)
