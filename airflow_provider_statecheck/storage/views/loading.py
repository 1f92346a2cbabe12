"""Checkpoint storage with inline state in its handles, and loading of storages by name."""

from __future__ import annotations

import importlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, Generic, NoReturn, Protocol, TypeVar, runtime_checkable

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import DEFAULT_LOCATION, CheckpointStorageLocationReference
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import NOT_ADDRESSABLE
from airflow_provider_statecheck.storage.views.fs_storage import (
    DirectoryCheckpointStorageAccess,
    FsCheckpointStorageAccess,
    make_directory,
)
from airflow_provider_statecheck.storage.views.state_files import (
    CheckpointStateToolset,
    CheckpointStorageAccess,
    CheckpointStorageLocation,
    CheckpointStorageWorkerView,
    Environment,
    FileMergingSnapshotManager,
)
from airflow_provider_statecheck.storage.views.state_streams import (
    BufferedStateOutputStream,
    CheckpointMetadataOutputStream,
    CheckpointStreamFactory,
    StateWriting,
    open_metadata_stream,
)

DEFAULT_STORAGE = "filesystem"
Factory = TypeVar("Factory")
DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024
_NO_DIRECTORY = "memory://statecheck-without-directory"


class MemoryBackendCheckpointStorageAccess(DirectoryCheckpointStorageAccess):
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
        if max_state_size <= 0:
            raise InvalidConfigurationError(f"Expected a maximum state size above 0 bytes, found {max_state_size}.")
        # Savepoints and pointers may refer to any filesystem, also without a checkpoint directory.
        super().__init__(storage or CheckpointStorage.open(_NO_DIRECTORY), attempt, savepoint_dir)
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
    def initialize_location_for_checkpoint(self, checkpoint_id: int) -> MemoryCheckpointStorageLocation:
        directory = self._exclusive(checkpoint_id)
        if not self._has_directory:
            return MemoryCheckpointStorageLocation(max_state_size=self._max_state_size)
        make_directory(self._storage, directory)
        return MemoryCheckpointStorageLocation(
            max_state_size=self._max_state_size, storage=self._storage, directory=directory
        )

    @override
    def initialize_location_for_savepoint(
        self, checkpoint_id: int, external: str | None = None
    ) -> MemoryCheckpointStorageLocation:
        storage, directory = self._new_savepoint(external)
        return MemoryCheckpointStorageLocation(
            max_state_size=self._max_state_size,
            storage=storage,
            directory=directory,
            location_reference=CheckpointStorageLocationReference.of_path(directory),
        )

    @override
    def resolve_checkpoint_storage_location(
        self, checkpoint_id: int, reference: CheckpointStorageLocationReference
    ) -> MemoryCheckpointStreamFactory:
        return MemoryCheckpointStreamFactory(max_state_size=self._max_state_size)

    @override
    def create_task_owned_state_stream(self) -> MemoryCheckpointOutputStream:
        return MemoryCheckpointOutputStream(self._max_state_size)

    @override
    def create_task_owned_checkpoint_state_toolset(self) -> CheckpointStateToolset:
        return CheckpointStateToolset(self._storage, None, self._attempt.epoch)

    @override
    def to_file_merging_storage(
        self, manager: FileMergingSnapshotManager | None, environment: Environment
    ) -> CheckpointStorageWorkerView:
        return self


class MemoryCheckpointOutputStream(BufferedStateOutputStream):
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


@dataclass(frozen=True, slots=True)
class NonPersistentCompletedCheckpointStorageLocation:
    """Completed checkpoint with metadata in memory."""

    metadata_handle: ByteStreamStateHandle
    external_pointer: str = NOT_ADDRESSABLE

    def dispose(self) -> None:
        """Do nothing, because there is no directory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheckpointStorageLocation(MemoryCheckpointStreamFactory, CheckpointStorageLocation):
    """
    Location of a checkpoint whose metadata contains all state.

    :param storage: Storage of the metadata file; ``None`` for metadata in the memory of this process.
    :param directory: The exclusive directory of the checkpoint.
    """

    storage: CheckpointStorage | None = None
    directory: str = ""
    location_reference: CheckpointStorageLocationReference = DEFAULT_LOCATION

    @override
    def create_metadata_output_stream(self) -> CheckpointMetadataOutputStream:
        if self.storage is None:
            return CheckpointMetadataOutputStream(_completed)
        return open_metadata_stream(self.storage, self.directory)

    @override
    def dispose_on_failure(self) -> None:
        if self.storage is not None:
            self.storage.delete_directory(self.directory)


def _completed(metadata: bytes) -> NonPersistentCompletedCheckpointStorageLocation:
    return NonPersistentCompletedCheckpointStorageLocation(ByteStreamStateHandle(uuid.uuid4().hex, metadata))


@runtime_checkable
class CheckpointStorageFactory(Protocol):
    """Factory of the checkpoint storage of a job. ``execution.checkpointing.storage`` may name one by its dotted path."""

    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        """Return the views for an attempt; called on the driver and in each task."""
        ...

    def get_identifier(self) -> str:
        """Return the name of the storage in configurations."""
        ...


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

        :raises InvalidConfigurationError: if no factory can be loaded.
        """
        known = self.known.get(name.lower()) if isinstance(name, str) else None
        return self._create(name, known or self._load_entry_point(name) or self._import_path(name))

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

    def _error(self, name: Any, reason: str) -> InvalidConfigurationError:
        return InvalidConfigurationError(
            f"Expected in {self.setting} one of {', '.join(sorted(self.known))}, the name of an entry point of {self.group}, or "
            f"the dotted path of a {self.kind.__name__}, found {name!r}: {reason}; correct the setting."
        )


class FsCheckpointStorageFactory(CheckpointStorageFactory):
    """Factory of the ``filesystem`` storage."""

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> FsCheckpointStorageAccess:
        return FsCheckpointStorageAccess(storage, attempt, writing=writing)

    @override
    def get_identifier(self) -> str:
        return DEFAULT_STORAGE


class MemoryCheckpointStorageFactory(CheckpointStorageFactory):
    """Factory of the ``jobmanager`` storage."""

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> MemoryBackendCheckpointStorageAccess:
        return MemoryBackendCheckpointStorageAccess(attempt, storage)

    @override
    def get_identifier(self) -> str:
        return "jobmanager"


CHECKPOINT_STORAGES: NamedFactories[CheckpointStorageFactory] = NamedFactories(
    CheckpointStorageFactory,  # type: ignore[type-abstract]
    CheckpointConfig.checkpoint_storage.key,
    "airflow_provider_statecheck.checkpoint_storages",
    {
        DEFAULT_STORAGE: FsCheckpointStorageFactory(),
        "jobmanager": MemoryCheckpointStorageFactory(),
        "memory": MemoryCheckpointStorageFactory(),
    },
)


def load_checkpoint_storage(
    storage: CheckpointStorage, attempt: AttemptRef, config: CheckpointConfig
) -> CheckpointStorageAccess:
    """
    Return the configured checkpoint storage of a job.

    :raises InvalidConfigurationError: if the configured storage cannot be loaded.
    """
    writing = StateWriting(
        epoch=attempt.epoch,
        inline_threshold=config.data_inline_threshold,
        write_buffer_size=config.write_buffer_size,
    )
    factory = CHECKPOINT_STORAGES.find(config.checkpoint_storage or DEFAULT_STORAGE)
    return factory.create_checkpoint_storage(storage, attempt, writing)
