"""Contracts of checkpoint storage: coordinator view, worker view and checkpoint locations."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import OperatorState, StreamStateHandle
from airflow_provider_statecheck.storage.views.state_files import CheckpointStateToolset, FileMergingSnapshotManager
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    CompletedCheckpointStorageLocation,
)


class Environment(Protocol):
    """Environment of a writing subtask."""

    @property
    def restored_streams(self) -> Iterable[StreamStateHandle]:
        """Return the state from which the subtask was restored; handles may repeat."""
        ...


class CheckpointStorageWorkerView(Protocol):
    """
    What a subtask may do with checkpoint storage. It neither creates nor lists directories, as there are many subtasks.

    For each checkpoint, the subtask opens any number of streams, then calls ``make_durable`` once and acknowledges.
    """

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        """
        Return the stream factory of a checkpoint.

        :param checkpoint_id: ID of the checkpoint; ``NO_CHECKPOINT`` for state that the next checkpoint will reference.
        :raises InvalidConfigurationError: if the reference cannot be decoded.
        """
        ...

    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        """Open a stream of task-owned state, which outlives the checkpoint and which only the task deletes."""
        ...

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return the toolset for task-owned state."""
        ...

    def make_durable(self, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """
        Write all bytes of the closed streams to storage; call it before acknowledging.

        :return: The states with their final handles.
        :raises StorageError: if the storage fails; the checkpoint must not be acknowledged.
        """
        ...

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        """
        Return a view that merges files, or this view if merging is disabled or not supported.

        :param manager: The manager of the subtask, or ``None`` if merging is disabled.
        """
        ...


class CheckpointStorageLocation(CheckpointStreamFactory, Protocol):
    """Storage location of one checkpoint."""

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """Return the reference that tasks resolve to this location."""
        ...

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """
        Open the metadata stream.

        :raises StorageError: if metadata already exists, or the storage fails.
        """
        ...

    def dispose_on_failure(self) -> None:
        """
        Delete the exclusive files of the checkpoint and retain shared state.

        :raises StorageError: if a part may still exist.
        """
        ...


class CheckpointStorageCoordinatorView(Protocol):
    """Creates and resolves the locations of checkpoints."""

    @property
    def supports_highly_available_storage(self) -> bool:
        """Return whether metadata outlives this process."""
        ...

    @property
    def has_default_savepoint_location(self) -> bool:
        """Return whether savepoints without a target have a default directory."""
        ...

    def resolve_checkpoint(self, pointer: str | None) -> CompletedCheckpointStorageLocation:
        """
        Resolve an external pointer to a completed checkpoint of any job.

        :raises InvalidConfigurationError: if the pointer is missing or empty.
        :raises StorageError: if the pointer is not a URI, or the storage fails.
        :raises CheckpointNotFoundError: if the checkpoint does not exist.
        """
        ...

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Create the directories that all checkpoints share, unless they exist.

        :raises StorageError: if the storage fails.
        """
        ...

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Create the location of a checkpoint.

        :raises InvalidConfigurationError: if the id is negative.
        :raises StorageError: if the storage fails.
        """
        ...

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> CheckpointStorageLocation:
        """
        Create the location of a savepoint.

        :param external: Parent directory of the savepoint, instead of the default.
        :raises InvalidConfigurationError: if neither a target nor a default is set.
        :raises StorageError: if the storage fails.
        """
        ...


class CheckpointStorageAccess(CheckpointStorageCoordinatorView, CheckpointStorageWorkerView, Protocol):
    """Coordinator view and worker view of one checkpoint storage."""
