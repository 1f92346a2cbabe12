"""Checkpoint storage of one job: state and metadata in files, or state in its handles."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import (
    STATE_DIRECTORY,
    JobId,
    checkpoint_uri,
    epoch_name,
    job_uri,
    new_savepoint_uri,
    shared_uri,
    slug,
    taskowned_uri,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    OperatorState,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import StateCopies, resolve_checkpoint
from airflow_provider_statecheck.storage.uris import is_local, normalise_pointer, scheme_of
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStateToolset,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageWorkerView,
    Environment,
    FileMergingSnapshotManager,
)
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    ResolvedPointer,
    StateWriting,
    create_under_free_name,
    open_state_stream,
)

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
_NO_DIRECTORY = "memory://statecheck-without-directory"
NO_CHECKPOINT = 0
"""ID in place of a checkpoint's for state that is written between checkpoints."""


class FsCheckpointStorageAccess(CheckpointStorageAccess):
    """
    Checkpoint storage with state and metadata in files.

    A view that merges files merges those of checkpoints and savepoints; task-owned state is not merged.

    :param writing: Settings for writing state, with the epoch of the attempt; by default, default settings.
    :param savepoint_dir: Default parent directory of savepoints.
    :raises InvalidConfigurationError: if the savepoint directory is invalid or the epochs differ.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        attempt: AttemptRef,
        *,
        writing: StateWriting | None = None,
        savepoint_dir: str | None = None,
    ) -> None:
        self._storage = storage
        self._attempt = attempt
        self._savepoint_dir = None if savepoint_dir is None else normalise_pointer(savepoint_dir)
        self._writing = writing or StateWriting(epoch=attempt.epoch)
        self._manager: FileMergingSnapshotManager | None = None
        self._job = job_uri(storage.base_uri, attempt.job_id)
        self._shared = shared_uri(storage.base_uri, attempt.job_id, attempt.operator_id)
        # An operator sweeps only its own directories.
        self._shared_state = f"{self._shared}/{STATE_DIRECTORY}"
        self._taskowned = f"{taskowned_uri(storage.base_uri, attempt.job_id)}/{attempt.operator_id}"
        if self._writing.epoch != attempt.epoch:
            raise InvalidConfigurationError(
                f"Expected state writing with epoch {attempt.epoch}, found {self._writing.epoch}; pass the epoch of "
                "the attempt."
            )

    @property
    @override
    def supports_highly_available_storage(self) -> bool:
        return True

    @property
    @override
    def has_default_savepoint_location(self) -> bool:
        return self._savepoint_dir is not None

    @override
    def resolve_checkpoint(self, pointer: str | None) -> ResolvedPointer:
        return resolve_checkpoint(self._storage, pointer)

    @override
    def initialize_base_locations_for_checkpoint(self) -> None:
        for uri in (self._job, f"{self._job}/shared", f"{self._job}/taskowned"):
            make_directory(self._storage, uri)

    @override
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        exclusive = self._exclusive(checkpoint_id)
        make_directory(self._storage, exclusive)
        streams = self._streams(self._storage, exclusive, self._shared_state)
        return CheckpointStorageLocation(streams=streams, exclusive=exclusive, storage=self._storage)

    @override
    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> CheckpointStorageLocation:
        target = require_savepoint_target(external, self._savepoint_dir)
        storage = self._storage.allowing(target)
        directory = make_savepoint_directory(storage, target, self._attempt.job_id)
        return CheckpointStorageLocation(
            streams=self._streams(storage, directory, directory),
            exclusive=directory,
            storage=storage,
            location_reference=CheckpointStorageLocationReference.of_path(directory),
        )

    def new_snapshot_uri(self, name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
        """
        Return the URI of a new directory for the snapshot of a DataFrame, which checkpoints share.

        :param scope: Enclosing loops and their items, outermost first.
        """
        return f"{self._shared}/{slug(name, scope)}/{epoch_name(self._attempt.epoch)}"

    def owns(self, uri: str) -> bool:
        """Return whether a file is shared state or a snapshot of the operator."""
        # Files in a checkpoint directory do not count: the directory may be that of another owner's savepoint.
        return uri.startswith(f"{self._shared}/")

    def copies_of_borrowed_state(self) -> StateCopies:
        """
        Return copies, in shared state, of files of another owner, who may delete them.

        A repeated call resumes them.
        """
        return StateCopies(self._storage, self._shared_state, self._attempt.epoch, is_own=self.owns, resumes=True)

    @override
    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        if reference.is_default:
            # Several checkpoints may reference the state that is written between checkpoints.
            is_of_checkpoint = checkpoint_id != NO_CHECKPOINT
            exclusive = self._exclusive(checkpoint_id) if is_of_checkpoint else self._shared_state
            return self._streams(self._storage, exclusive, self._shared_state)
        path = reference.path
        scheme_of(path)
        return self._streams(self._storage.allowing(path), path, path)

    def _exclusive(self, checkpoint_id: int) -> str:
        require("the checkpoint id", checkpoint_id, lambda found: found >= 0, "at least 0")
        return checkpoint_uri(self._storage.base_uri, self._attempt.job_id, checkpoint_id)

    def _streams(self, storage: CheckpointStorage, exclusive: str, shared: str) -> CheckpointStreamFactory:
        return FsCheckpointStreamFactory(
            storage=storage, exclusive=exclusive, shared=shared, writing=self._writing, manager=self._manager
        )

    @override
    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        return open_state_stream(self._storage, self._taskowned, self._writing)

    @override
    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        return CheckpointStateToolset(self._storage, self._taskowned, self._attempt.epoch)

    @override
    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        if manager is None and self._manager is None:
            return self
        if manager is not None:
            manager.restore_state_handles(environment.restored_streams)
        other = copy.copy(self)
        other._manager = manager
        return other

    @override
    def make_durable(self, states: Iterable[OperatorState]) -> tuple[OperatorState, ...]:
        if self._manager is None:
            # Each stream makes its own file durable, or its handle contains all bytes.
            return tuple(states)
        self._manager.make_durable()
        return tuple(with_streams(state, self._manager.final) for state in states)


@dataclass(frozen=True, slots=True, kw_only=True)
class FsCheckpointStreamFactory(CheckpointStreamFactory):
    """
    Opens state streams in the directories of a checkpoint.

    :param exclusive: Directory of state that only this checkpoint references.
    :param shared: Directory of state that several checkpoints may reference.
    :param manager: Merges state that is not inline into one file per directory; ``None`` for a file for each stream.
    """

    storage: CheckpointStorage
    exclusive: str
    shared: str
    writing: StateWriting
    manager: FileMergingSnapshotManager | None = None

    @override
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> CheckpointStateOutputStream:
        directory = self.shared if scope is CheckpointedStateScope.SHARED else self.exclusive
        if self.manager is None:
            return open_state_stream(self.storage, directory, self.writing)
        return CheckpointStateOutputStream(
            partial(self.manager.add_segment, self.storage, directory, scope),
            buffer_size=self.writing.effective_buffer_size,
            inline_threshold=self.writing.inline_threshold,
        )

    @override
    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        # Files that were merged before merging was disabled are not rewritten.
        return self.manager is None or self.manager.could_reuse_previous_state_handle(handle)


class MemoryBackendCheckpointStorageAccess(FsCheckpointStorageAccess):
    """
    Checkpoint storage with inline state; metadata is a file if a checkpoint directory is set, else in memory.

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
        require("the maximum state size", max_state_size, lambda size: size > 0, "above 0 bytes")
        # Savepoints and pointers may refer to any filesystem, also without a checkpoint directory.
        super().__init__(storage or CheckpointStorage.open(_NO_DIRECTORY), attempt, savepoint_dir=savepoint_dir)
        self._has_directory = storage is not None
        self._max_state_size = max_state_size

    @property
    @override
    def supports_highly_available_storage(self) -> bool:
        return self._has_directory

    @override
    def initialize_base_locations_for_checkpoint(self) -> None:
        """Do nothing, because each checkpoint creates its own directory."""

    @override
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        if self._has_directory:
            return super().initialize_location_for_checkpoint(checkpoint_id)
        exclusive = self._exclusive(checkpoint_id)
        streams = self._streams(self._storage, exclusive, exclusive)
        return CheckpointStorageLocation(streams=streams, exclusive=exclusive, storage=None)

    @override
    def _streams(self, storage: CheckpointStorage, exclusive: str, shared: str) -> CheckpointStreamFactory:
        return MemoryCheckpointStreamFactory(max_state_size=self._max_state_size)

    @override
    def create_task_owned_state_stream(self) -> CheckpointStateOutputStream:
        return MemoryCheckpointOutputStream(self._max_state_size)

    @override
    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        return CheckpointStateToolset(self._storage, None, self._attempt.epoch)

    @override
    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        return self


class MemoryCheckpointOutputStream(CheckpointStateOutputStream):
    """
    State stream whose handle contains all bytes.

    :param max_state_size: Maximum size of the state in bytes.
    """

    def __init__(self, max_state_size: int) -> None:
        super().__init__(self._refuse, buffer_size=max_state_size, inline_threshold=max_state_size)

    @override
    def flush_to_file(self) -> None:
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

    @override
    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self.max_state_size)

    @override
    def could_reuse_state_handle(self, handle: StreamStateHandle) -> bool:
        return True


def make_directory(storage: CheckpointStorage, uri: str) -> None:
    """
    Create a directory and its parents durably, unless it exists.

    :raises StorageError: if the storage fails, or a file has this name.
    """
    if is_local(uri):
        storage.call(uri, lambda _, path: file_operations.make_directory(Path(path)))
    else:
        # Writes create missing directories, so only the access is checked.
        storage.exists(uri)


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

    def create(uri: str) -> str:
        if is_local(uri):
            storage.call(uri, lambda _, path: file_operations.make_new_directory(Path(path)))
        elif storage.exists(uri):
            raise FileExistsError(uri)
        return uri

    return create_under_free_name(lambda: new_uri(target, job_id), create)


def require_savepoint_target(external: str | None, default: str | None) -> str:
    """
    Return the parent directory of a savepoint.

    :raises InvalidConfigurationError: if neither a target nor a default is set.
    """
    target = external or default
    if target is None:
        raise InvalidConfigurationError(
            "Expected a target for the savepoint, found none; pass a target, or set "
            "execution.checkpointing.savepoint-dir."
        )
    return normalise_pointer(target)
