"""Counting what is deleted, or would be."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class DeletionLog:
    """
    Passes everything on to a storage and keeps how many bytes each directory lost; what is deleted twice counts once.

    :param storage: Where the bytes are.
    :param dry_run: Delete nothing.
    """

    def __init__(self, storage: CheckpointStorage, *, dry_run: bool = False) -> None:
        self._storage = storage
        self._dry_run = dry_run
        self._files: dict[str, dict[str, int]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    @property
    def directories(self) -> dict[str, int]:
        """Return how many bytes each directory lost."""
        return {directory: sum(files.values()) for directory, files in self._files.items()}

    def delete_file(self, uri: str) -> None:
        """Delete a file; it counts for its directory."""
        directory, _, name = uri.rpartition("/")
        size = self._size(uri)
        if not self._dry_run:
            self._storage.delete_file(uri)
        if size:
            self._note(directory, {name: size})

    def delete_directory(self, uri: str) -> None:
        """Delete a directory with all that is in it."""
        files = self._storage.list_files(uri)
        if not self._dry_run:
            self._storage.delete_directory(uri)
        if files:
            self._note(uri, files)

    def _size(self, uri: str) -> int:
        try:
            return self._storage.size(uri)
        except CheckpointNotFoundError:
            return 0

    def _note(self, directory: str, files: dict[str, int]) -> None:
        self._files.setdefault(directory, {}).update(files)
