"""State backends that keep state in memory and write snapshots to files or into their handles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.config_options import parse_directory
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, OperatorStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.backends.hash_keyed_backend import HashKeyedStateBackend
from airflow_provider_statecheck.state.backends.restored_state import restoring
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.checkpoint_storage import CheckpointStorageAccess
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess
from airflow_provider_statecheck.storage.views.memory_storage import (
    DEFAULT_MAX_STATE_SIZE,
    MemoryBackendCheckpointStorageAccess,
    MemoryCheckpointOutputStream,
)
from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation, resolve_location

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.backends.hash_keyed_backend import OpenOutput
    from airflow_provider_statecheck.state.backends.state_backend import StateEnvironment
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend


# Pointers lead to any filesystem, whatever the directory of the storage is.
_NO_DIRECTORY = "memory://statecheck-without-directory"


class AbstractFileStateBackend(ABC):
    """
    Knows the directories of checkpoints and savepoints: an argument beats the configuration, which beats none at all.

    Without a directory of checkpoints none can be externalized; without one of savepoints each of them needs a target. It is
    plain values, so it can be pickled.

    :param base_checkpoint_path: URI of the checkpoint directory.
    :param base_savepoint_path: URI of the directory of savepoints that are asked for without a target.
    :param config: Settings by their keys, old or new, or an object of them.
    :raises InvalidConfigurationError: for a path without a scheme, without a path, or of a root.
    """

    def __init__(
        self,
        base_checkpoint_path: str | None = None,
        base_savepoint_path: str | None = None,
        config: Mapping[str, Any] | CheckpointConfig | None = None,
    ) -> None:
        settings = config if isinstance(config, CheckpointConfig) else CheckpointConfig.from_mapping(config or {})
        self._checkpoint_path = _first("base_checkpoint_path", base_checkpoint_path, settings.checkpoint_dir)
        self._savepoint_path = _first("base_savepoint_path", base_savepoint_path, settings.savepoint_dir)

    @property
    def checkpoint_path(self) -> str | None:
        """Return the checkpoint directory, or ``None`` if there is none."""
        return self._checkpoint_path

    @property
    def savepoint_path(self) -> str | None:
        """Return where savepoints go that are asked for without a target, or ``None``."""
        return self._savepoint_path

    @abstractmethod
    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> CheckpointStorageAccess:
        """
        Return the storage of a job.

        :param attempt: Who writes.
        :param storage_options: Options of the filesystem.
        """

    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        """
        Return the checkpoint of any job to which a pointer leads.

        :param storage_options: Options of the filesystem of the checkpoint directory.
        :raises InvalidConfigurationError: for no pointer or an empty one.
        :raises StorageError: for text that is no URI, or if the storage fails.
        :raises CheckpointNotFoundError: if there is none.
        """
        if self._checkpoint_path is None:
            return resolve_location(CheckpointStorage.open(_NO_DIRECTORY), pointer)
        return resolve_location(CheckpointStorage.open(self._checkpoint_path, **storage_options), pointer)


def _first(name: str, argument: str | None, configured: str | None) -> str | None:
    path = argument if argument is not None else configured
    return None if path is None else normalise_base(parse_directory(name, path))


class AbstractHashStateBackend(AbstractFileStateBackend):
    """Keeps state in memory while a stage works; a subclass says where snapshots go."""

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
        Make the keyed state of one subtask.

        :param restored: The state to begin with; keys of other ranges are skipped.
        :raises InvalidConfigurationError: for a range that is not within the key groups.
        :raises BackendRestoreError: if the state cannot be read.
        :raises StateMigrationError: if the keys are of another type.
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
        Make the operator state of one subtask.

        :raises BackendRestoreError: if the state cannot be read.
        """
        from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend

        with restoring(operator_identifier):
            return DefaultOperatorStateBackend.restore(environment.storage, restored, environment.operator_name)

    def configure(self, config: Mapping[str, Any]) -> Self:
        """
        Return this backend with the directories that it leaves unset taken from a configuration.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        return type(self)(self.checkpoint_path, self.savepoint_path, config)

    @property
    def _open_output(self) -> OpenOutput | None:
        """Return what opens the stream of a snapshot, ``None`` for one of the checkpoint's own."""
        return None


class FsStateBackend(AbstractHashStateBackend):
    """For state that fits the memory of an executor: each snapshot is one file for each subtask."""

    def create_checkpoint_storage(self, attempt: AttemptRef, **storage_options: Any) -> FsCheckpointStorageAccess:
        """
        Return a storage of files.

        :param attempt: Who writes.
        :param storage_options: Options of the filesystem.
        :raises InvalidConfigurationError: without a directory of checkpoints.
        """
        if self.checkpoint_path is None:
            raise InvalidConfigurationError(
                "Expected a directory of checkpoints for the filesystem state backend, found none; give base_checkpoint_path or "
                "set execution.checkpointing.dir."
            )
        storage = CheckpointStorage.open(self.checkpoint_path, **storage_options)
        return FsCheckpointStorageAccess(storage, attempt, savepoint_dir=self.savepoint_path)


class MemoryStateBackend(AbstractHashStateBackend):
    """
    For tests and for state that stays small: everything travels in the metadata.

    :param base_checkpoint_path: Where metadata goes, if anywhere.
    :param base_savepoint_path: Where savepoints go that are asked for without a target.
    :param config: Settings by their keys, or an object of them.
    :param max_state_size: How many bytes the keyed state of a subtask may have in a snapshot.
    :raises InvalidConfigurationError: for a size that is not above 0, or a directory that is none.
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
            raise InvalidConfigurationError(f"Expected a max_state_size above 0 bytes, found {max_state_size}.")
        self.max_state_size = max_state_size

    def configure(self, config: Mapping[str, Any]) -> Self:
        """
        Return this backend with the directories that it leaves unset taken from a configuration.

        :raises InvalidConfigurationError: for a setting out of its range.
        """
        return type(self)(self.checkpoint_path, self.savepoint_path, config, max_state_size=self.max_state_size)

    def create_checkpoint_storage(
        self, attempt: AttemptRef, **storage_options: Any
    ) -> MemoryBackendCheckpointStorageAccess:
        """
        Return a storage whose state is in the handles.

        :param attempt: Who writes.
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
