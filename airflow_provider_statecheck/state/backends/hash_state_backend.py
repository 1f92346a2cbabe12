"""State backends with state in memory. Snapshots are written to files or stored in their handles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import parse_directory
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange, OperatorStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.backends.hash_keyed_backend import HashKeyedStateBackend
from airflow_provider_statecheck.state.backends.state_backend import restoring
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storage import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.memory_storage import (
    DEFAULT_MAX_STATE_SIZE,
    MemoryBackendCheckpointStorageAccess,
    MemoryCheckpointOutputStream,
)
from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.hash_keyed_backend import OpenOutput
    from airflow_provider_statecheck.state.backends.state_backend import StateEnvironment
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend


# Base of a storage that only resolves pointers, which are absolute.
_NO_DIRECTORY = "memory://statecheck-without-directory"


class AbstractFileStateBackend(ABC):
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
        settings = config if isinstance(config, CheckpointConfig) else CheckpointConfig.from_mapping(config or {})
        self._checkpoint_path = _directory("base_checkpoint_path", base_checkpoint_path, settings.checkpoint_dir)
        self._savepoint_path = _directory("base_savepoint_path", base_savepoint_path, settings.savepoint_dir)

    @property
    def checkpoint_path(self) -> str | None:
        """Return the checkpoint directory, or ``None``."""
        return self._checkpoint_path

    @property
    def savepoint_path(self) -> str | None:
        """Return the directory of savepoints without a target, or ``None``."""
        return self._savepoint_path

    @abstractmethod
    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> CheckpointStorageAccess:
        """
        Return the checkpoint storage of a job.

        :param attempt: Attempt that writes the checkpoints.
        :param storage_options: Options of the filesystem.
        """

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of a pointer, of any job.

        :param storage_options: Options of the filesystem of the checkpoint directory.
        :raises InvalidConfigurationError: if the pointer is missing or empty.
        :raises StorageError: if the pointer is not a URI, or the storage fails.
        :raises CheckpointNotFoundError: if there is no checkpoint.
        """
        if self._checkpoint_path is None:
            return resolve_checkpoint(CheckpointStorage.open(_NO_DIRECTORY), pointer)
        return resolve_checkpoint(CheckpointStorage.open(self._checkpoint_path, **storage_options), pointer)


def _directory(name: str, argument: str | None, configured: str | None) -> str | None:
    path = argument if argument is not None else configured
    return None if path is None else normalise_base(parse_directory(name, path))


class AbstractHashStateBackend(AbstractFileStateBackend):
    """State backend with state in memory. Subclasses define the destination of snapshots."""

    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: Any = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> HashKeyedStateBackend:
        """
        Create the keyed state of one subtask.

        :param restored: Handles to restore; keys of other subtasks are skipped.
        :raises InvalidConfigurationError: if the range exceeds the number of key groups.
        :raises BackendRestoreError: if the state cannot be read.
        :raises StateMigrationError: if the keys have another type.
        """
        backend = HashKeyedStateBackend(
            key_serializer=key_serializer,
            number_of_key_groups=number_of_key_groups,
            key_group_range=key_group_range,
            now_ms=environment.now_ms,
            storage=environment.storage,
            open_output=self._open_output,
            operator_name=environment.operator_name,
        )
        with restoring(operator_identifier):
            backend.restore(restored)
        return backend

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
        from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend

        with restoring(operator_identifier):
            return DefaultOperatorStateBackend.restore(environment.storage, restored, environment.operator_name)

    def configure(self, config: Mapping[str, Any]) -> Self:
        """
        Return this backend with its unset directories taken from a configuration.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        return type(self)(self.checkpoint_path, self.savepoint_path, config)

    @property
    def _open_output(self) -> OpenOutput | None:
        """Return the function that opens the stream of a snapshot; ``None`` for streams of the checkpoint."""
        return None


class FsStateBackend(AbstractHashStateBackend):
    """In-memory backend with one snapshot file per subtask. The state must fit into the memory of an executor."""

    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> FsCheckpointStorageAccess:
        """
        Return a checkpoint storage with files.

        :param attempt: Attempt that writes the checkpoints.
        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: without a checkpoint directory.
        """
        if self.checkpoint_path is None:
            raise InvalidConfigurationError(
                "Expected a checkpoint directory for the filesystem state backend, found none; pass base_checkpoint_path or "
                "set execution.checkpointing.dir."
            )
        storage = CheckpointStorage.open(self.checkpoint_path, **storage_options)
        return FsCheckpointStorageAccess(storage, attempt, savepoint_dir=self.savepoint_path)


class MemoryStateBackend(AbstractHashStateBackend):
    """
    In-memory backend with snapshots in the checkpoint metadata, for tests and small state.

    :param base_checkpoint_path: URI of the directory of metadata, if any.
    :param base_savepoint_path: URI of the directory of savepoints without a target.
    :param config: Settings by key, or a ``CheckpointConfig``.
    :param max_state_size: Maximum size of the keyed state of a subtask in a snapshot, in bytes.
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

    def configure(self, config: Mapping[str, Any]) -> Self:
        """
        Return this backend with its unset directories taken from a configuration.

        :raises InvalidConfigurationError: for an invalid setting.
        """
        return type(self)(self.checkpoint_path, self.savepoint_path, config, max_state_size=self.max_state_size)

    def create_checkpoint_storage(
        self, attempt: AttemptRef, **storage_options: Any
    ) -> MemoryBackendCheckpointStorageAccess:
        """
        Return a checkpoint storage with state in the handles.

        :param attempt: Attempt that writes the checkpoints.
        :param storage_options: Options of the filesystem.
        """
        path = self.checkpoint_path
        return MemoryBackendCheckpointStorageAccess(
            attempt,
            None if path is None else CheckpointStorage.open(path, **storage_options),
            savepoint_dir=self.savepoint_path,
            max_state_size=self.max_state_size,
        )

    @property
    def _open_output(self) -> OpenOutput | None:
        return lambda _: MemoryCheckpointOutputStream(self.max_state_size)
