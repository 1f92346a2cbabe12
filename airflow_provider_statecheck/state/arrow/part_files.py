"""
State files: format, writer and range reads.

A part is an Arrow IPC file of sorted rows. Each record batch is a block, which belongs to one key group and is read on
its own.
"""

from __future__ import annotations

import os
import uuid
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import pairwise
from threading import Lock
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StorageError
from airflow_provider_statecheck.state.arrow.layout import DELETED, KEY_GROUP, NAMESPACE, position_names, single
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.waiting import about_to_wait
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, redact, scheme_of
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

_MAX_OPEN_FILES = 64
_MAX_GAP = 64 << 10
"""Maximum number of unused bytes between two pieces that one request reads."""
_MAX_RANGE = 8 << 20
_MAX_REQUESTS = 4
_MAGIC_SIZE = 8
_PREFIX_SIZE = 8


@dataclass(frozen=True, kw_only=True)
class Part:
    """State file, with an index of the blocks to read."""

    path: str
    """Name of the file in the handle of a snapshot, unique among all subtasks."""
    handle: StreamStateHandle
    state: StateSchema
    """Schema with which the rows were written."""
    schema: Any
    """Arrow schema of the file."""
    firsts: Any
    """Table with the sort key of the first row of each block."""
    offsets: Any
    """Offset of each block in the file, as a numpy array."""
    lengths: Any
    """Size of each block in bytes."""
    rows: Any
    """Number of rows of each block."""
    checksums: Any
    """CRC-32 of each block."""
    raw_bytes: int
    """Size of the rows in memory, in bytes."""
    deletions: int
    """Number of tombstones."""

    @property
    def key_groups(self) -> Any:
        """Return the key group of each block, as a numpy array."""
        return self.firsts.column(0).to_numpy()

    @property
    def has_namespaces(self) -> bool:
        """Return whether the rows have a namespace column."""
        return NAMESPACE in self.schema.names

    @property
    def has_deletions(self) -> bool:
        """Return whether the rows have a tombstone column."""
        return DELETED in self.schema.names

    def within(self, owned: KeyGroupRange) -> Part | None:
        """Return this part with only the blocks of a range of key groups, or ``None`` if it has none."""
        import numpy as np
        import pyarrow as pa

        groups = self.key_groups
        chosen = np.flatnonzero((groups >= owned.start) & (groups <= owned.end))
        if len(chosen) == len(groups):
            return self
        if len(chosen) == 0:
            return None
        share = float(self.rows[chosen].sum()) / float(self.rows.sum())
        return replace(
            self,
            firsts=self.firsts.take(pa.array(chosen)),
            offsets=self.offsets[chosen],
            lengths=self.lengths[chosen],
            rows=self.rows[chosen],
            checksums=self.checksums[chosen],
            raw_bytes=int(self.raw_bytes * share),
            deletions=-int(-self.deletions * share // 1),
        )


Parts = tuple[Part, ...]
"""Files of one run, in ascending order."""
Piece = tuple[int, int]
"""Offset and length of bytes in a file."""


class PartBytes:
    """
    Range reads of state files, safe for threads.

    :param storage: Storage of the files.
    :param files: Open local files, by default separate ones.
    """

    def __init__(self, storage: CheckpointStorage, files: LocalFiles | None = None) -> None:
        self._storage = storage
        self._files = LocalFiles() if files is None else files

    def read(self, handle: StreamStateHandle, pieces: Sequence[Piece]) -> list[memoryview]:
        """
        Return pieces of a file in ascending order. Pieces beyond the end of the file are shorter.

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

    def require_allowed(self, handle: StreamStateHandle) -> None:
        """
        Require that the storage may read a file, which a cache of its blocks does not check.

        :raises LocationNotAllowedError: if the file is not in an allowed location.
        """
        if not isinstance(handle, ByteStreamStateHandle):
            self._storage.allowed.require(_location(handle)[0])

    def close(self) -> None:
        """Close the open local files."""
        self._files.close()

    def _read_ranges(self, handle: StreamStateHandle, ranges: Sequence[Piece]) -> list[bytes]:
        if isinstance(handle, ByteStreamStateHandle):
            return [handle.data[start : start + length] for start, length in ranges]
        about_to_wait()
        uri, begin = _location(handle)
        if scheme_of(uri) in LOCAL_SCHEMES:
            self._storage.allowed.require(uri)
            return [self._files.read(uri, begin + start, length) for start, length in ranges]
        if len(ranges) <= 1:
            return [self._read_remote(uri, begin, piece) for piece in ranges]
        with ThreadPoolExecutor(min(_MAX_REQUESTS, len(ranges))) as pool:
            return list(pool.map(lambda piece: self._read_remote(uri, begin, piece), ranges))

    def _read_remote(self, uri: str, begin: int, piece: Piece) -> bytes:
        start, length = piece
        return self._storage.read_range(uri, begin + start, begin + start + length)


class PartWriter:
    """
    Writer of sorted tables to parts.

    :param schema: Arrow schema of the rows.
    :param state: Schema of the state.
    :param open_stream: Opens the stream of a new file.
    :param settings: Sizes and compression.
    """

    def __init__(
        self,
        schema: Any,
        state: StateSchema,
        open_stream: Callable[[], CheckpointStateOutputStream],
        settings: ArrowStateSettings,
    ) -> None:
        self._schema = schema
        self._state = state
        self._open_stream = open_stream
        self._settings = settings
        self._pending: Any = None
        self._file: _PartFile | None = None
        self._parts: list[Part] = []

    @property
    def parts(self) -> Parts:
        """Return the complete parts."""
        return tuple(self._parts)

    def write_all(self, tables: Iterable[Any]) -> Parts:
        """
        Write tables and return all parts.

        :raises StorageError: if the storage fails; complete parts remain on the storage.
        """
        for table in tables:
            self.write(table)
        return self.finish()

    def write(self, table: Any) -> None:
        """
        Append sorted rows that follow all earlier rows.

        :raises StorageError: if the storage fails.
        """
        import pyarrow as pa

        if table.num_rows == 0:
            return
        rows = table if self._pending is None else pa.concat_tables([self._pending, table])
        rows = (rows if rows.schema.equals(self._schema) else rows.cast(self._schema)).combine_chunks()
        starts, end = self._block_starts(rows)
        self._pending = rows.slice(end) if end < rows.num_rows else None
        self._write_blocks(rows, [*starts, end])

    def finish(self) -> Parts:
        """
        Write the buffered rows and return all parts.

        :raises StorageError: if the storage fails.
        """
        if self._pending is not None:
            rows, self._pending = self._pending, None
            self._write_blocks(rows, [0, rows.num_rows])
        self._close_file()
        return self.parts

    def abort(self) -> None:
        """Discard the open file."""
        if self._file is not None:
            self._file.abort()
            self._file = None

    def _block_starts(self, rows: Any) -> tuple[list[int], int]:
        """Return the start of each complete block, and the end of the last one. The other rows wait for more."""
        import numpy as np

        groups = single(rows.column(KEY_GROUP)).to_numpy()
        limit = self._rows_per_block(rows)
        edges = [0, *(np.flatnonzero(np.diff(groups)) + 1).tolist()]
        starts = [s for left, right in pairwise(edges) for s in range(left, right, limit)]
        full = range(edges[-1], rows.num_rows - limit + 1, limit)
        return [*starts, *full], full[-1] + limit if full else edges[-1]

    def _rows_per_block(self, rows: Any) -> int:
        width: int = max(1, rows.nbytes // max(1, rows.num_rows))
        return max(1, min(self._settings.block_rows, self._settings.block_bytes // int(width)))

    def _write_blocks(self, rows: Any, edges: list[int]) -> None:
        for start, end in pairwise(edges):
            if self._file is None:
                self._file = _PartFile(self._schema, self._open_stream(), self._settings.compression)
            self._file.write(rows.slice(start, end - start))
            if self._file.size >= self._settings.part_bytes:
                self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self._parts.append(file.close(self._state))


class LocalFiles:
    """
    LRU cache of open local files, safe for threads. ``pread`` avoids the resident memory of a mapping.

    :param limit: Maximum number of open files.
    """

    def __init__(self, limit: int = _MAX_OPEN_FILES) -> None:
        self._limit = limit
        self._open: OrderedDict[str, _OpenFile] = OrderedDict()
        self._lock = Lock()

    def read(self, uri: str, start: int, length: int) -> bytes:
        """
        Return bytes of a file.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises StorageError: if the file cannot be read.
        """
        try:
            file = self._file(uri)
            return os.pread(file.descriptor, length, start)
        except FileNotFoundError as error:
            raise CheckpointNotFoundError(
                f"Expected a state file at {redact(uri)}, found none; restore from another checkpoint.",
                uri=redact(uri),
            ) from error
        except OSError as error:
            raise StorageError(
                f"The state file {redact(uri)} cannot be read: {error}; check the file and its permissions.",
                uri=redact(uri),
            ) from error

    def close(self) -> None:
        """Close all files."""
        with self._lock:
            self._open.clear()

    def _file(self, uri: str) -> _OpenFile:
        with self._lock:
            if uri in self._open:
                self._open.move_to_end(uri)
                return self._open[uri]
        # Not under the lock: a network file system that hangs must not block the readers of open files.
        opened = _OpenFile(os.open(uri.partition("://")[2], os.O_RDONLY))
        with self._lock:
            file = self._open.setdefault(uri, opened)
            self._open.move_to_end(uri)
            if len(self._open) > self._limit:
                self._open.popitem(last=False)
            return file


class _OpenFile:
    """File descriptor that closes with the last reference: a thread may still read a file that another one evicts."""

    __slots__ = ("descriptor",)

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __del__(self) -> None:
        os.close(self.descriptor)


def _location(handle: FileStateHandle | SegmentFileStateHandle) -> tuple[str, int]:
    if isinstance(handle, FileStateHandle):
        return handle.uri, 0
    return handle.uri, handle.start


def _coalesced(pieces: Sequence[Piece]) -> list[tuple[int, int, list[Piece]]]:
    """Group pieces into ranges for one request each."""
    groups: list[list[Piece]] = []
    for offset, length in pieces:
        last = groups[-1] if groups else []
        if last and offset - sum(last[-1]) <= _MAX_GAP and offset + length - last[0][0] <= _MAX_RANGE:
            last.append((offset, length))
        else:
            groups.append([(offset, length)])
    return [(members[0][0], sum(members[-1]) - members[0][0], members) for members in groups]


class _PartFile:
    """Open state file."""

    def __init__(self, schema: Any, stream: CheckpointStateOutputStream, compression: str | None) -> None:
        import pyarrow as pa

        self._schema = schema
        self._sink = _Sink(stream)
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema, options=options)
        self._position_names = position_names(schema.names)
        self._firsts: list[Any] = []
        self._blocks: list[tuple[int, int, int, int]] = []
        self._raw_bytes = 0
        self._deletions = 0

    @property
    def size(self) -> int:
        """Return the number of bytes written."""
        return self._sink.position

    def write(self, rows: Any) -> None:
        """Write one block."""
        batch = rows.to_batches()[0]
        start = self._sink.begin_block()
        self._writer.write_batch(batch)
        length = self._sink.position - start
        # Arrow writes the header of the file with the first block.
        header = self._sink.header_length() if not self._blocks else 0
        checksum = self._sink.checksum if not header else self._sink.checksum_from(header)
        self._blocks.append((start + header, length - header, rows.num_rows, checksum))
        self._firsts.append(rows.slice(0, 1).select(self._position_names))
        self._raw_bytes += rows.nbytes
        if DELETED in self._schema.names:
            self._deletions += single(rows.column(DELETED)).true_count

    def close(self, state: StateSchema) -> Part:
        """Close the file and return its part."""
        import numpy as np
        import pyarrow as pa

        try:
            self._writer.close()
        except BaseException:
            self.abort()
            raise
        handle = self._sink.stream.close_and_get_handle()
        if handle is None:
            raise StorageError(
                "Expected a handle of the state file, found none; the stream of the storage returned no file."
            )
        offsets, lengths, rows, checksums = zip(*self._blocks, strict=True)
        return Part(
            path=f"{uuid.uuid4().hex}.arrow",
            handle=handle,
            state=state,
            schema=self._schema,
            firsts=pa.concat_tables(self._firsts).combine_chunks(),
            offsets=np.array(offsets, np.int64),
            lengths=np.array(lengths, np.int32),
            rows=np.array(rows, np.int32),
            checksums=np.array(checksums, np.uint32),
            raw_bytes=self._raw_bytes,
            deletions=self._deletions,
        )

    def abort(self) -> None:
        """Discard the file."""
        self._sink.stream.close()


class _Sink:
    """File object for Arrow that counts bytes and computes the checksum of a block."""

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self.stream = stream
        self.position = 0
        self.closed = False
        self.checksum = 0
        self._first: list[bytes] | None = []

    def begin_block(self) -> int:
        """Start a block and return its offset."""
        if self.position:
            self._first = None
        self.checksum = 0
        return self.position

    def write(self, data: Any) -> int:
        """Write bytes to the stream."""
        data = bytes(data)
        self.stream.write(data)
        self.position += len(data)
        if self._first is not None:
            self._first.append(data)
        else:
            self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def header_length(self) -> int:
        """Return the size of the magic bytes and the schema, which precede the first block."""
        written = b"".join(self._first or ())
        return (
            _MAGIC_SIZE + _PREFIX_SIZE + int.from_bytes(written[_MAGIC_SIZE + 4 : _MAGIC_SIZE + _PREFIX_SIZE], "little")
        )

    def checksum_from(self, start: int) -> int:
        """Return the checksum of the first write, starting at an offset."""
        return zlib.crc32(b"".join(self._first or ())[start:])

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.position

    def flush(self) -> None:
        """Do nothing, because the stream has its own buffer."""

    def close(self) -> None:
        """Mark the file object as closed; the stream stays open."""
        self.closed = True

    def readable(self) -> bool:
        """Return ``False``."""
        return False

    def writable(self) -> bool:
        """Return ``True``."""
        return True

    def seekable(self) -> bool:
        """Return ``False``."""
        return False
