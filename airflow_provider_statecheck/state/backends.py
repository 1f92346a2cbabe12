"""
State backends: contract, backends with Arrow files, and loading by name.

There is one backend, whose snapshots have a mode; Flink's names stand for it in one of its modes, and name directories
of their own. A setting may also name a backend by its entry point or dotted path.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, ClassVar, Protocol, Self, runtime_checkable

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.config import STORAGE_KEYS, CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import parse_directory
from airflow_provider_statecheck.checkpoint.masking import require_no_credentials
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
from airflow_provider_statecheck.exceptions import (
    BackendRestoreError,
    InvalidConfigurationError,
    StateCheckError,
    StateMigrationError,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from airflow_provider_statecheck.state.arrow.layout import PREFIX as ARROW_PREFIX, ArrowStateSettings
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend, StateEnvironment
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend, read_restored
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storages import (
    DEFAULT_MAX_STATE_SIZE,
    CheckpointStorageFactory,
    FsCheckpointStorageAccess,
    IdentifiedFactory,
    MemoryBackendCheckpointStorageAccess,
    MemoryCheckpointStreamFactory,
    NamedFactories,
)
from airflow_provider_statecheck.storage.views.state_files import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStreamFactory,
    CompletedCheckpointStorageLocation,
    StateWriting,
)

BACKEND_KEYS = ("state.backend.type", "state.backend")
"""Settings that name a backend, in order of precedence."""
DEFAULT_BACKEND = "arrow"
ENTRY_POINT_GROUP = "airflow_provider_statecheck.state_backends"
# Base of a storage that only resolves pointers, which are absolute.
_NO_DIRECTORY = "memory://statecheck-without-directory"


@runtime_checkable
class StateBackend(Protocol):
    """
    Factory of the keyed and operator state of subtasks.

    A backend is pickled from the driver to the executors, so it holds only plain values.
    """

    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: TaskKvStateRegistry | None = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> AbstractKeyedStateBackend:
        """
        Create the keyed state of one subtask.

        :param kv_registry: Registry of queryable names, to which the backend adds that of each state that has one.
        :param restored: Handles to restore; keys of other subtasks are skipped.
        :raises InvalidConfigurationError: if the range exceeds the number of key groups.
        :raises BackendRestoreError: if the state cannot be read; no resources are leaked.
        :raises StateMigrationError: if the keys have another type.
        """

    def create_operator_state_backend(
        self,
        environment: StateEnvironment,
        operator_identifier: str,
        *,
        restored: Sequence[OperatorStateHandle] = (),
    ) -> DefaultOperatorStateBackend:
        """
        Create the operator state of one subtask.

        :raises BackendRestoreError: if the state cannot be read.
        """

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of a pointer, of any job.

        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: if the pointer is missing or empty.
        :raises StorageError: if the pointer is not a URI, or the storage fails.
        :raises CheckpointNotFoundError: if there is no checkpoint.
        """


@runtime_checkable
class ConfigurableStateBackend(Protocol):
    """State backend whose unset fields can be taken from a configuration."""

    def configure(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Return this backend with its unset fields taken from a configuration.

        :raises InvalidConfigurationError: for an invalid setting.
        """


@runtime_checkable
class StateBackendFactory(IdentifiedFactory, Protocol):
    """Factory of backends from a configuration. ``state.backend`` may name one by its dotted path."""

    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        """
        Create a backend.

        :raises InvalidConfigurationError: for an invalid setting.
        """


class SnapshotMode(StrEnum):
    """Where snapshots write keyed state. All modes read the snapshots of each other."""

    INCREMENTAL = "incremental"
    """In files that later checkpoints reference, too; each adds its changes."""
    FULL = "full"
    """In files of each checkpoint."""
    INLINE = "inline"
    """In the metadata of each checkpoint, within a limit."""


@dataclass(frozen=True, slots=True)
class ArrowStateBackend(StateBackend, ConfigurableStateBackend):
    """
    State backend with sorted Arrow files and bounded memory.

    The storage of the stage determines the location of checkpoints.

    :param settings: Sizes and compression; those of the configuration if ``None``.
    :param mode: Mode of the snapshots; as configured if ``None``, else incremental.
    :param max_state_size: Maximum size of each inline state of a subtask in bytes.
    :raises InvalidConfigurationError: for another mode, or a size that is not positive.
    """

    settings: ArrowStateSettings | None = None
    mode: SnapshotMode | None = None
    max_state_size: int = DEFAULT_MAX_STATE_SIZE

    def __post_init__(self) -> None:
        require("mode", self.mode, lambda mode: mode is None or isinstance(mode, SnapshotMode), "a SnapshotMode")
        require("max_state_size", self.max_state_size, lambda size: size > 0, "above 0 bytes")

    @override
    def configure(self, config: Mapping[str, Any]) -> ArrowStateBackend:
        settings = self.settings or ArrowStateSettings.from_config(config)
        return replace(self, settings=settings, mode=self.mode or _configured_mode(config))

    @override
    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: TaskKvStateRegistry | None = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> ArrowKeyedStateBackend:
        with restoring(operator_identifier):
            return ArrowKeyedStateBackend(
                environment,
                key_serializer,
                number_of_key_groups,
                key_group_range,
                restored,
                settings=self._settings,
                incremental=self.is_incremental,
                streams=self._streams,
                kv_registry=kv_registry,
            )

    @property
    def is_incremental(self) -> bool:
        """Whether later checkpoints reference the files of keyed state of earlier ones."""
        return self.mode in (None, SnapshotMode.INCREMENTAL)

    @property
    def _settings(self) -> ArrowStateSettings | None:
        if self.mode is not SnapshotMode.INLINE:
            return self.settings
        # The limit holds for a file, and so a state must have only one.
        settings = self.settings or ArrowStateSettings()
        return replace(settings, part_bytes=max(settings.part_bytes, self.max_state_size + 1))

    @property
    def _streams(self) -> CheckpointStreamFactory | None:
        """The streams of the state in snapshots; ``None`` for those of the checkpoint."""
        is_inline = self.mode is SnapshotMode.INLINE
        return MemoryCheckpointStreamFactory(max_state_size=self.max_state_size) if is_inline else None

    @override
    def create_operator_state_backend(
        self,
        environment: StateEnvironment,
        operator_identifier: str,
        *,
        restored: Sequence[OperatorStateHandle] = (),
    ) -> DefaultOperatorStateBackend:
        with restoring(operator_identifier):
            found = read_restored(environment.storage, restored)
            return DefaultOperatorStateBackend(found, environment.operator_name, environment.subtask)

    @override
    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        base = _NO_DIRECTORY if not pointer or not storage_options else pointer
        return resolve_checkpoint(CheckpointStorage.open(base, **storage_options), pointer)


@contextlib.contextmanager
def restoring(operator_identifier: str) -> Iterator[None]:
    """
    Raise failures of a restore as ``BackendRestoreError``. Configuration and migration errors are not wrapped.

    :param operator_identifier: Uid of the operator.
    :raises BackendRestoreError: if the state cannot be read.
    """
    try:
        yield
    except (BackendRestoreError, InvalidConfigurationError, StateMigrationError):
        raise
    except (StateCheckError, OSError) as error:
        raise BackendRestoreError(
            f"The state backend of {operator_identifier} could not be restored: {error}", failures=(error,)
        ) from error


def _configured_mode(config: Mapping[str, Any]) -> SnapshotMode:
    values = CheckpointConfig()
    CheckpointConfig.incremental.read(values, config)
    return SnapshotMode.INCREMENTAL if values.incremental else SnapshotMode.FULL


class AbstractFileStateBackend(StateBackend, ConfigurableStateBackend, CheckpointStorageFactory, ABC):
    """
    State backend with directories for checkpoints and savepoints, which is a factory of checkpoint storage, too.

    An argument takes precedence over the configuration. Without a checkpoint directory, checkpoints cannot be
    externalized; without a savepoint directory, each savepoint needs a target. Backends can be pickled.

    :param base_checkpoint_path: URI of the checkpoint directory.
    :param base_savepoint_path: URI of the directory of savepoints without a target.
    :param config: Settings by key, current or deprecated, or a ``CheckpointConfig``.
    :raises InvalidConfigurationError: if a URI has no scheme or no path, or is the root of a filesystem.
    """

    mode: ClassVar[SnapshotMode] = SnapshotMode.FULL
    """Mode of the snapshots for which the name of the backend stands."""

    def __init__(
        self,
        base_checkpoint_path: str | None = None,
        base_savepoint_path: str | None = None,
        config: Mapping[str, Any] | CheckpointConfig | None = None,
    ) -> None:
        self._config = {} if config is None or isinstance(config, CheckpointConfig) else dict(config)
        settings = config if isinstance(config, CheckpointConfig) else CheckpointConfig.from_mapping(self._config)
        self.checkpoint_path = _directory("base_checkpoint_path", base_checkpoint_path, settings.checkpoint_dir)
        """Checkpoint directory, or ``None``."""
        self.savepoint_path = _directory("base_savepoint_path", base_savepoint_path, settings.savepoint_dir)
        """Directory of savepoints without a target, or ``None``."""
        self._keyed = ArrowStateBackend(ArrowStateSettings.from_config(self._config), self.mode)

    @override
    def configure(self, config: Mapping[str, Any]) -> Self:
        return type(self)(self.checkpoint_path, self.savepoint_path, {**config, **self._config})

    @override
    def create_keyed_state_backend(self, *arguments: Any, **named: Any) -> ArrowKeyedStateBackend:
        return self._keyed.create_keyed_state_backend(*arguments, **named)

    @override
    def create_operator_state_backend(self, *arguments: Any, **named: Any) -> DefaultOperatorStateBackend:
        return self._keyed.create_operator_state_backend(*arguments, **named)

    @abstractmethod
    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> CheckpointStorageAccess:
        """Return the views of the checkpoint storage for an attempt, for ``execution.checkpointing.storage``."""

    @override
    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        return self._keyed.resolve_checkpoint(pointer, **storage_options)


def _directory(name: str, argument: str | None, configured: str | None) -> str | None:
    path = argument if argument is not None else configured
    if path is None:
        return None
    require_no_credentials(name, str(path))
    return normalise_base(parse_directory(name, path))


class FsStateBackend(AbstractFileStateBackend):
    """Backend that writes all state to files of each checkpoint."""

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> FsCheckpointStorageAccess:
        return FsCheckpointStorageAccess(storage, attempt, writing=writing)

    @override
    def get_identifier(self) -> str:
        return "filesystem"


class MemoryStateBackend(AbstractFileStateBackend):
    """
    Backend that writes all state to the checkpoint metadata, for tests and small state.

    :param base_checkpoint_path: URI of the directory of metadata, if any.
    :param base_savepoint_path: URI of the directory of savepoints without a target.
    :param config: Settings by key, or a ``CheckpointConfig``.
    :param max_state_size: Maximum size of each keyed state of a subtask in a snapshot, in bytes.
    :raises InvalidConfigurationError: if the size is not positive, or a directory is invalid.
    """

    mode = SnapshotMode.INLINE

    def __init__(
        self,
        base_checkpoint_path: str | None = None,
        base_savepoint_path: str | None = None,
        config: Mapping[str, Any] | CheckpointConfig | None = None,
        *,
        max_state_size: int = DEFAULT_MAX_STATE_SIZE,
    ) -> None:
        super().__init__(base_checkpoint_path, base_savepoint_path, config)
        self.max_state_size = max_state_size
        self._keyed = replace(self._keyed, max_state_size=max_state_size)

    @override
    def configure(self, config: Mapping[str, Any]) -> Self:
        paths = (self.checkpoint_path, self.savepoint_path)
        return type(self)(*paths, {**config, **self._config}, max_state_size=self.max_state_size)

    @override
    def create_checkpoint_storage(
        self, storage: CheckpointStorage, attempt: AttemptRef, writing: StateWriting
    ) -> MemoryBackendCheckpointStorageAccess:
        return MemoryBackendCheckpointStorageAccess(attempt, storage, max_state_size=self.max_state_size)

    @override
    def get_identifier(self) -> str:
        return "memory"


@dataclass(frozen=True, slots=True)
class _BuiltInFactory(StateBackendFactory):
    identifier: str
    create: Callable[[Mapping[str, Any]], StateBackend]

    @override
    def create_from_config(self, config: Mapping[str, Any]) -> StateBackend:
        return self.create(config)

    @override
    def get_identifier(self) -> str:
        return self.identifier


_ARROW = _BuiltInFactory(DEFAULT_BACKEND, lambda config: ArrowStateBackend().configure(config))
_FILESYSTEM = _BuiltInFactory("filesystem", lambda config: FsStateBackend(config=config))
_MEMORY = _BuiltInFactory("memory", lambda config: MemoryStateBackend(config=config))
BACKENDS: NamedFactories[StateBackendFactory] = NamedFactories(
    StateBackendFactory,  # type: ignore[type-abstract]
    BACKEND_KEYS[1],
    ENTRY_POINT_GROUP,
    {
        "memory": _MEMORY,
        "jobmanager": _MEMORY,
        "hashmap": _MEMORY,
        "filesystem": _FILESYSTEM,
        "fs": _FILESYSTEM,
        "arrow": _ARROW,
    },
)
"""Factories of the backends that settings name: those of this package, of entry points, and of dotted paths."""


def load_state_backend(application: StateBackend | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the configured backend.

    :param application: Backend set in code, or ``None``; its unset fields are taken from the configuration.
    :param config: Settings by key.
    :raises InvalidConfigurationError: if the configured backend cannot be loaded.
    """
    if application is not None:
        return application.configure(config) if isinstance(application, ConfigurableStateBackend) else application
    return BACKENDS.find(_backend_name(config)).create_from_config(config)


def backend_of_stage(wanted: StateBackend | str | None, config: Mapping[str, Any]) -> StateBackend:
    """
    Return the backend of a stage.

    :param wanted: Backend or name that the stage declares; ``None`` for the configured backend.
    :param config: Settings by key; a declared name takes precedence.
    :raises InvalidConfigurationError: if the backend cannot be loaded.
    """
    if isinstance(wanted, str):
        wanted, config = None, {**config, BACKEND_KEYS[0]: wanted}
    _require_known_settings(config)
    return load_state_backend(wanted, config)


def directories_of(backend: object, config: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the directories that the backend and the storage of a stage name themselves.

    They take precedence over those of the job, as in Flink.

    :param backend: Backend that the stage declares.
    :param config: Settings by key.
    :return: The ``checkpoint_dir`` and the ``savepoint_dir``, as far as they are named.
    :raises InvalidConfigurationError: if a setting is invalid.
    """
    settings = CheckpointConfig()
    for option in (CheckpointConfig.checkpoint_storage, CheckpointConfig.checkpoint_dir):
        option.read(settings, config)
    is_directory = settings.storage_dir is not None and settings.storage_dir == settings.checkpoint_storage
    found = {
        "checkpoint_dir": getattr(backend, "checkpoint_path", None)
        or (settings.checkpoint_storage if is_directory else None),
        "savepoint_dir": getattr(backend, "savepoint_path", None),
    }
    return {name: uri for name, uri in found.items() if uri is not None}


def _backend_name(config: Mapping[str, Any]) -> Any:
    return next((config[key] for key in BACKEND_KEYS if config.get(key) is not None), DEFAULT_BACKEND)


def _require_known_settings(config: Mapping[str, Any]) -> None:
    name = _backend_name(config)
    if str(name).lower() not in BACKENDS.known:
        return  # custom factories validate their own settings
    for key in config:
        if key not in STORAGE_KEYS and key not in BACKEND_KEYS and not key.startswith(ARROW_PREFIX):
            raise InvalidConfigurationError(
                f"Expected only settings of the state backend {name!r}, found {key}; remove it.",
                key=key,
            )
