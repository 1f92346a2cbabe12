"""The writing of operator state as it was at one moment."""

from __future__ import annotations

from collections.abc import Sequence
from threading import Event

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, OperatorStateHandle
from airflow_provider_statecheck.exceptions import SnapshotCancelledError
from airflow_provider_statecheck.state.operator.stream_format import WrittenState, encode
from airflow_provider_statecheck.state.snapshots import SnapshotResult
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory


class OperatorStateSnapshot:
    """
    Writes states that nobody changes any more.

    :param states: All of the subtask; none at all give an empty result.
    :param streams: Where they go.
    """

    def __init__(self, states: Sequence[WrittenState], streams: CheckpointStreamFactory) -> None:
        self._states = states
        self._streams = streams
        self._is_cancelled = Event()

    def run(self) -> SnapshotResult[OperatorStateHandle]:
        """
        Write the states into one stream.

        :raises StorageError: if the storage fails; then no file is left.
        :raises SnapshotCancelledError: if it was cancelled before the stream was whole.
        """
        self._require_going_on()
        if not self._states:
            return SnapshotResult.empty()
        stream = self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        try:
            return self._write(stream)
        finally:
            stream.close()

    def cancel(self) -> None:
        """End the writing, so that it leaves no file; without effect once the stream is whole."""
        self._is_cancelled.set()

    def _write(self, stream: CheckpointStateOutputStream) -> SnapshotResult[OperatorStateHandle]:
        for data in encode(self._states):
            self._require_going_on()
            stream.write(data)
        self._require_going_on()
        size = stream.get_pos()
        handle = stream.close_and_get_handle()
        if handle is None:
            return SnapshotResult.empty()
        states = tuple((state.stored_name, state.meta) for state in self._states)
        return SnapshotResult(OperatorStateHandle(states=states, stream=handle), size)

    def _require_going_on(self) -> None:
        if self._is_cancelled.is_set():
            raise SnapshotCancelledError("Expected the snapshot of operator state to go on, found it cancelled.")
