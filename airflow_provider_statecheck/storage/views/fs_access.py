"""Checkpoint storage of one job on a filesystem."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.location_reference import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.merging.manager import FileMergingSnapshotManager
from airflow_provider_statecheck.storage.uris import normalise_base, scheme_of
from airflow_provider_statecheck.storage.views.completed_location import (
    FsCompletedCheckpointStorageLocation,
    resolve_location,
)
from airflow_provider_statecheck.storage.views.directories import (
    claim_directory,
    make_directory,
    make_savepoint_directory,
)
from airflow_provider_statecheck.storage.views.fs_location import FsCheckpointStorageLocation, FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream, StateWriting
from airflow_provider_statecheck.storage.views.job_directories import JobDirectories
from airflow_provider_statecheck.storage.views.toolset import CheckpointStateToolset, make_toolset
from airflow_provider_statecheck.storage.views.worker_view import Environment, StreamingWorkerView


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
        from airflow_provider_statecheck.storage.merging.access import FsMergingCheckpointStorageAccess

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
