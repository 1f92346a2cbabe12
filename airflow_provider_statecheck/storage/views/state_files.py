"""Files of state handles: reading, deleting and copying without reading."""

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


def read_state(storage: CheckpointStorage, handle: StreamStateHandle) -> bytes:
    """
    Return all bytes of a handle, if they are what was written.

    :raises InvalidConfigurationError: for a placeholder.
    :raises CheckpointNotFoundError: if the file is missing.
    :raises CorruptStateError: if there are fewer bytes, or others.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return handle.data
    if isinstance(handle, FileStateHandle):
        return _verified(storage.read_sized(handle.uri, handle.size), handle.uri, handle.size, handle.sha256)
    if isinstance(handle, SegmentFileStateHandle):
        data = storage.read_range(handle.uri, handle.start, handle.start + handle.length)
        return _verified(data, handle.uri, handle.length, handle.sha256)
    raise _unreadable(handle)


def open_input_stream(storage: CheckpointStorage, handle: StreamStateHandle) -> io.BufferedIOBase:
    """
    Open the bytes of a handle for reading and seeking; what is not read is not fetched, so nothing is verified.

    :raises InvalidConfigurationError: for a placeholder.
    :raises CheckpointNotFoundError: while reading, if the file is missing.
    :raises CorruptStateError: while reading, if there are fewer bytes than the handle says.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return io.BytesIO(handle.data)
    return io.BufferedReader(_RangeReader(storage, *_extent(handle)), _BUFFER)


def discard_state(storage: CheckpointStorage, handle: StreamStateHandle) -> None:
    """
    Delete the file of a handle, and nothing around it; a missing one is success.

    What travels in its handle has no file, and a segment's file belongs to the file merging.

    :raises StorageError: if it may still be there.
    """
    if isinstance(handle, FileStateHandle):
        storage.delete_file(handle.uri)


class _RangeReader(io.RawIOBase):
    """Part of a file."""

    def __init__(self, storage: CheckpointStorage, uri: str, start: int, length: int) -> None:
        self._storage = storage
        self._uri = uri
        self._start = start
        self._length = length
        self._position = 0

    def readable(self) -> bool:
        """Tell that it can be read."""
        return True

    def seekable(self) -> bool:
        """Tell that it can be sought."""
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go to a position."""
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._length}[whence]
        if origin + offset < 0:
            raise ValueError(f"Expected a position of at least 0, found {origin + offset}.")
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position."""
        return self._position

    def readinto(self, buffer: Any) -> int:
        """Read what fits, and report a file that is too short."""
        count = max(0, min(len(buffer), self._length - self._position))
        if count == 0:
            return 0
        begin = self._start + self._position
        data = self._storage.read_range(self._uri, begin, begin + count)
        if len(data) != count:
            raise _corrupt(self._uri, f"{count} bytes from {begin} on", f"{len(data)}")
        buffer[:count] = data
        self._position += count
        return count


def _extent(handle: StreamStateHandle) -> tuple[str, int, int]:
    if isinstance(handle, FileStateHandle):
        return handle.uri, 0, handle.size
    if isinstance(handle, SegmentFileStateHandle):
        return handle.uri, handle.start, handle.length
    raise _unreadable(handle)


def _unreadable(handle: StreamStateHandle) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected state that can be read, found {type(handle).__name__}; replace placeholders by what they stand for."
    )


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
