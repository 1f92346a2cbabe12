"""Checkpoint storage of one job: state and metadata in files, or state in its handles."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.ids import checkpoint_uri
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
from airflow_provider_statecheck.storage.operator_directories import OperatorDirectories
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
    StateWriting,
    open_state_stream,
)

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
NO_CHECKPOINT = 0
"""ID in place of a checkpoint's for state that is written between checkpoints."""


class FsCheckpointStorageAccess(CheckpointStorageAccess):
    """
    Checkpoint storage with state in files.

    A view that merges files merges those of checkpoints and savepoints; task-owned state is not merged.

    :param writing: Settings for writing state, with the epoch of the attempt; by default, default settings.
    :raises InvalidConfigurationError: if the epochs differ.
    """

    def __init__(self, storage: CheckpointStorage, attempt: AttemptRef, *, writing: StateWriting | None = None) -> None:
        self._storage = storage
        self._attempt = attempt
        self._writing = writing or StateWriting(epoch=attempt.epoch)
        self._manager: FileMergingSnapshotManager | None = None
        self._directories = OperatorDirectories(storage, attempt)
        if self._writing.epoch != attempt.epoch:
            raise InvalidConfigurationError(
                f"Expected state writing with epoch {attempt.epoch}, found {self._writing.epoch}; pass the epoch of "
                "the attempt."
            )

    @override
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> CheckpointStorageLocation:
        exclusive = self._exclusive(checkpoint_id)
        _make_directory(self._storage, exclusive)
        streams = self._streams(self._storage, exclusive, self._directories.shared_state)
        return CheckpointStorageLocation(streams=streams, exclusive=exclusive)

    @override
    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> CheckpointStreamFactory:
        if reference.is_default:
            # Several checkpoints may reference the state that is written between checkpoints.
            is_of_checkpoint = checkpoint_id != NO_CHECKPOINT
            shared = self._directories.shared_state
            exclusive = self._exclusive(checkpoint_id) if is_of_checkpoint else shared
            return self._streams(self._storage, exclusive, shared)
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
        return open_state_stream(self._storage, self._directories.taskowned, self._writing)

    @override
    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        return CheckpointStateToolset(self._storage, self._directories.taskowned, self._attempt.epoch)

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
    Checkpoint storage with state in its handles, and so in the metadata.

    :param max_state_size: Maximum size of the state of each stream in bytes, by default 5 MiB.
    :raises InvalidConfigurationError: if the maximum size is not above 0.
    """

    def __init__(
        self, attempt: AttemptRef, storage: CheckpointStorage, *, max_state_size: int = DEFAULT_MAX_STATE_SIZE
    ) -> None:
        require("the maximum state size", max_state_size, lambda size: size > 0, "above 0 bytes")
        super().__init__(storage, attempt)
        self._max_state_size = max_state_size

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


def _make_directory(storage: CheckpointStorage, uri: str) -> None:
    """
    Create a directory and its parents durably, unless it exists.

    :raises StorageError: if the storage fails, or a file has this name.
    """
    # Writes create missing directories of other filesystems.
    if is_local(uri):
        storage.call(uri, lambda _, path: file_operations.make_directory(Path(path)))


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
