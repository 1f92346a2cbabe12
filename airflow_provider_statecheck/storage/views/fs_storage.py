"""Checkpoint storage of one job on a filesystem."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStreamFactory:
    """
    Opens streams into the directories of a checkpoint.

    :param storage: Where they are.
    :param exclusive: The checkpoint's own directory.
    :param shared: The directory of state that several checkpoints may name.
    :param writing: How state is written.
    """

    storage: CheckpointStorage
    exclusive: str
    shared: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream; nothing is created on storage yet."""
        directory = self.shared if scope is CheckpointedStateScope.SHARED else self.exclusive
        return FsCheckpointStateOutputStream.open(self.storage, directory, self.writing)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStorageLocation(FsCheckpointStreamFactory):
    """
    The directories of a checkpoint, as its coordinator has them.

    :param taskowned: The directory of state that belongs to tasks.
    :param location_reference: What tells tasks of this place.
    """

    taskowned: str
    location_reference: CheckpointStorageLocationReference

    def create_metadata_output_stream(self) -> FsCheckpointMetadataOutputStream:
        """
        Open the stream of the metadata.

        :raises StorageError: if there is metadata already, or the storage fails.
        """
        return FsCheckpointMetadataOutputStream(self.storage, self.exclusive)

    def dispose_on_failure(self) -> None:
        """
        Delete the checkpoint's own directory.

        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.exclusive)


_OWNER_FILE = "_job"
_NAMES = 10


def make_directory(storage: CheckpointStorage, uri: str) -> None:
    """
    Make a directory with its parents, durably; it may be there.

    :raises StorageError: if that fails, or the storage does not answer.
    """
    with suppress(FileExistsError):
        _make(storage, uri)
    if _is_local(uri) and not storage.is_directory(uri):
        raise StorageError(f"Expected a directory at {redact(uri)}, found a file.", uri=redact(uri))


def make_savepoint_directory(
    storage: CheckpointStorage,
    target: str,
    job_id: JobId,
    new_uri: Callable[[str, JobId], str] = new_savepoint_uri,
) -> str:
    """
    Make a new directory for a savepoint and return it.

    :param new_uri: Gives a random name.
    :raises StorageError: if that fails, or ten random names were taken.
    """
    taken: FileExistsError | None = None
    for _ in range(_NAMES):
        uri = new_uri(target, job_id)
        try:
            _make(storage, uri)
        except FileExistsError as error:
            taken = error
        else:
            return uri
    raise StorageError(
        f"Expected a free name for a savepoint in {redact(target)}, found {_NAMES} random ones taken.",
        uri=redact(target),
    ) from taken


def claim_directory(storage: CheckpointStorage, directory: str, job_id: JobId) -> None:
    """
    Note that a directory without one for each job belongs to a job; repeating it is harmless.

    :raises InvalidConfigurationError: if anything else is in it, or another job's.
    """
    uri = f"{directory}/{_OWNER_FILE}"
    is_claimed = storage.exists(uri)
    if not is_claimed and storage.list_files(directory):
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to be empty, because jobs get no directories of their own, found files in it; "
            f"choose another directory, or set execution.checkpointing.create-subdir."
        )
    if not is_claimed:
        storage.write_bytes(uri, job_id.encode())
    if storage.read_bytes(uri) != job_id.encode():
        raise InvalidConfigurationError(
            f"Expected {redact(directory)} to belong to job {job_id}, found that of another; choose another directory."
        )


def _make(storage: CheckpointStorage, uri: str) -> None:
    if not _is_local(uri):
        if storage.exists(uri):
            raise FileExistsError(uri)
        return
    try:
        file_operations.make_new_directory(Path(uri.partition("://")[2]))
    except FileExistsError:
        raise
    except OSError as error:
        raise StorageError(f"The directory {redact(uri)} cannot be made: {error}", uri=redact(uri)) from error


def _is_local(uri: str) -> bool:
    return scheme_of(uri) in LOCAL_SCHEMES


@dataclass(frozen=True, slots=True)
class JobDirectories:
    """
    Path arithmetic; nothing is made.

    :param base: The checkpoint directory.
    :param attempt: Who writes.
    :param create_subdir: Whether the job gets a directory of its own below the checkpoint directory.
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
        """Return the directory of state that several checkpoints may name."""
        return f"{self.job}/shared"

    @property
    def shared_state(self) -> str:
        """Return where the operator's files of shared state are; each operator cleans up after itself only."""
        return f"{self.shared}/{self.attempt.operator_id}/{STATE_DIRECTORY}"

    @property
    def taskowned(self) -> str:
        """Return the directory of state that belongs to tasks."""
        return f"{self.job}/taskowned"

    @property
    def taskowned_state(self) -> str:
        """Return where the operator's files of such state are."""
        return f"{self.taskowned}/{self.attempt.operator_id}"

    def checkpoint(self, checkpoint_id: int) -> str:
        """
        Return the directory of one checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        """
        if checkpoint_id < 0:
            raise InvalidConfigurationError(f"Expected a checkpoint id of at least 0, found {checkpoint_id}.")
        return f"{self.job}/chk-{checkpoint_id}"


class FsCheckpointStorageAccess:
    """
    State and metadata are files.

    :param storage: The checkpoint directory.
    :param attempt: Who writes.
    :param writing: How state is written; its epoch is the attempt's.
    :param savepoint_dir: Where savepoints go that are asked for without a target.
    :param create_subdir: Whether the job gets a directory of its own.
    :raises InvalidConfigurationError: for a directory of savepoints that is none.
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
                f"Expected to write in the name of epoch {attempt.epoch}, found {self._writing.epoch}."
            )

    @property
    def has_default_savepoint_location(self) -> bool:
        """Tell whether a savepoint may be asked for without a target."""
        return self._savepoint_dir is not None

    def resolve_checkpoint(self, pointer: str | None) -> FsCompletedCheckpointStorageLocation:
        """Return the checkpoint of any job to which a pointer leads."""
        return resolve_location(self._storage, pointer)

    def initialize_base_locations_for_checkpoint(self) -> None:
        """
        Make the directories that all checkpoints have in common; they may be there.

        :raises InvalidConfigurationError: if the job has no directory of its own and others use the one that it has.
        :raises StorageError: if that fails.
        """
        directories = self._directories
        if not directories.create_subdir:
            claim_directory(self._storage, directories.job, self._attempt.job_id)
        for uri in (directories.job, directories.shared, directories.taskowned):
            make_directory(self._storage, uri)

    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> FsCheckpointStorageLocation:
        """
        Make the directory of a checkpoint.

        :raises InvalidConfigurationError: for an id below 0.
        :raises StorageError: if that fails.
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
        Make a directory in which all of a savepoint lies.

        :raises InvalidConfigurationError: if there is neither a target nor a default.
        :raises StorageError: if that fails.
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
        Return what opens the streams of a checkpoint; no directory is made.

        :raises InvalidConfigurationError: for a reference that cannot be decoded.
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
        """Open a stream of state that belongs to the task; a small one travels in its handle."""
        return FsCheckpointStateOutputStream.open(self._storage, self._directories.taskowned_state, self._writing)

    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        """Return what else can be done where task-owned state is."""
        return make_toolset(self._storage, self._directories.taskowned_state, self._attempt.epoch)

    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> StreamingWorkerView:
        """
        Return a view that merges files, or this one where merging is off.

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


def require_savepoint_target(external: str | None, default: str | None) -> str:
    """
    Return the directory in which a savepoint gets one of its own.

    :raises InvalidConfigurationError: if there is neither a target nor a default.
    """
    target = external or default
    if target is None:
        raise InvalidConfigurationError(
            "Expected a target for the savepoint, found none; give one, or set execution.checkpointing.savepoint-dir."
        )
    return normalise_base(target)
