"""Contracts of checkpoint storage: coordinator view, worker view and locations."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.options import CheckpointStorageLocationReference
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.file_merging.physical_files import SubtaskKey
from airflow_provider_statecheck.storage.views.state_files import CheckpointStateToolset
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointMetadataOutputStream,
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    CompletedCheckpointStorageLocation,
)


class Environment(Protocol):
    """What storage asks about the subtask that writes."""

    @property
    def subtask(self) -> SubtaskKey:
        """Return which subtask it is."""
        ...


class StreamingWorkerView(Protocol):
    """Opens streams; it neither makes directories nor lists them, because every partition of a stage has one."""

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        """
        Return what opens the streams of a checkpoint.

        :raises InvalidConfigurationError: for a reference that cannot be decoded.
        """
        ...

    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        """Open a stream of state that belongs to the task and outlives the checkpoint."""
        ...

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return what else can be done where task-owned state is."""
        ...


class CheckpointStorageWorkerView(StreamingWorkerView, Protocol):
    """A view that can be changed into one that merges files."""

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> StreamingWorkerView:
        """
        Return a view that merges files, or this one where that is off or impossible.

        :param manager: ``None`` where merging is off.
        :raises InvalidConfigurationError: if the manager writes to other directories.
        """
        ...


class CheckpointStorageLocation(CheckpointStreamFactory, Protocol):
    """A place that one checkpoint has for itself."""

    @property
    def location_reference(self) -> CheckpointStorageLocationReference:
        """Return what tells tasks of this place."""
        ...

    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        ...

    def dispose_on_failure(self) -> None:
        """
        Delete what the checkpoint has for itself; shared state stays.

        :raises StorageError: if part of it may still be there.
        """
        ...


class CheckpointStorageCoordinatorView(Protocol):
    """Makes the places of checkpoints, and finds them again."""

    @property
    def supports_highly_available_storage(self) -> bool:
        """Tell whether metadata outlives this process."""
        ...

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        ...

    def resolve_checkpoint(self, pointer: str | None) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of any job to which a pointer leads.

        :raises InvalidConfigurationError: for no pointer or an empty one.
        :raises StorageError: for text that is no URI, or if the storage fails.
        :raises CheckpointNotFoundError: if there is none.
        """
        ...

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Make the directories that all checkpoints have in common; they may be there.

        :raises StorageError: if that fails.
        """
        ...

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Make the place of a checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        :raises StorageError: if that fails.
        """
        ...

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> CheckpointStorageLocation:
        """
        Make the place of a savepoint.

        :param external: The directory in which it gets one of its own, instead of the default.
        :raises InvalidConfigurationError: if there is neither a target nor a default.
        :raises StorageError: if that fails.
        """
        ...


class CheckpointStorageAccess(CheckpointStorageCoordinatorView, CheckpointStorageWorkerView, Protocol):
    """Both views in one."""
