"""Counting what is deleted, or would be."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.storage.filesystem import CheckpointStorage


class DeletionLog:
    """
    Passes everything on to a storage and keeps how many bytes each deleted directory had.

    :param storage: Where the bytes are.
    :param dry_run: Delete nothing.
    """

    def __init__(self, storage: CheckpointStorage, *, dry_run: bool = False) -> None:
        self._storage = storage
        self._dry_run = dry_run
        self.directories: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._storage, name)

    def delete_file(self, uri: str) -> None:
        """Delete a file; it counts for its directory."""
        directory, _, name = uri.rpartition("/")
        size = self._storage.list_files(directory).get(name, 0)
        if not self._dry_run:
            self._storage.delete_file(uri)
        if size:
            self._add(directory, size)

    def delete_directory(self, uri: str) -> None:
        """Delete a directory with all that is in it."""
        files = self._storage.list_files(uri)
        if self._dry_run:
            self.directories |= {uri: sum(files.values())} if files else {}
            return
        self._storage.delete_directory(uri)
        if files:
            self._add(uri, sum(files.values()))

    def _add(self, directory: str, size: int) -> None:
        self.directories[directory] = self.directories.get(directory, 0) + size
