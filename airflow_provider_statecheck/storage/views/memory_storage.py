"""Checkpoint storage of one job whose state travels in its handles."""

from __future__ import annotations

import io
import uuid
from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.options import DEFAULT_LOCATION, CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, CheckpointedStateScope
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import NOT_ADDRESSABLE
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storage import (
    CheckpointStorageLocation,
    Environment,
    StreamingWorkerView,
)
from airflow_provider_statecheck.storage.views.fs_storage import (
    JobDirectories,
    make_directory,
    make_savepoint_directory,
    require_savepoint_target,
)
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStateToolset,
    NotDuplicatingCheckpointStateToolset,
)
from airflow_provider_statecheck.storage.views.state_streams import (
    BufferedMetadata,
    FsCheckpointMetadataOutputStream,
    FsCompletedCheckpointStorageLocation,
    resolve_location,
)


class MemoryCheckpointOutputStream:
    """
    Keeps what is written in memory.

    :param max_state_size: How many bytes the state may have.
    """

    def __init__(self, max_state_size: int) -> None:
        self._max_state_size = max_state_size
        self._buffer = io.BytesIO()
        self._position = 0

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()
        self._position += self._buffer.write(data)

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        return self._position

    def flush_to_file(self) -> None:
        """
        Do nothing on an open stream: there is no file.

        :raises StorageError: if the stream is closed.
        """
        self._require_open()

    def close_and_get_handle(self) -> ByteStreamStateHandle | None:
        """
        Return the state in its handle; nothing written is no handle.

        :raises StorageError: if the stream is closed, or the state is too large.
        """
        self._require_open()
        data = self._buffer.getvalue()
        self.close()
        if len(data) > self._max_state_size:
            raise StorageError(
                f"Expected state of at most {self._max_state_size} bytes, because it is kept in memory, found {len(data)}; "
                f"raise the limit, or set execution.checkpointing.dir, so that state goes to files."
            )
        return ByteStreamStateHandle(uuid.uuid4().hex, data) if data else None

    def close(self) -> None:
        """Forget what was written, unless its handle was given out."""
        self._buffer.close()

    def _require_open(self) -> None:
        if self._buffer.closed:
            raise StorageError("Expected an open stream of state, found a closed one; open another stream.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckpointStreamFactory:
    """
    Opens streams into memory.

    :param max_state_size: How many bytes each piece of state may have.
    """

    max_state_size: int

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> MemoryCheckpointOutputStream:
        """Open a stream."""
        return MemoryCheckpointOutputStream(self.max_state_size)


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """
    A checkpoint whose metadata is in memory too.

    :param metadata_handle: The metadata.
    """

    metadata_handle: ByteStreamStateHandle
    external_pointer: str = NOT_ADDRESSABLE

    def dispose(self) -> None:
        """Do nothing: there is no directory."""


class MemoryMetadataOutputStream(BufferedMetadata):
    """Metadata that stays in memory."""

    def close_and_finalize_checkpoint(self) -> NonPersistentCompletedCheckpointStorageLocation:
        """
        Return the metadata in its handle.

        :raises StorageError: if the stream is closed.
        """
        data = self.content()
        self.close()
        return NonPersistentCompletedCheckpointStorageLocation(ByteStreamStateHandle(uuid.uuid4().hex, data))


@dataclass(frozen=True, slots=True, kw_only=True)
class NonPersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """A checkpoint that is gone with its process."""

    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> MemoryMetadataOutputStream:
        """Open the stream of the metadata."""
        return MemoryMetadataOutputStream()

    def dispose_on_failure(self) -> None:
        """Do nothing: there is no directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistentMetadataCheckpointStorageLocation(MemoryCheckpointStreamFactory):
    """
    A checkpoint whose metadata, with all state in it, is a file.

    :param storage: Where it goes.
    :param directory: The checkpoint's own directory.
    """

    storage: CheckpointStorage
    directory: str
    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        return FsCheckpointMetadataOutputStream(self.storage, self.directory)

    def dispose_on_failure(self) -> None:
        """
        Delete the checkpoint's own directory.

        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.directory)


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
