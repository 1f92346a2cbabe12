"""What state handles lead to: reading it, whole or in parts, and deleting it."""

from __future__ import annotations

import hashlib
import io
import os
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact

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
