"""Copying state of a task without reading it, where the filesystem does that by itself."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol
from urllib.parse import urlsplit

from airflow_provider_statecheck.checkpoint.layout import epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle, StreamStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import scheme_of

_SAME_SERVER = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "memory": "memory"}
_BY_ACCOUNT = frozenset({"abfs", "abfss", "az"})


class CheckpointStateToolset(Protocol):
    """What can be done with state where a task keeps its own."""

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Tell whether state is copied without passing through this process."""
        ...

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Copy state and return the copies in the same order.

        :raises InvalidConfigurationError: if any of it cannot be copied so; then nothing was.
        :raises StorageError: if the storage fails; then no copy is left.
        """
        ...


class NotDuplicatingCheckpointStateToolset:
    """For filesystems whose copies pass through this process."""

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Tell that it is not possible."""
        return False

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Refuse.

        :raises InvalidConfigurationError: always.
        """
        raise InvalidConfigurationError(
            "Expected a filesystem that copies files by itself, found one that does not; ask can_fast_duplicate first."
        )


class FsCheckpointStateToolset:
    """
    For filesystems that copy on their servers.

    :param storage: Where the copies go.
    :param directory: Their directory.
    :param epoch: Of the attempt that copies.
    """

    def __init__(self, storage: CheckpointStorage, directory: str, epoch: int) -> None:
        self._storage = storage
        self._directory = directory
        self._epoch = epoch

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Tell whether it is a file of its own on the same servers."""
        return isinstance(handle, FileStateHandle) and _server(handle.uri) == _server(self._directory)

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Copy files and return the copies in the same order.

        :raises InvalidConfigurationError: if any of them is no file on the same servers; then nothing was copied.
        :raises StorageError: if the storage fails; then no copy is left.
        """
        files = [self._require_file(handle) for handle in handles]
        copies = [replace(file, uri=f"{self._directory}/{epoch_name(self._epoch)}") for file in files]
        try:
            for file, copy in zip(files, copies, strict=True):
                self._storage.copy_file(file.uri, copy.uri)
        except BaseException:
            self._delete(copies)
            raise
        return list(copies)

    def _require_file(self, handle: StreamStateHandle) -> FileStateHandle:
        if isinstance(handle, FileStateHandle) and self.can_fast_duplicate(handle):
            return handle
        raise InvalidConfigurationError(
            f"Expected state in a file of its own on the same servers, found {type(handle).__name__}; write it anew."
        )

    def _delete(self, copies: Sequence[FileStateHandle]) -> None:
        for copy in copies:
            with contextlib.suppress(StateCheckError):
                self._storage.delete_file(copy.uri)


def make_toolset(storage: CheckpointStorage, directory: str, epoch: int) -> CheckpointStateToolset:
    """Return what the filesystem of a directory can do."""
    if _server(directory) is None:
        return NotDuplicatingCheckpointStateToolset()
    return FsCheckpointStateToolset(storage, directory, epoch)


def _server(uri: str) -> tuple[str, str] | None:
    scheme = scheme_of(uri)
    if scheme in _BY_ACCOUNT:
        return "az", urlsplit(uri).netloc
    return (_SAME_SERVER[scheme], "") if scheme in _SAME_SERVER else None
