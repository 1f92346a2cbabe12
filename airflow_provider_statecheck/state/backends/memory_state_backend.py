"""A backend whose snapshots travel in their handles."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.backends.hash_state_backend import AbstractHashStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.memory_access import (
    DEFAULT_MAX_STATE_SIZE,
    MemoryBackendCheckpointStorageAccess,
)
from airflow_provider_statecheck.storage.views.memory_stream import MemoryCheckpointOutputStream

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
    from airflow_provider_statecheck.checkpoint.messages import AttemptRef
    from airflow_provider_statecheck.state.backends.hash_keyed_backend import OpenOutput


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
