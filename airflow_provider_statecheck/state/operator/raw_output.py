"""Operator state that a function writes as bytes of its own making."""

from __future__ import annotations

import struct

from airflow_provider_statecheck.checkpoint.states.handles import (
    DistributionMode,
    OperatorStateHandle,
    OperatorStateMeta,
)
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream

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
