"""A backend that keeps state in memory and writes snapshots to files."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.state.backends.hash_state_backend import AbstractHashStateBackend
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_access import FsCheckpointStorageAccess

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.messages import AttemptRef


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
