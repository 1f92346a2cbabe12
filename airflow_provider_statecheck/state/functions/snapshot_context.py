"""What a function learns of the checkpoint that is being taken, and where else it may write."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, OperatorStateHandle
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.state.functions.open_span import OpenSpan
from airflow_provider_statecheck.state.operator.raw_output import RawOperatorStateOutput
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory


class FunctionSnapshotContext:
    """
    The checkpoint at hand; of use during ``snapshot_state``.

    :param checkpoint_id: Of the checkpoint.
    :param checkpoint_timestamp: When it was triggered, in milliseconds since 1970.
    """

    def __init__(self, checkpoint_id: int, checkpoint_timestamp: int) -> None:
        self._checkpoint_id = checkpoint_id
        self._checkpoint_timestamp = checkpoint_timestamp
        self._span = OpenSpan(f"a {type(self).__name__}", "during snapshot_state")

    def get_checkpoint_id(self) -> int:
        """
        Return the id of the checkpoint.

        :raises CoordinatorError: after ``snapshot_state``.
        """
        self._span.require()
        return self._checkpoint_id

    def get_checkpoint_timestamp(self) -> int:
        """
        Return when the checkpoint was triggered, in milliseconds since 1970.

        :raises CoordinatorError: after ``snapshot_state``.
        """
        self._span.require()
        return self._checkpoint_timestamp

    def end(self) -> None:
        """End the use; what takes the checkpoint calls it."""
        self._span.close()


class StateSnapshotContext(FunctionSnapshotContext):
    """
    The checkpoint at hand, and its streams.

    :param streams: What opens streams of this checkpoint, if there is such.
    """

    def __init__(
        self, checkpoint_id: int, checkpoint_timestamp: int, streams: CheckpointStreamFactory | None = None
    ) -> None:
        super().__init__(checkpoint_id, checkpoint_timestamp)
        self._streams = streams
        self._raw: RawOperatorStateOutput | None = None

    def get_checkpoint_stream_factory(self) -> CheckpointStreamFactory:
        """
        Return what opens streams of this checkpoint.

        :raises CoordinatorError: after ``snapshot_state``, or where the checkpoint has none.
        """
        self._span.require()
        if self._streams is None:
            raise CoordinatorError("Expected a checkpoint with streams of its own, found one that takes no raw state.")
        return self._streams

    def get_raw_operator_state_output(self) -> RawOperatorStateOutput:
        """
        Return the stream of the function's raw operator state, the same one each time.

        :raises CoordinatorError: after ``snapshot_state``, or where the checkpoint has no streams.
        """
        streams = self.get_checkpoint_stream_factory()
        if self._raw is None:
            stream = streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
            self._raw = RawOperatorStateOutput(stream)
        return self._raw

    def close_raw_state(self) -> tuple[OperatorStateHandle, ...]:
        """
        Make the raw state durable and return where it is; what takes the checkpoint calls it.

        :raises StorageError: if the storage fails.
        """
        handle = None if self._raw is None else self._raw.close_and_get_handle()
        return () if handle is None else (handle,)

    def end(self) -> None:
        """End the use, and give up raw state that was not made durable."""
        super().end()
        if self._raw is not None:
            self._raw.close()
