"""Operator state that a function reads and writes as raw bytes."""

from __future__ import annotations

import io
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO

from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    OperatorStateHandle,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

RAW_STATE_NAME = "_default_"
"""Under which the partitions are found again; it is Flink's."""
LENGTH = struct.Struct(">Q")
"""Before each partition."""


class RawOperatorStateOutput:
    """
    Partitions of bytes, which are dealt out to subtasks like elements of a list; what is written before the first is in one.

    :param stream: Where they go.
    """

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._offsets: list[int] = []
        self._partition: bytearray | None = None
        self._is_closed = False

    def start_new_partition(self) -> None:
        """
        End the partition at hand and begin another one.

        :raises CoordinatorError: after the state was closed.
        :raises StorageError: if the storage fails.
        """
        self._require_open()
        self._end_partition()
        self._partition = bytearray()

    def write(self, data: bytes) -> None:
        """
        Add bytes to the partition at hand.

        :raises CoordinatorError: after the state was closed.
        """
        self._require_open()
        if self._partition is None:
            self._partition = bytearray()
        self._partition += data

    def close_and_get_handle(self) -> OperatorStateHandle | None:
        """
        Make the partitions durable and return where they are; ``None`` if there is none.

        :raises CoordinatorError: after the state was closed.
        :raises StorageError: if the storage fails.
        """
        self._require_open()
        self._end_partition()
        self._is_closed = True
        stream = self._stream.close_and_get_handle()
        if stream is None:
            return None
        meta = OperatorStateMeta(offsets=tuple(self._offsets), mode=DistributionMode.SPLIT_DISTRIBUTE)
        return OperatorStateHandle(states=((RAW_STATE_NAME, meta),), stream=stream)

    def close(self) -> None:
        """Give up what was written, unless its handle was given out."""
        self._is_closed = True
        self._stream.close()

    def _end_partition(self) -> None:
        if self._partition is None:
            return
        self._offsets.append(self._stream.get_pos())
        self._stream.write(LENGTH.pack(len(self._partition)))
        self._stream.write(bytes(self._partition))
        self._partition = None

    def _require_open(self) -> None:
        if self._is_closed:
            raise CoordinatorError("Expected raw state to be written during snapshot_state, found it closed.")


class StatePartitionStreamProvider:
    """
    Gives the stream of one partition, or the error that its opening led to.

    :param stream: The stream.
    :param creation_error: What went wrong in its place.
    """

    def __init__(self, stream: BinaryIO | None = None, creation_error: Exception | None = None) -> None:
        if (stream is None) == (creation_error is None):
            raise InvalidConfigurationError(
                "Expected either a stream or the error in its place, found both or neither."
            )
        self._stream = stream
        self._creation_error = creation_error

    def get_stream(self) -> BinaryIO:
        """Return the stream, at the beginning of the partition; raises what went wrong when it was opened."""
        if self._stream is not None:
            return self._stream
        assert self._creation_error is not None  # noqa: S101 - for the type checker
        raise self._creation_error


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
