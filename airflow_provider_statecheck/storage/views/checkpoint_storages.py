"""
Checkpoint storage of one job: directories, state in files or in handles, and storages by name.

A storage has a built-in name, the name of an entry point or a dotted path, and so have state backends.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Generic, NoReturn, Protocol, TypeVar, cast, runtime_checkable

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.ids import (
    STATE_DIRECTORY,
    checkpoint_uri,
    epoch_name,
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
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import StateCopies
from airflow_provider_statecheck.storage.uris import is_local, normalise_pointer, scheme_of
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStateToolset,
    CheckpointStorageAccess,
    CheckpointStorageCoordinatorView,
    CheckpointStorageWorkerView,
    Environment,
    FileMergingSnapshotManager,
)
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStateOutputStream,
    CheckpointStorageLocation,
    CheckpointStreamFactory,
    StateWriting,
    open_state_stream,
)

DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
NO_CHECKPOINT = 0
"""ID in place of a checkpoint's for state that is written between checkpoints."""


@dataclass(frozen=True, slots=True)
class OperatorDirectories:
    """
    Directories of the operator of an attempt, in which all names of files contain the epoch of the attempt.

    They are the same for every implementation of the views of checkpoint storage.
    """

    storage: CheckpointStorage
    attempt: AttemptRef

    @property
    def shared(self) -> str:
        """The directory of what several checkpoints may reference; an operator sweeps only its own directories."""
        return shared_uri(self.storage.base_uri, self.attempt.job_id, self.attempt.operator_id)

    @property
    def shared_state(self) -> str:
        """The directory of the state that several checkpoints may reference."""
        return f"{self.shared}/{STATE_DIRECTORY}"

    @property
    def taskowned(self) -> str:
        """The directory of the state that the functions of the operator own."""
        return f"{taskowned_uri(self.storage.base_uri, self.attempt.job_id)}/{self.attempt.operator_id}"

    def new_snapshot_uri(self, name: str, scope: tuple[tuple[str, str], ...] = ()) -> str:
        """
        Return the URI of a new directory for the snapshot of a DataFrame, which checkpoints share.

        :param scope: Enclosing loops and their items, outermost first.
        """
        return f"{self.shared}/{slug(name, scope)}/{epoch_name(self.attempt.epoch)}"

    def owns(self, uri: str) -> bool:
        """Return whether a file is shared state or a snapshot of the operator."""
        # Files in a checkpoint directory do not count: the directory may be that of another owner's snapshot.
        return uri.startswith(f"{self.shared}/")

    def copies_of_borrowed_state(self) -> StateCopies:
        """
        Return copies, in shared state, of files of another owner, who may delete them.

        A repeated call resumes them.
        """
        return StateCopies(self.storage, self.shared_state, self.attempt.epoch, is_own=self.owns, resumes=True)


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


DEFAULT_STORAGE = "filesystem"
_METHODS = frozenset(
    name
    for view in (CheckpointStorageCoordinatorView, CheckpointStorageWorkerView)
    for name in vars(view)
    if not name.startswith("_")
)


class IdentifiedFactory(Protocol):
    """Factory that an entry point may name."""

    def get_identifier(self) -> str:
        """Return the name of the factory in configurations."""


Factory = TypeVar("Factory", bound=IdentifiedFactory)


@runtime_checkable
class CheckpointStorageFactory(IdentifiedFactory, Protocol):
    """
    Factory of the checkpoint storage of a job.

    ``execution.checkpointing.storage`` may name one by its dotted path.
    """

    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        """Return the views for an attempt; called on the driver, before it does any work, and in each task."""


@dataclass(frozen=True, slots=True)
class NamedFactories(Generic[Factory]):
    """
    Factories of one kind, which a setting names.

    :param kind: Class or runtime-checkable protocol of the factories.
    :param setting: Key of the setting, for errors.
    :param known: Factories of this package by lower-case name.
    """

    kind: type[Factory]
    setting: str
    group: str
    known: Mapping[str, Factory]

    def find(self, name: Any) -> Factory:
        """
        Return the factory of a built-in name, an entry point or a dotted path, in this order.

        A factory is itself, and one of a class is an object of it.

        :raises InvalidConfigurationError: if no factory can be loaded, or that of an entry point has another name.
        """
        if isinstance(name, type):
            return self._create(name, name)
        if isinstance(name, self.kind):
            return name
        known = self.known.get(name.lower()) if isinstance(name, str) else None
        if known is None and (loaded := self._load_entry_point(name)) is not None:
            return self._identified(name, self._create(name, loaded))
        return self._create(name, known or self._import_path(name))

    def _load_entry_point(self, name: Any) -> Any:
        found = entry_points(group=self.group, name=name) if isinstance(name, str) else ()
        for entry_point in found:
            try:
                return entry_point.load()
            except (ImportError, AttributeError) as error:
                reason = f"its entry point {entry_point.value} cannot be imported: {error}"
                raise self._error(name, reason) from error
        return None

    def _import_path(self, name: Any) -> Any:
        if not isinstance(name, str) or "." not in name:
            raise self._error(name, "nothing has that name")
        module, _, attribute = name.replace(":", ".").rpartition(".")
        try:
            return getattr(importlib.import_module(module), attribute)
        except Exception as error:  # user code runs on import
            raise self._error(name, f"it cannot be imported: {error}") from error

    def _create(self, name: Any, found: Any) -> Factory:
        try:
            factory = found() if isinstance(found, type) else found
        except (StateCheckError, OSError):
            raise
        except Exception as error:
            raise self._error(name, f"its factory cannot be created: {error}") from error
        if not isinstance(factory, self.kind):
            raise self._error(name, f"it is not a {self.kind.__name__}, a method is missing")
        return factory

    def _identified(self, name: str, factory: Factory) -> Factory:
        if factory.get_identifier() != name:
            raise self._error(name, f"the factory of this entry point says that it is {factory.get_identifier()!r}")
        return factory

    def _error(self, name: Any, reason: str) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            f"Expected in {self.setting} one of {', '.join(sorted(self.known))}, the name of an entry point of "
            f"{self.group}, or the dotted path of a {self.kind.__name__}, found {name!r}: {reason}; correct the "
            "setting."
        )


@dataclass(frozen=True, slots=True)
class _BuiltInFactory(CheckpointStorageFactory):
    identifier: str
    create: Callable[[CheckpointStorage, AttemptRef, StateWriting], CheckpointStorageAccess]

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        return self.create(storage, attempt, writing)

    @override
    def get_identifier(self) -> str:
        return self.identifier


_FILES = _BuiltInFactory(
    DEFAULT_STORAGE, lambda storage, attempt, writing: FsCheckpointStorageAccess(storage, attempt, writing=writing)
)
_MEMORY = _BuiltInFactory(
    "jobmanager", lambda storage, attempt, _: MemoryBackendCheckpointStorageAccess(attempt, storage)
)
CHECKPOINT_STORAGES: NamedFactories[CheckpointStorageFactory] = NamedFactories(
    CheckpointStorageFactory,  # type: ignore[type-abstract]
    CheckpointConfig.checkpoint_storage.key,
    "airflow_provider_statecheck.checkpoint_storages",
    {DEFAULT_STORAGE: _FILES, "jobmanager": _MEMORY, "memory": _MEMORY},
)


def load_checkpoint_storage(
    storage: CheckpointStorage, attempt: AttemptRef, config: CheckpointConfig
) -> CheckpointStorageAccess:
    """
    Return the configured checkpoint storage of a job, which the driver and the tasks of an attempt use alike.

    :raises InvalidConfigurationError: if the configured storage cannot be loaded, or lacks a method.
    """
    writing = StateWriting(
        epoch=attempt.epoch,
        inline_threshold=config.data_inline_threshold,
        write_buffer_size=config.write_buffer_size,
    )
    # A storage that is given as a directory is that of the attempt.
    named = config.checkpoint_storage if config.storage_dir != config.checkpoint_storage else None
    factory = CHECKPOINT_STORAGES.find(named or DEFAULT_STORAGE)
    return _complete(factory.create_checkpoint_storage(storage, attempt, writing), named)


def _complete(view: Any, named: Any) -> CheckpointStorageAccess:
    missing = sorted(name for name in _METHODS if not hasattr(view, name))
    if missing:
        raise InvalidConfigurationError(
            f"Expected from the factory {named!r} in {CheckpointConfig.checkpoint_storage.key} a "
            f"CheckpointStorageAccess, found {type(view).__name__} without {', '.join(missing)}; define them."
        )
    return cast(CheckpointStorageAccess, view)
