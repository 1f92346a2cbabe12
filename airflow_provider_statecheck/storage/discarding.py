"""Deletes the bytes of checkpoints on storage: what the cleaner and the registry of shared state ask for."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class StorageDiscarder:
    """
    A ``StateDiscarder`` on checkpoint storage.

    :param storage: Where the bytes are.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage

    def discard_metadata(self, uri: str) -> None:
        """
        Delete the metadata of a checkpoint.

        :raises StorageError: if it may still be there.
        """
        self._storage.delete_file(uri)

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the file of a handle; state that travels in the handle has none, and a part of a file is its manager's.

        :raises StorageError: if it may still be there.
        """
        if isinstance(handle, FileStateHandle):
            self._storage.delete_file(handle.uri)

    def discard_location(self, uri: str) -> None:
        """
        Delete the directory of a checkpoint, or of a snapshot.

        :raises StorageError: if part of it may still be there.
        """
        self._storage.delete_directory(uri)
