"""Checkpoint storage of one job on a filesystem, with state and metadata in files."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.layout import STATE_DIRECTORY, job_uri, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.options import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.file_merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, redact, scheme_of
from airflow_provider_statecheck.storage.views.checkpoint_storage import Environment, StreamingWorkerView
from airflow_provider_statecheck.storage.views.state_files import CheckpointStateToolset, make_toolset
from airflow_provider_statecheck.storage.views.state_streams import (
    FsCheckpointMetadataOutputStream,
    FsCheckpointStateOutputStream,
    FsCompletedCheckpointStorageLocation,
    StateWriting,
    resolve_location,
)

_OWNER_FILE = "_job"
_MAX_NAME_ATTEMPTS = 10


class FsCheckpointStorageAccess:
    """
    Checkpoint storage with state and metadata in files.

    :param storage: Storage of the checkpoint directory.
    :param attempt: The writing attempt.
    :param writing: Settings for writing state, with the epoch of the attempt; by default, default settings.
    :param savepoint_dir: Default parent directory of savepoints.
    :param create_subdir: Whether the job has a subdirectory, by default ``True``.
    :raises InvalidConfigurationError: if the savepoint directory is invalid or the epochs differ.
    """

    supports_highly_available_storage = True

    def __init__(
        self,
        storage: CheckpointStorage,
        attempt: AttemptRef,
        *,
        writing: StateWriting | None = None,
        savepoint_dir: str | None = None,
        create_subdir: bool = True,
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._writing = writing or StateWriting(epoch=attempt.epoch)
        self._savepoint_dir = None if savepoint_dir is None else normalise_base(savepoint_dir)
        self._directories = JobDirectories(storage.base_uri, attempt, create_subdir)
        if self._writing.epoch != attempt.epoch:
            raise InvalidConfigurationError(
                f"Expected state writing with epoch {attempt.epoch}, found {self._writing.epoch}; pass the epoch of the attempt."
            )

    @property
    def has_default_savepoint_location(self) -> bool:
        """Return whether savepoints without a target have a default directory."""
        return self._savepoint_dir is not None

    def resolve_checkpoint(self, pointer: str | None) -> FsCompletedCheckpointStorageLocation:
        """Resolve an external pointer to a completed checkpoint of any job."""
        return resolve_location(self._storage, pointer)

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Create the directories that all checkpoints share, unless they exist.

        :raises InvalidConfigurationError: if the job has no subdirectory and another job uses the checkpoint directory.
        :raises StorageError: if the storage fails.
        """
        directories = self._directories
        if not directories.create_subdir:
            claim_directory(self._storage, directories.job, self._attempt.job_id)
        for uri in (directories.job, directories.shared, directories.taskowned):
            make_directory(self._storage, uri)

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> FsCheckpointStorageLocation:
        """
        Create the directory of a checkpoint.

        :raises InvalidConfigurationError: if the id is negative.
        :raises StorageError: if the storage fails.
        """
        exclusive = self._directories.checkpoint(checkpoint_id)
        make_directory(self._storage, exclusive)
        return FsCheckpointStorageLocation(
            storage=self._storage,
            exclusive=exclusive,
            shared=self._directories.shared_state,
            taskowned=self._directories.taskowned,
            writing=self._writing,
            location_reference=CheckpointStorageLocationReference.default(),
        )

    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> FsCheckpointStorageLocation:
        """
        Create the directory that holds all files of a savepoint.

        :raises InvalidConfigurationError: if neither a target nor a default is set.
        :raises StorageError: if the storage fails.
        """
        target = require_savepoint_target(external, self._savepoint_dir)
        storage = self._storage.allowing(target)
        directory = make_savepoint_directory(storage, target, self._attempt.job_id)
        return FsCheckpointStorageLocation(
            storage=storage,
            exclusive=directory,
            shared=directory,
            taskowned=directory,
            writing=self._writing,
            location_reference=CheckpointStorageLocationReference.of_path(directory),
        )

    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> FsCheckpointStreamFactory:
        """
        Return the stream factory of a checkpoint, without creating directories.

        :raises InvalidConfigurationError: if the reference cannot be decoded.
        """
        if reference.is_default:
            return FsCheckpointStreamFactory(
                storage=self._storage,
                exclusive=self._directories.checkpoint(checkpoint_id),
                shared=self._directories.shared_state,
                writing=self._writing,
            )
        path = reference.path
        scheme_of(path)
        return FsCheckpointStreamFactory(
            storage=self._storage.allowing(path), exclusive=path, shared=path, writing=self._writing
        )

    def create_task_owned_state_stream(self) -> FsCheckpointStateOutputStream:
        """Open a stream of task-owned state; small state is stored inline."""
        return FsCheckpointStateOutputStream.open(self._storage, self._directories.taskowned_state, self._writing)

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return the toolset for task-owned state."""
        return make_toolset(self._storage, self._directories.taskowned_state, self._attempt.epoch)

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> StreamingWorkerView:
        """
        Return a view that merges files, or this view if merging is disabled.

        :raises InvalidConfigurationError: if the manager writes to other directories.
        """
        if manager is None:
            return self
        from airflow_provider_statecheck.storage.file_merging.worker_view import FsMergingCheckpointStorageAccess

        manager.init_file_system(
            self._storage,
            base=self._storage.base_uri,
            shared=self._directories.shared,
            taskowned=self._directories.taskowned,
            write_buffer_size=self._writing.effective_buffer_size,
        )
        return FsMergingCheckpointStorageAccess(self, manager, environment.subtask)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStreamFactory:
    """
    Opens state streams in the directories of a checkpoint.

    :param storage: Storage of the directories.
    :param exclusive: Directory of state that only this checkpoint references.
    :param shared: Directory of state that several checkpoints may reference.
    :param writing: Settings for writing state.
    """

    storage: CheckpointStorage
    exclusive: str
    shared: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream without creating a file."""
        directory = self.shared if scope is CheckpointedStateScope.SHARED else self.exclusive
        return FsCheckpointStateOutputStream.open(self.storage, directory, self.writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStorageLocation(FsCheckpointStreamFactory):
    """
    Location of a checkpoint for the coordinator.

    :param taskowned: Directory of task-owned state.
    :param location_reference: Reference that tasks resolve to this location.
    """

    taskowned: str
    location_reference: CheckpointStorageLocationReference

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the metadata stream.

        :raises StorageError: if metadata already exists, or the storage fails.
        """
        return FsCheckpointMetadataOutputStream(self.storage, self.exclusive)

    def dispose_on_failure(self) -> None:
        """
        Delete the exclusive directory of the checkpoint.

        :raises StorageError: if a part may still exist.
        """
        self.storage.delete_directory(self.exclusive)


def make_directory(storage: CheckpointStorage, uri: str) -> None:
    """
    Create a directory and its parents durably, unless it exists.

    :raises StorageError: if the storage fails, or a file has this name.
    """
    with suppress(FileExistsError):
        _create_directory(storage, uri)
    if _is_local(uri) and not storage.is_directory(uri):
        raise StorageError(
            f"Expected a directory at {redact(uri)}, found a file; choose another directory.", uri=redact(uri)
        )


def make_savepoint_directory(
    storage: CheckpointStorage,
    target: str,
    job_id: JobId,
    new_uri: Callable[[str, JobId], str] = new_savepoint_uri,
) -> str:
    """
    Create a new directory for a savepoint and return its URI.

    :param new_uri: Returns a URI with a random name.
    :raises StorageError: if the storage fails, or ten random names are taken.
    """
    taken: FileExistsError | None = None
    for _ in range(_MAX_NAME_ATTEMPTS):
        uri = new_uri(target, job_id)
        try:
            _create_directory(storage, uri)
        except FileExistsError as error:
            taken = error
        else:
            return uri
    raise StorageError(
        f"Expected a free savepoint name in {redact(target)}, found {_MAX_NAME_ATTEMPTS} random names taken.",
        uri=redact(target),
    ) from taken


def claim_directory(storage: CheckpointStorage, directory: str, job_id: JobId) -> None:
    """
    Claim a directory without job subdirectories for a job; a repeated call has no effect.

    :raises InvalidConfigurationError: if the directory contains other files, or another job claimed it.
    """
    uri = f"{directory}/{_OWNER_FILE}"
    is_claimed = storage.exists(uri)
    if not is_claimed and storage.list_files(directory):
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to be empty, as jobs have no subdirectories, found files; "
            f"choose another directory, or set execution.checkpointing.create-subdir."
        )
    if not is_claimed:
        storage.write_bytes(uri, job_id.encode())
    if storage.read_bytes(uri) != job_id.encode():
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to belong to job {job_id}, found it claimed by another job; choose another directory."
        )


def _create_directory(storage: CheckpointStorage, uri: str) -> None:
    if not _is_local(uri):
        if storage.exists(uri):
            raise FileExistsError(uri)
        return
    try:
        file_operations.make_new_directory(Path(uri.partition("://")[2]))
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(
            f"Expected to create the directory {redact(uri)}, found: {error}", uri=redact(uri)
        ) from error


def _is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES


@dataclass(frozen=True, slots=True)
class JobDirectories:
    """
    URIs of the directories of a job and an operator; no directory is created.

    :param base: URI of the checkpoint directory.
    :param attempt: The writing attempt.
    :param create_subdir: Whether the job has a subdirectory of the checkpoint directory, by default ``True``.
    """

    base: str
    attempt: AttemptRef
    create_subdir: bool = True

    @property
    def job(self) -> str:
        """Return the directory of the job."""
        return job_uri(self.base, self.attempt.job_id) if self.create_subdir else self.base

    @property
    def shared(self) -> str:
        """Return the directory of state that several checkpoints may reference."""
        return f"{self.job}/shared"

    @property
    def shared_state(self) -> str:
        """Return the operator's directory of shared state; an operator sweeps only its own directory."""
        return f"{self.shared}/{self.attempt.operator_id}/{STATE_DIRECTORY}"

    @property
    def taskowned(self) -> str:
        """Return the directory of task-owned state."""
        return f"{self.job}/taskowned"

    @property
    def taskowned_state(self) -> str:
        """Return the operator's directory of task-owned state."""
        return f"{self.taskowned}/{self.attempt.operator_id}"

    def checkpoint(self, checkpoint_id: int) -> str:
        """
        Return the directory of one checkpoint.

        :raises InvalidConfigurationError: if the id is negative.
        """
        if checkpoint_id < 0:
            raise InvalidConfigurationError(f"Expected a checkpoint id of at least 0, found {checkpoint_id}.")
        return f"{self.job}/chk-{checkpoint_id}"


def require_savepoint_target(external: str | None, default: str | None) -> str:
    """
    Return the parent directory of a savepoint.

    :raises InvalidConfigurationError: if neither a target nor a default is set.
    """
    target = external or default
    if target is None:
        raise InvalidConfigurationError(
            "Expected a target for the savepoint, found none; pass a target, or set execution.checkpointing.savepoint-dir."
        )
    return normalise_base(target)
