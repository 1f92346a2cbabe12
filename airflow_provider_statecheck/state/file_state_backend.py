"""What backends have in common that keep metadata, and perhaps state, in files."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.uri_setting import parse_directory
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import normalise_base
from airflow_provider_statecheck.storage.views.completed_location import (
    CompletedCheckpointStorageLocation,
    resolve_location,
)
from airflow_provider_statecheck.storage.views.storage_access import CheckpointStorageAccess

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
