"""The worker's view of checkpoint storage with file merging."""

from __future__ import annotations

from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey
from airflow_provider_statecheck.storage.file_merging.stream import FileMergingCheckpointStateOutputStream


class LocationReference(Protocol):
    """Where a checkpoint goes."""

    @property
    def is_default(self) -> bool:
        """Tell whether it goes to the configured place."""


class WrappedWorkerView(Protocol):
    """What is asked of the view that is wrapped."""

    def resolve_checkpoint_storage_location(self, checkpoint_id: int, reference: Any) -> Any:
        """Return the streams of a checkpoint."""

    def create_task_owned_state_stream(self) -> Any:
        """Open a stream of state that belongs to a task."""

    def create_task_owned_checkpoint_state_toolset(self) -> Any:
        """Return what can be done with such state."""


class FsMergingCheckpointStorageAccess:
    """
    Merges what goes to the configured place; savepoints must be whole by themselves, so their files are their own.

    :param access: The view for all else.
    :param manager: It must know its directories.
    :param subtask: Who writes; it is registered here.
    """

    def __init__(self, access: WrappedWorkerView, manager: FileMergingSnapshotManager, subtask: SubtaskKey) -> None:
        manager.register_subtask(subtask)
        self._access = access
        self._manager = manager
        self._subtask = subtask

    def resolve_checkpoint_storage_location(self, checkpoint_id: int, reference: LocationReference) -> Any:
        """Return what opens the streams of a checkpoint; nothing is created yet."""
        if reference.is_default:
            return FsMergingCheckpointStreamFactory(self._manager, self._subtask, checkpoint_id)
        return self._access.resolve_checkpoint_storage_location(checkpoint_id, reference)

    def create_task_owned_state_stream(self) -> Any:
        """Open a stream of state that belongs to the task; it is not merged."""
        return self._access.create_task_owned_state_stream()

    def create_task_owned_checkpoint_state_toolset(self) -> Any:
        """Return what can be done with state that belongs to the task."""
        return self._access.create_task_owned_checkpoint_state_toolset()

    def make_durable(self, checkpoint_id: int) -> None:
        """
        Return when storage has every byte of the subtask's checkpoint; call it before acknowledging.

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
        """Open a stream."""
        return self._manager.create_checkpoint_state_output_stream(self._subtask, self._checkpoint_id, scope)
