"""Restored operator state that a function wrote as bytes of its own making."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator

from airflow_provider_statecheck.checkpoint.states.handles import OperatorStateHandle
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.operator.raw_output import LENGTH
from airflow_provider_statecheck.state.operator.stream_provider import StatePartitionStreamProvider
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state


def raw_operator_state_inputs(
    storage: CheckpointStorage, handles: Iterable[OperatorStateHandle]
) -> Iterator[StatePartitionStreamProvider]:
    """
    Return the partitions that handles name, one at a time; one that cannot be read says so when its stream is asked for.

    :param storage: From which they are read.
    """
    for handle in handles:
        yield from _of_handle(storage, handle)


def _of_handle(storage: CheckpointStorage, handle: OperatorStateHandle) -> Iterator[StatePartitionStreamProvider]:
    offsets = [offset for _, meta in handle.states for offset in meta.offsets]
    try:
        data = read_state(storage, handle.stream)
    except Exception as error:
        yield from (StatePartitionStreamProvider(creation_error=error) for _ in offsets)
        return
    for offset in offsets:
        yield _partition(data, offset)


def _partition(data: bytes, offset: int) -> StatePartitionStreamProvider:
    begin = offset + LENGTH.size
    head = data[offset:begin]
    end = begin + LENGTH.unpack(head)[0] if len(head) == LENGTH.size else -1
    if not begin <= end <= len(data):
        return StatePartitionStreamProvider(
            creation_error=CorruptStateError(f"Expected a partition of raw state at byte {offset}, found none.")
        )
    return StatePartitionStreamProvider(io.BytesIO(data[begin:end]))
