"""Checkpoint storage of one job whose state travels in handles."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.completed_location import (
    FsCompletedCheckpointStorageLocation,
    resolve_location,
)
from airflow_provider_statecheck.storage.views.directories import make_directory, make_savepoint_directory
from airflow_provider_statecheck.storage.views.fs_access import require_savepoint_target
from airflow_provider_statecheck.storage.views.job_directories import JobDirectories
from airflow_provider_statecheck.storage.views.location import CheckpointStorageLocation
from airflow_provider_statecheck.storage.views.memory_location import (
    MemoryCheckpointStreamFactory,
    NonPersistentMetadataCheckpointStorageLocation,
    PersistentMetadataCheckpointStorageLocation,
)
from airflow_provider_statecheck.storage.views.memory_stream import MemoryCheckpointOutputStream
from airflow_provider_statecheck.storage.views.toolset import (
    CheckpointStateToolset,
    NotDuplicatingCheckpointStateToolset,
)
from airflow_provider_statecheck.storage.views.worker_view import Environment, StreamingWorkerView

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
_NO_DIRECTORY = "memory://statecheck-without-directory"


class MemoryBackendCheckpointStorageAccess:
    """
    State is in the handles; metadata is a file where there is a directory, and in memory otherwise.

    :param attempt: Who writes.
    :param storage: The checkpoint directory, or ``None``: then checkpoints are gone with this process.
    :param savepoint_dir: Where savepoints go that are asked for without a target.
    :param max_state_size: How many bytes each piece of state may have.
    :raises InvalidConfigurationError: for a size that is not above 0.
    """

    def __init__(
        self,
        attempt: AttemptRef,
        storage: CheckpointStorage | None = None,
        *,
        savepoint_dir: str | None = None,
        max_state_size: int = DEFAULT_MAX_STATE_SIZE,
    ) -> None:
        if max_state_size <= 0:
            raise InvalidConfigurationError(
                f"Expected state of a size above 0 bytes, found a limit of {max_state_size}."
            )
        self._attempt = attempt
        self._storage = storage
        # Savepoints and pointers lead to any filesystem, whatever the directory of the storage is.
        self._files = storage or CheckpointStorage.open(_NO_DIRECTORY)
        self._savepoint_dir = None if savepoint_dir is None else normalise_base(savepoint_dir)
        self._max_state_size = max_state_size

    @property
    def supports_highly_available_storage(self) -> bool:
        """Tell whether metadata outlives this process."""
        return self._storage is not None

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        return self._savepoint_dir is not None

    def resolve_checkpoint(self, pointer: str | None) -> FsCompletedCheckpointStorageLocation:
        """Return the checkpoint of any job to which a pointer leads."""
        return resolve_location(self._files, pointer)

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Make nothing: a checkpoint makes its directory by itself."""

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Make the place of a checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        :raises StorageError: if that fails.
        """
        base = self._storage.base_uri if self._storage else ""
        directory = JobDirectories(base, self._attempt).checkpoint(checkpoint_id)
        if self._storage is None:
            return NonPersistentMetadataCheckpointStorageLocation(max_state_size=self._max_state_size)
        make_directory(self._storage, directory)
        return PersistentMetadataCheckpointStorageLocation(
            max_state_size=self._max_state_size, storage=self._storage, directory=directory
        )

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> PersistentMetadataCheckpointStorageLocation:
        """
        Make a directory for the metadata of a savepoint.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        :raises StorageError: if that fails.
        """
        target = require_savepoint_target(external, self._savepoint_dir)
        storage = self._files.allowing(target)
        directory = make_savepoint_directory(storage, target, self._attempt.job_id)
        return PersistentMetadataCheckpointStorageLocation(
            max_state_size=self._max_state_size,
            storage=storage,
            directory=directory,
            location_reference=CheckpointStorageLocationReference.of_path(directory),
        )

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> MemoryCheckpointStreamFactory:
        """Return what opens streams into memory, wherever the metadata goes."""
        return MemoryCheckpointStreamFactory(max_state_size=self._max_state_size)

    def create_task_owned_state_stream(self) -> MemoryCheckpointOutputStream:
        """Open a stream into memory."""
        return MemoryCheckpointOutputStream(self._max_state_size)

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return what refuses: there are no files to copy."""
        return NotDuplicatingCheckpointStateToolset()

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> StreamingWorkerView:
        """Return this view: there are no files to merge."""
        return self
