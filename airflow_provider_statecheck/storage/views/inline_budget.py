"""Keeps metadata small: where the state that travels in handles is too much in total, the largest pieces become files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState
from airflow_provider_statecheck.checkpoint.states.streams import streams_of, with_streams
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

DEFAULT_INLINE_BUDGET = 16 * 1024 * 1024
_DIGEST = 32


def spill_above_budget(
    states: Sequence[OperatorState],
    storage: CheckpointStorage,
    *,
    directory: str,
    epoch: int,
    budget: int = DEFAULT_INLINE_BUDGET,
) -> tuple[OperatorState, ...]:
    """
    Return the states with as many of their largest inline handles in files as the budget asks for.

    The choice and the names follow from the bytes, so that repeating it, in another process too, gives equal states.

    :param directory: The checkpoint's own directory.
    :param epoch: Of the coordinator.
    :param budget: How many bytes may travel in handles.
    :raises InvalidConfigurationError: for a budget below 0.
    :raises StorageError: if the storage fails; what was written lies in the directory of the checkpoint.
    """
    if budget < 0:
        raise InvalidConfigurationError(f"Expected an inline budget of at least 0 bytes, found {budget}.")
    files = {h: _write(storage, directory, epoch, h.data) for h in _chosen(states, budget)}

    def move(stream: StreamStateHandle) -> StreamStateHandle:
        return files.get(stream, stream) if isinstance(stream, ByteStreamStateHandle) else stream

    return tuple(with_streams(state, move) for state in states)


def _chosen(states: Sequence[OperatorState], budget: int) -> list[ByteStreamStateHandle]:
    inline = {s for state in states for s in streams_of(state) if isinstance(s, ByteStreamStateHandle)}
    excess = sum(handle.state_size for handle in inline) - budget
    chosen: list[ByteStreamStateHandle] = []
    for handle in sorted(inline, key=lambda h: (-h.state_size, h.name)):
        if excess <= 0:
            break
        chosen.append(handle)
        excess -= handle.state_size
    return chosen


def _write(storage: CheckpointStorage, directory: str, epoch: int, data: bytes) -> FileStateHandle:
    digest = hashlib.sha256(data).hexdigest()
    uri = f"{directory}/{epoch}-{digest[:_DIGEST]}"
    storage.write_bytes(uri, data)
    return FileStateHandle(uri, len(data), digest)
