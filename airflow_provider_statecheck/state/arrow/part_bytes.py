"""Reads pieces of state files: local ones in place, those of object stores a few large ranges at a time."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of

_OPEN_FILES = 64
_GAP = 64 << 10
"""So many bytes that nobody wants are read along rather than asked for two ranges."""
_LONGEST = 8 << 20
_PARALLEL = 4

Piece = tuple[int, int]
"""Where bytes begin and how many they are."""


class PartBytes:
    """
    The bytes of files by handle; several threads may ask.

    :param storage: Where the files are.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._files = _LocalFiles()

    def read(self, handle: StreamStateHandle, pieces: Sequence[Piece]) -> list[memoryview]:
        """
        Return pieces of a file, which ascend; those of a file that is too short are short.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the storage fails.
        """
        ranges = _coalesced(pieces)
        found = self._read_ranges(handle, [(start, length) for start, length, _ in ranges])
        return [
            memoryview(data)[offset - start : offset - start + length]
            for data, (start, _, members) in zip(found, ranges, strict=True)
            for offset, length in members
        ]

    def close(self) -> None:
        """Close the local files."""
        self._files.close()

    def _read_ranges(self, handle: StreamStateHandle, ranges: Sequence[Piece]) -> list[bytes]:
        if isinstance(handle, ByteStreamStateHandle):
            return [handle.data[start : start + length] for start, length in ranges]
        uri, begin = _place(handle)
        if scheme_of(uri) in LOCAL_SCHEMES:
            self._storage.allowed.require(uri)
            return [self._files.read(uri, begin + start, length) for start, length in ranges]
        if len(ranges) == 1:
            return [self._read_remote(uri, begin, piece) for piece in ranges]
        with ThreadPoolExecutor(min(_PARALLEL, len(ranges))) as pool:
            return list(pool.map(lambda piece: self._read_remote(uri, begin, piece), ranges))

    def _read_remote(self, uri: str, begin: int, piece: Piece) -> bytes:
        start, length = piece
        return self._storage.read_range(uri, begin + start, begin + start + length)


class _LocalFiles:
    """Local files that stay open; reading them in place keeps memory free of what a mapping would hold."""

    def __init__(self) -> None:
        self._open: OrderedDict[str, int] = OrderedDict()
        self._lock = Lock()

    def read(self, uri: str, start: int, length: int) -> bytes:
        """Return bytes of a file."""
        try:
            with self._lock:
                return os.pread(self._descriptor(uri), length, start)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"Expected a state file at {redact(uri)}, found none; it was deleted, so restore from another checkpoint.",
                uri=redact(uri),
            ) from error
        except OSError as error:
            raise StorageError(f"The state file {redact(uri)} cannot be read: {error}", uri=redact(uri)) from error

    def close(self) -> None:
        """Close all."""
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1])

    def _descriptor(self, uri: str) -> int:
        if uri in self._open:
            self._open.move_to_end(uri)
        else:
            self._open[uri] = os.open(uri.partition("://")[2], os.O_RDONLY)
            if len(self._open) > _OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
        return self._open[uri]


def _place(handle: StreamStateHandle) -> tuple[str, int]:
    if isinstance(handle, FileStateHandle):
        return handle.uri, 0
    if isinstance(handle, SegmentFileStateHandle):
        return handle.uri, handle.start
    raise InvalidConfigurationError(
        f"Expected state that can be read, found {type(handle).__name__}; replace placeholders by what they stand for."
    )


def _coalesced(pieces: Sequence[Piece]) -> list[tuple[int, int, list[Piece]]]:
    """Return ranges with the pieces that lie in each."""
    groups: list[list[Piece]] = []
    for offset, length in pieces:
        last = groups[-1] if groups else []
        if last and offset - sum(last[-1]) <= _GAP and offset + length - last[0][0] <= _LONGEST:
            last.append((offset, length))
        else:
            groups.append([(offset, length)])
    return [(members[0][0], sum(members[-1]) - members[0][0], members) for members in groups]
