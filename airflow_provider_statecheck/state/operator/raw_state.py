"""Raw operator state: partitions of bytes that a function reads and writes itself."""

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
"""Name of raw state in its handle, as in Flink."""
LENGTH = struct.Struct(">Q")
"""Length prefix of a partition."""


class RawOperatorStateOutput:
    """
    Writer of raw operator state.

    Partitions are redistributed over the subtasks like the elements of a list state. The first ``write`` starts a partition
    if there is none. A partition is buffered in memory until it ends.

    :param stream: The stream of the checkpoint.
    """

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self._stream = stream
        self._offsets: list[int] = []
        self._partition: bytearray | None = None
        self._is_closed = False

    def start_new_partition(self) -> None:
        """
        End the current partition and start the next one.

        :raises CoordinatorError: if the output is closed.
        :raises StorageError: if the storage fails.
        """
        self._require_open()
        self._end_partition()
        self._partition = bytearray()

    def write(self, data: bytes) -> None:
        """
        Append bytes to the current partition.

        :raises CoordinatorError: if the output is closed.
        """
        self._require_open()
        if self._partition is None:
            self._partition = bytearray()
        self._partition += data

    def close_and_get_handle(self) -> OperatorStateHandle | None:
        """
        Persist the partitions and return their handle, or ``None`` if there are no partitions.

        :raises CoordinatorError: if the output is closed.
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
        """Close the stream, and delete its file unless a handle was returned."""
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
            raise CoordinatorError(
                "Expected raw state to be written during snapshot_state, found it closed; "
                "write before snapshot_state returns."
            )


class StatePartitionStreamProvider:
    """
    Provider of the stream of one partition.

    :param stream: The stream, or ``None`` if the partition could not be read.
    :param creation_error: The error of the read, or ``None``.
    """

    def __init__(self, stream: BinaryIO | None = None, creation_error: Exception | None = None) -> None:
        if (stream is None) == (creation_error is None):
            raise InvalidConfigurationError(
                "Expected either a stream or the error of its creation, found both or neither; pass one of them."
            )
        self._stream = stream
        self._creation_error = creation_error

    def get_stream(self) -> BinaryIO:
        """Return the stream at the start of the partition, or raise the error of its creation."""
        if self._stream is not None:
            return self._stream
        assert self._creation_error is not None  # noqa: S101 - for the type checker
        raise self._creation_error


def raw_operator_state_inputs(
    storage: CheckpointStorage, handles: Iterable[OperatorStateHandle]
) -> Iterator[StatePartitionStreamProvider]:
    """
    Yield the partitions of handles.

    If a partition cannot be read, its provider raises the error in ``get_stream``.

    :param storage: The storage of the checkpoint.
    """
    for handle in handles:
        yield from _partitions_of_handle(storage, handle)


def _partitions_of_handle(
    storage: CheckpointStorage, handle: OperatorStateHandle
) -> Iterator[StatePartitionStreamProvider]:
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
    prefix = data[offset:begin]
    end = begin + LENGTH.unpack(prefix)[0] if len(prefix) == LENGTH.size else -1
    if not begin <= end <= len(data):
        return StatePartitionStreamProvider(
            creation_error=CorruptStateError(
                f"Expected a partition of raw state at byte {offset}, found none; restore from another checkpoint."
            )
        )
    return StatePartitionStreamProvider(io.BytesIO(data[begin:end]))
