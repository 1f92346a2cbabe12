"""State files of handles: verified reads, range reads, deletion and server-side copies."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol
from urllib.parse import urlsplit

from airflow_provider_statecheck.checkpoint.layout import epoch_name
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact, scheme_of

_BUFFER = 256 * 1024
_SAME_SERVER = {"s3": "s3", "s3a": "s3", "gs": "gs", "gcs": "gs", "memory": "memory"}
_BY_ACCOUNT = frozenset({"abfs", "abfss", "az"})


def read_state(storage: CheckpointStorage, handle: StreamStateHandle) -> bytes:
    """
    Return all bytes of a handle and verify their length and digest.

    :raises CheckpointNotFoundError: if the file is missing.
    :raises CorruptStateError: if the length or the digest differs from the handle.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return handle.data
    if isinstance(handle, FileStateHandle):
        return _verified(storage.read_sized(handle.uri, handle.size), handle.uri, handle.size, handle.sha256)
    data = storage.read_range(handle.uri, handle.start, handle.start + handle.length)
    return _verified(data, handle.uri, handle.length, handle.sha256)


def open_input_stream(storage: CheckpointStorage, handle: StreamStateHandle) -> io.BufferedIOBase:
    """
    Open a seekable stream that fetches ranges on demand, without verifying the digest.

    :raises CheckpointNotFoundError: on a read, if the file is missing.
    :raises CorruptStateError: on a read, if the file is shorter than the handle states.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return io.BytesIO(handle.data)
    return io.BufferedReader(_RangeReader(storage, *_extent(handle)), _BUFFER)


def discard_state(storage: CheckpointStorage, handle: StreamStateHandle) -> None:
    """
    Delete the file of a handle, but not its directory; a missing file is success.

    Inline state has no file. The file of a segment is deleted with its last referenced segment, see ``discarding``.

    :raises StorageError: if the file may still exist.
    """
    if isinstance(handle, FileStateHandle):
        storage.delete_file(handle.uri)


class _RangeReader(io.RawIOBase):
    """Raw stream over a byte range of a file."""

    def __init__(self, storage: CheckpointStorage, uri: str, start: int, length: int) -> None:
        self._storage = storage
        self._uri = uri
        self._start = start
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        """Return ``True``."""
        return True

    def seekable(self) -> bool:
        """Return ``True``."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Set and return the position in the range."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError(f"Expected a position of at least 0, found {origin + offset}.")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position in the range."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Fill the buffer and return the number of bytes read."""
        count = max(0, min(len(buffer), self._length - self._position))
        if count == 0:
            return 0
        begin = self._start + self._position
        data = self._storage.read_range(self._uri, begin, begin + count)
        if len(data) != count:
            raise _corrupt(self._uri, f"{count} bytes from offset {begin}", f"{len(data)}")
        buffer[:count] = data
        self._position += count
        return count


def _extent(handle: FileStateHandle | SegmentFileStateHandle) -> tuple[str, int, int]:
    if isinstance(handle, FileStateHandle):
        return handle.uri, 0, handle.size
    return handle.uri, handle.start, handle.length


def _verified(data: bytes, uri: str, length: int, sha256: str) -> bytes:
    if len(data) != length:
        raise _corrupt(uri, f"{length} bytes", f"{len(data)}")
    found = hashlib.sha256(data).hexdigest()
    if sha256 and found != sha256:
        raise _corrupt(uri, f"sha256 {sha256[:12]}…", f"{found[:12]}…")
    return data


def _corrupt(uri: str, expected: str, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"Expected {expected} in {redact(uri)}, found {found}; the file was changed after it was written.",
        uri=redact(uri),
    )


class CheckpointStateToolset(Protocol):
    """Operations on task-owned state."""

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Return whether the storage server can copy the state of a handle."""
        ...

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Copy state on the storage server and return the copies in the same order.

        :raises InvalidConfigurationError: if a handle cannot be copied; nothing is copied.
        :raises StorageError: if the storage fails; all copies are deleted.
        """
        ...


class FsCheckpointStateToolset(CheckpointStateToolset):
    """
    Toolset for files; only some filesystems copy on their servers.

    :param storage: Storage of the copies.
    :param directory: Directory of the copies; ``None`` for a storage without files, which copies nothing.
    :param epoch: Epoch of the writing attempt.
    """

    def __init__(self, storage: CheckpointStorage, directory: str | None, epoch: int) -> None:
        self._storage = storage
        self._directory = directory
        self._epoch = epoch

    def can_fast_duplicate(self, handle: StreamStateHandle) -> bool:
        """Return whether the state is a whole file on the same servers."""
        server = None if self._directory is None else _server(self._directory)
        return server is not None and isinstance(handle, FileStateHandle) and _server(handle.uri) == server

    def duplicate(self, handles: Sequence[StreamStateHandle]) -> list[StreamStateHandle]:
        """
        Copy files and return the copies in the same order.

        :raises InvalidConfigurationError: if a handle is not a file on the same servers; nothing is copied.
        :raises StorageError: if the storage fails; all copies are deleted.
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
            f"Expected a state file on the same servers, found {type(handle).__name__}; write the state again, and check "
            f"can_fast_duplicate first."
        )

    def _delete(self, copies: Sequence[FileStateHandle]) -> None:
        for copy in copies:
            with contextlib.suppress(StateCheckError):
                self._storage.delete_file(copy.uri)


def _server(uri: str) -> tuple[str, str] | None:
    scheme = scheme_of(uri)
    if scheme in _BY_ACCOUNT:
        return "az", urlsplit(uri).netloc
    return (_SAME_SERVER[scheme], "") if scheme in _SAME_SERVER else None
