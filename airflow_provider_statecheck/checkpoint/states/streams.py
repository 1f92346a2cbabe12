"""The streams that hold the state of an operator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.states.handles import (
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState


def streams_of(state: OperatorState) -> Iterator[StreamStateHandle]:
    """Return every stream that an operator's state names, as often as it is named."""
    if state.coordinator_state is not None:
        yield state.coordinator_state
    for subtask in state.subtask_states.values():
        for handle in (*subtask.managed_operator, *subtask.raw_operator, *subtask.managed_keyed, *subtask.raw_keyed):
            yield from _streams_of_handle(handle)


def _streams_of_handle(handle: KeyedStateHandle | OperatorStateHandle) -> Iterator[StreamStateHandle]:
    if not isinstance(handle, IncrementalKeyedStateHandle):
        yield handle.stream
        return
    for _, stream in (*handle.shared, *handle.private):
        yield stream
    if handle.meta is not None:
        yield handle.meta


Move = Callable[[StreamStateHandle], StreamStateHandle]
"""Gives the stream that takes the place of another."""


def with_streams(state: OperatorState, move: Move) -> OperatorState:
    """Return an operator's state with every stream replaced."""
    own = state.coordinator_state
    return replace(
        state,
        coordinator_state=None if own is None else move(own),
        subtask_states={i: _subtask(subtask, move) for i, subtask in state.subtask_states.items()},
    )


def _subtask(state: OperatorSubtaskState, move: Move) -> OperatorSubtaskState:
    return OperatorSubtaskState(
        managed_operator=tuple(replace(h, stream=move(h.stream)) for h in state.managed_operator),
        raw_operator=tuple(replace(h, stream=move(h.stream)) for h in state.raw_operator),
        managed_keyed=tuple(_keyed(h, move) for h in state.managed_keyed),
        raw_keyed=tuple(_keyed(h, move) for h in state.raw_keyed),
    )


def _keyed(handle: KeyedStateHandle, move: Move) -> KeyedStateHandle:
    if isinstance(handle, KeyGroupsStateHandle):
        return replace(handle, stream=move(handle.stream))
    return replace(
        handle,
        shared=tuple((path, move(stream)) for path, stream in handle.shared),
        private=tuple((path, move(stream)) for path, stream in handle.private),
        meta=None if handle.meta is None else move(handle.meta),
    )
