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
from airflow_provider_statecheck.state.keyed.state_values import StateValues
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
    operator: str,
) -> State:
    """
    Return a state over its table, with all that the descriptor wants of it.

    :param operator: What users call the operator, for errors.
    """
    values = StateValues(registered, operator)
    ttl = None if registered.ttl is None else TimeToLive(registered.ttl, now_ms)
    if registered.kind is StateKind.MAP:
        return _map_state(registered, cast("MapTable", table), context, namespace, values, ttl)
    cells = cast("StateTable", table)
    if registered.kind is StateKind.LIST:
        if ttl is None:
            return ListState(cells, context, namespace, values)
        return TtlListState(cells, context, namespace, values, ttl)
    return _single_state(descriptor, cells if ttl is None else TtlCells(cells, ttl), context, namespace, values)


def _map_state(
    registered: RegisteredState,
    table: MapTable,
    context: KeyContext,
    namespace: str,
    values: StateValues,
    ttl: TimeToLive | None,
) -> State:
    assert registered.key_serializer is not None  # noqa: S101 - for the type checker
    check = partial(registered.key_serializer.to_arrow, [None])
    return MapState(table if ttl is None else TtlEntries(table, ttl), context, namespace, values, check)


def _single_state(
    descriptor: StateDescriptor[Any], table: StateTable, context: KeyContext, namespace: str, values: StateValues
) -> State:
    common = (table, context, namespace, values)
    if isinstance(descriptor, ReducingStateDescriptor):
        return ReducingState(*common, descriptor.reduce_function)
    if isinstance(descriptor, AggregatingStateDescriptor):
        return AggregatingState(*common, descriptor.aggregate_function)
    if isinstance(descriptor, FoldingStateDescriptor):
        initial = partial(getattr, descriptor, "initial")
        return FoldingState(*common, initial, descriptor.fold_function)
    if isinstance(descriptor, ValueStateDescriptor) and descriptor.default is not None:
        return DefaultedValueState(*common, partial(getattr, descriptor, "default"))
    return ValueState(*common)
