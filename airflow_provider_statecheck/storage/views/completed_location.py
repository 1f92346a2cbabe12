"""Where a complete checkpoint lies, and what a pointer leads to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointer import resolve_checkpoint


class CompletedCheckpointStorageLocation(Protocol):
    """The metadata of a complete checkpoint, and its directory."""

    @property
    def external_pointer(self) -> str:
        """Return by which text the checkpoint is found again."""
        ...

    @property
    def metadata_handle(self) -> StreamStateHandle:
        """Return where the metadata is."""
        ...

    def dispose(self) -> None:
        """
        Delete the checkpoint's directory; a missing one is success.

        :raises StorageError: if part of it may still be there.
        """
        ...


@dataclass(frozen=True, slots=True)
class FsCompletedCheckpointStorageLocation:
    """
    A checkpoint in a directory.

    :param storage: Where it is.
    :param external_pointer: The directory.
    :param metadata_handle: The file in it.
    """

    storage: CheckpointStorage
    external_pointer: str
    metadata_handle: FileStateHandle

    def dispose(self) -> None:
        """
        Delete the directory.

        :raises InvalidConfigurationError: for a directory that is none of a checkpoint or savepoint.
        :raises StorageError: if part of it may still be there.
        """
        self.storage.delete_directory(self.external_pointer)


def resolve_location(storage: CheckpointStorage, pointer: str | None) -> FsCompletedCheckpointStorageLocation:
    """Return the checkpoint of any job to which a pointer leads; raises as :func:`resolve_checkpoint`."""
    found = resolve_checkpoint(storage, pointer)
    handle = FileStateHandle(found.metadata_uri, found.storage.size(found.metadata_uri))
    return FsCompletedCheckpointStorageLocation(found.storage, found.directory_uri, handle)
