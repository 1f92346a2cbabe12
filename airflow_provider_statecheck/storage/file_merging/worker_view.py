"""Worker view of checkpoint storage that merges state files."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream


class LocationReference(Protocol):
    """Reference to the location of a checkpoint."""

    @property
    def is_default(self) -> bool:
        """Return whether it refers to the configured checkpoint directory."""


class WrappedWorkerView(Protocol):
    """Methods of the wrapped view."""

    def resolve_checkpoint_storage_location(self, checkpoint_id: int, reference: Any) -> Any:
        """Return the stream factory of a checkpoint."""

    def create_task_owned_state_stream(self) -> Any:
        """Open a stream of task-owned state."""

    def create_task_owned_checkpoint_state_toolset(self) -> Any:
        """Return the operations on task-owned state."""


class FsMergingCheckpointStorageAccess:
    """
    Worker view that merges the files of checkpoints in the configured directory.

    Savepoints must be self-contained, therefore their files are never merged.

    :param access: The wrapped view, for savepoints and task-owned state.
    :param manager: A manager on which ``init_file_system`` was called.
    :param subtask: The writing subtask, which the constructor registers.
    """

    def __init__(self, access: WrappedWorkerView, manager: FileMergingSnapshotManager, subtask: SubtaskKey) -> None:
        manager.register_subtask(subtask)
        self._access = access
        self._manager = manager
        self._subtask = subtask

    def resolve_checkpoint_storage_location(self, checkpoint_id: int, reference: LocationReference) -> Any:
        """Return the stream factory of a checkpoint, without creating files."""
        if reference.is_default:
            return FsMergingCheckpointStreamFactory(self._manager, self._subtask, checkpoint_id)
        return self._access.resolve_checkpoint_storage_location(checkpoint_id, reference)

    def create_task_owned_state_stream(self) -> Any:
        """Open a stream of task-owned state, which is not merged."""
        return self._access.create_task_owned_state_stream()

    def create_task_owned_checkpoint_state_toolset(self) -> Any:
        """Return the operations on task-owned state."""
        return self._access.create_task_owned_checkpoint_state_toolset()

    def make_durable(self, checkpoint_id: int) -> None:
        """
        Write all bytes of the subtask's checkpoint to storage; call it before acknowledging.

        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged.
        """
        self._manager.make_durable(self._subtask, checkpoint_id)

    def close(self) -> None:
        """Unregister the subtask."""
        self._manager.unregister_subtask(self._subtask)


class FsMergingCheckpointStreamFactory:
    """Opens the streams of one subtask for one checkpoint."""

    def __init__(self, manager: FileMergingSnapshotManager, subtask: SubtaskKey, checkpoint_id: int) -> None:
        self._manager = manager
        self._subtask = subtask
        self._checkpoint_id = checkpoint_id

    def create_checkpoint_state_output_stream(
        self, scope: CheckpointedStateScope
    ) -> FileMergingCheckpointStateOutputStream:
        """Open a state stream."""
        return self._manager.create_checkpoint_state_output_stream(self._subtask, self._checkpoint_id, scope)
