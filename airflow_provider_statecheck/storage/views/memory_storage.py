"""Checkpoint storage of one job with inline state in its handles."""

from __future__ import annotations

import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NoReturn

from airflow_provider_statecheck.checkpoint.ids import checkpoint_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION, CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    OperatorState,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import NOT_ADDRESSABLE, ResolvedPointer, resolve_checkpoint
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storage import (
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageWorkerView,
    Environment,
)
from airflow_provider_statecheck.storage.views.fs_storage import (
    make_directory,
    make_savepoint_directory,
    open_metadata_stream,
    require_savepoint_target,
)
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStateToolset,
    FileMergingSnapshotManager,
    FsCheckpointStateToolset,
)
from airflow_provider_statecheck.storage.views.state_streams import (
    BufferedMetadata,
    BufferedStateOutputStream,
    CheckpointStreamFactory,
    FsCheckpointMetadataOutputStream,
)

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
_NO_DIRECTORY = "memory://statecheck-without-directory"


class MemoryBackendCheckpointStorageAccess(CheckpointStorageAccess):
    """
    Checkpoint storage with inline state; metadata is a file if a checkpoint directory is set, else in memory.

    :param attempt: The writing attempt.
    :param storage: Storage of the checkpoint directory, or ``None`` for checkpoints in the memory of this process.
    :param savepoint_dir: Default parent directory of savepoints.
    :param max_state_size: Maximum size of the state of each stream in bytes, by default 5 MiB.
    :raises InvalidConfigurationError: if the maximum size is not above 0.
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
            raise InvalidConfigurationError(f"Expected a maximum state size above 0 bytes, found {max_state_size}.")
        self._attempt = attempt
        self._storage = storage
        # Savepoints and pointers may refer to any filesystem, also without a checkpoint directory.
        self._files = storage or CheckpointStorage.open(_NO_DIRECTORY)
        self._savepoint_dir = None if savepoint_dir is None else normalise_base(savepoint_dir)
        self._max_state_size = max_state_size

    @property
    def supports_highly_available_storage(self) -> bool:
        """Return whether metadata outlives this process."""
        return self._storage is not None

    @property
    def has_default_savepoint_location(self) -> bool:
        """Return whether savepoints without a target have a default directory."""
        return self._savepoint_dir is not None

    def resolve_checkpoint(self, pointer: str | None) -> ResolvedPointer:
        """Resolve an external pointer to a completed checkpoint of any job."""
        return resolve_checkpoint(self._files, pointer)

    def initialize_base_locations_for_checkpoint(self) -> None:
        """Do nothing, because each checkpoint creates its own directory."""

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        """
        Create the location of a checkpoint.

        :raises InvalidConfigurationError: if the id is negative.
        :raises StorageError: if the storage fails.
        """
        if checkpoint_id < 0:
            raise InvalidConfigurationError(f"Expected a checkpoint id of at least 0, found {checkpoint_id}.")
        if self._storage is None:
            return NonPersistentMetadataCheckpointStorageLocation(max_state_size=self._max_state_size)
        directory = checkpoint_uri(self._storage.base_uri, self._attempt.job_id, checkpoint_id)
        make_directory(self._storage, directory)
        return PersistentMetadataCheckpointStorageLocation(
            max_state_size=self._max_state_size, storage=self._storage, directory=directory
        )

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> PersistentMetadataCheckpointStorageLocation:
        """
        Create the directory of a savepoint's metadata.

        :raises InvalidConfigurationError: if neither a target nor a default is set.
        :raises StorageError: if the storage fails.
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
        """Return the in-memory stream factory, regardless of the metadata location."""
        return MemoryCheckpointStreamFactory(max_state_size=self._max_state_size)

    def create_task_owned_state_stream(self) -> MemoryCheckpointOutputStream:
        """Open an in-memory stream of task-owned state."""
        return MemoryCheckpointOutputStream(self._max_state_size)

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return a toolset that copies nothing, because there are no files."""
        return FsCheckpointStateToolset(self._files, None, self._attempt.epoch)

    def make_durable(self, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        """Return the states, because their handles contain all bytes."""
        return tuple(states)

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        """Return this view, because there are no files to merge."""
        return self


class MemoryCheckpointOutputStream(BufferedStateOutputStream):
    """
    State stream whose handle contains all bytes.

    :param max_state_size: Maximum size of the state in bytes.
    """

    def __init__(self, max_state_size: int) -> None:
        super().__init__(self._refuse, buffer_size=max_state_size, inline_threshold=max_state_size)

    def flush_to_file(self) -> None:
        """
        Do nothing on an open stream, which has no file.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()

    def _refuse(self, data: bytes) -> NoReturn:
        raise StorageError(
            f"Expected in-memory state of at most {self._inline_threshold} bytes, found {len(data)}; "
            f"raise the limit, or set execution.checkpointing.storage to filesystem, and state.backend to arrow."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckpointStreamFactory(CheckpointStreamFactory):
    """
    Opens in-memory state streams.

    :param max_state_size: Maximum size of the state of each stream in bytes.
    """

    max_state_size: int

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> MemoryCheckpointOutputStream:
        """Open an in-memory stream."""
        return MemoryCheckpointOutputStream(self.max_state_size)

    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        """Return ``True``, because there are no files."""
        return True


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """
    Completed checkpoint with metadata in memory.

    :param metadata_handle: Inline handle of the metadata.
    """

    metadata_handle: ByteStreamStateHandle
    external_pointer: str = NOT_ADDRESSABLE

    def dispose(self) -> None:
        """Do nothing, because there is no directory."""


class MemoryMetadataOutputStream(BufferedMetadata):
    """Metadata stream that returns the metadata in an inline handle."""

    def close_and_finalize_checkpoint(self) -> NonPersistentCompletedCheckpointStorageLocation:
        """
        Return the completed checkpoint with its metadata inline.

        :raises StorageError: if the stream is closed.
        """
        data = self.content()
        self.close()
        return NonPersistentCompletedCheckpointStorageLocation(ByteStreamStateHandle(uuid.uuid4().hex, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory, CheckpointStorageLocation):
    """Location of a checkpoint that exists only in the memory of this process."""

    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> MemoryMetadataOutputStream:
        """Open the metadata stream."""
        return MemoryMetadataOutputStream()

    def dispose_on_failure(self) -> None:
        """Do nothing, because there is no directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory, CheckpointStorageLocation):
    """
    Location of a checkpoint with a metadata file that contains all state.

    :param storage: Storage of the metadata file.
    :param directory: The exclusive directory of the checkpoint.
    """

    storage: CheckpointStorage
    directory: str
    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the metadata stream.

        :raises StorageError: if metadata already exists, or the storage fails.
        """
        return open_metadata_stream(self.storage, self.directory)

    def dispose_on_failure(self) -> None:
        """
        Delete the exclusive directory of the checkpoint.

        :raises StorageError: if a part may still exist.
        """
        self.storage.delete_directory(self.directory)
