"""
State backends with full snapshots: in files of each checkpoint, or in its metadata.

They keep state as the Arrow backend does, and read its files.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import parse_directory
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowStateBackend
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.backends.state_backend import ConfigurableStateBackend, StateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storage import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.memory_storage import (
    DEFAULT_MAX_STATE_SIZE,
    MemoryBackendCheckpointStorageAccess,
    MemoryCheckpointStreamFactory,
)
from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend


class AbstractFileStateBackend(StateBackend, ConfigurableStateBackend, ABC):
    """
    State backend with directories for checkpoints and savepoints.

    An argument takes precedence over the configuration. Without a checkpoint directory, checkpoints cannot be
    externalized; without a savepoint directory, each savepoint needs a target. Backends can be pickled.

    :param base_checkpoint_path: URI of the checkpoint directory.
    :param base_savepoint_path: URI of the directory of savepoints without a target.
    :param config: Settings by key, current or deprecated, or a ``CheckpointConfig``.
    :raises InvalidConfigurationError: if a URI has no scheme or no path, or is the root of a filesystem.
    """

    def __init__(
        self,
        base_checkpoint_path: str | None = None,
        base_savepoint_path: str | None = None,
        config: Mapping[str, Any] | CheckpointConfig | None = None,
    ) -> None:
        self._config = {} if config is None or isinstance(config, CheckpointConfig) else dict(config)
        settings = config if isinstance(config, CheckpointConfig) else CheckpointConfig.from_mapping(self._config)
        self._checkpoint_path = _directory("base_checkpoint_path", base_checkpoint_path, settings.checkpoint_dir)
        self._savepoint_path = _directory("base_savepoint_path", base_savepoint_path, settings.savepoint_dir)
        self._settings = ArrowStateSettings.from_config(self._config)
        self._keyed = ArrowStateBackend(self._settings, incremental=False)

    @property
    def checkpoint_path(self) -> str | None:
        """Return the checkpoint directory, or ``None``."""
        return self._checkpoint_path

    @property
    def savepoint_path(self) -> str | None:
        """Return the directory of savepoints without a target, or ``None``."""
        return self._savepoint_path

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
    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> CheckpointStorageAccess:
        """
        Return the checkpoint storage of a job.

        :param attempt: Attempt that writes the checkpoints.
        :param storage_options: Options of the filesystem.
        """

    @override
    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        return self._keyed.resolve_checkpoint(pointer, **storage_options)


def _directory(name: str, argument: str | None, configured: str | None) -> str | None:
    path = argument if argument is not None else configured
    return None if path is None else normalise_base(parse_directory(name, path))


class FsStateBackend(AbstractFileStateBackend):
    """Backend that writes all state to files of each checkpoint."""

    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> FsCheckpointStorageAccess:
        """
        Return a checkpoint storage with files.

        :raises InvalidConfigurationError: without a checkpoint directory.
        """
        if self.checkpoint_path is None:
            raise InvalidConfigurationError(
                "Expected a checkpoint directory for the filesystem state backend, found none; pass base_checkpoint_path or "
                "set execution.checkpointing.dir."
            )
        storage = CheckpointStorage.open(self.checkpoint_path, **storage_options)
        return FsCheckpointStorageAccess(storage, attempt, savepoint_dir=self.savepoint_path)


class MemoryStateBackend(AbstractFileStateBackend):
    """
    Backend that writes all state to the checkpoint metadata, for tests and small state.

    :param base_checkpoint_path: URI of the directory of metadata, if any.
    :param base_savepoint_path: URI of the directory of savepoints without a target.
    :param config: Settings by key, or a ``CheckpointConfig``.
    :param max_state_size: Maximum size of each keyed state of a subtask in a snapshot, in bytes.
    :raises InvalidConfigurationError: if the size is not positive, or a directory is invalid.
    """

    def __init__(
        self,
        base_checkpoint_path: str | None = None,
        base_savepoint_path: str | None = None,
        config: Mapping[str, Any] | CheckpointConfig | None = None,
        *,
        max_state_size: int = DEFAULT_MAX_STATE_SIZE,
    ) -> None:
        super().__init__(base_checkpoint_path, base_savepoint_path, config)
        if max_state_size <= 0:
            raise InvalidConfigurationError(
                f"Expected a max_state_size above 0 bytes, found {max_state_size}; pass a positive size."
            )
        self.max_state_size = max_state_size
        # The limit holds for a file, and so a state must have only one.
        settings = replace(self._settings, part_bytes=max(self._settings.part_bytes, max_state_size + 1))
        streams = MemoryCheckpointStreamFactory(max_state_size=max_state_size)
        self._keyed = replace(self._keyed, settings=settings, streams=streams)

    @override
    def configure(self, config: Mapping[str, Any]) -> Self:
        paths = (self.checkpoint_path, self.savepoint_path)
        return type(self)(*paths, {**config, **self._config}, max_state_size=self.max_state_size)

    @override
    def create_checkpoint_storage(
        self, attempt: AttemptRef, **storage_options: Any
    ) -> MemoryBackendCheckpointStorageAccess:
        path = self.checkpoint_path
        return MemoryBackendCheckpointStorageAccess(
            attempt,
            None if path is None else CheckpointStorage.open(path, **storage_options),
            savepoint_dir=self.savepoint_path,
            max_state_size=self.max_state_size,
        )
