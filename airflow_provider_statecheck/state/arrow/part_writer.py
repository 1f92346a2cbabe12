"""Writes rows in order to files of limited size, in blocks that have one key group each."""

from __future__ import annotations

import uuid
import zlib
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.arrow.layout import DELETED, KEY_GROUP, position_names, single
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream

_MAGIC = 8
_PREFIX = 8


class PartWriter:
    """
    Takes tables in order and gives parts; used once.

    :param schema: The Arrow schema of the rows.
    :param state: As what they are written.
    :param open_stream: Opens the stream of a new file.
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
        """Return the parts that are on storage by now."""
        return tuple(self._parts)

    def write_all(self, tables: Iterable[Any]) -> Parts:
        """
        Write tables and return all parts.

        :raises StorageError: if the storage fails; parts that were written before are still there.
        """
        for table in tables:
            self.write(table)
        return self.finish()

    def write(self, table: Any) -> None:
        """
        Add rows that are behind all that were added before.

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
        Write what is left and return all parts.

        :raises StorageError: if the storage fails.
        """
        if self._pending is not None:
            rows, self._pending = self._pending, None
            self._write_blocks(rows, [0, rows.num_rows])
        self._close_file()
        return self.parts

    def abort(self) -> None:
        """Give up the file that is open."""
        if self._file is not None:
            self._file.abort()
            self._file = None

    def _block_starts(self, rows: Any) -> tuple[list[int], int]:
        """Return where blocks begin, and where the last of them ends: what may still grow waits for more rows."""
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


class _PartFile:
    """One file that is being written."""

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
        """Return how many bytes were written."""
        return self._sink.position

    def write(self, rows: Any) -> None:
        """Add one block."""
        batch = rows.to_batches()[0]
        start = self._sink.begin_block()
        self._writer.write_batch(batch)
        length = self._sink.position - start
        # The header goes out with the first block.
        header = self._sink.header_length() if not self._blocks else 0
        checksum = self._sink.checksum if not header else self._sink.checksum_from(header)
        self._blocks.append((start + header, length - header, rows.num_rows, checksum))
        self._firsts.append(rows.slice(0, 1).select(self._position_names))
        self._raw_bytes += rows.nbytes
        if DELETED in self._schema.names:
            self._deletions += single(rows.column(DELETED)).true_count

    def close(self, state: StateSchema) -> Part:
        """Make the file durable and return it as a part."""
        import numpy as np
        import pyarrow as pa

        try:
            self._writer.close()
        except BaseException:
            self.abort()
            raise
        handle = self._sink.stream.close_and_get_handle()
        if handle is None:
            raise StorageError("Expected a handle of state that was written, found none.")
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
        """Give the file up."""
        self._sink.stream.close()


class _Sink:
    """What Arrow writes a file to: counts bytes, and sums up those of a block."""

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self.stream = stream
        self.position = 0
        self.closed = False
        self.checksum = 0
        self._first: list[bytes] | None = []

    def begin_block(self) -> int:
        """Return where the next block begins."""
        if self.position:
            self._first = None
        self.checksum = 0
        return self.position

    def write(self, data: Any) -> int:
        """Pass bytes on."""
        data = bytes(data)
        self.stream.write(data)
        self.position += len(data)
        if self._first is not None:
            self._first.append(data)
        else:
            self.checksum = zlib.crc32(data, self.checksum)
        return len(data)

    def header_length(self) -> int:
        """Return how long the magic number and the schema are, which precede the first block."""
        written = b"".join(self._first or ())
        return _MAGIC + _PREFIX + int.from_bytes(written[_MAGIC + 4 : _MAGIC + _PREFIX], "little")

    def checksum_from(self, start: int) -> int:
        """Return the checksum of what was written first, without its beginning."""
        return zlib.crc32(b"".join(self._first or ())[start:])

    def tell(self) -> int:
        """Return the position."""
        return self.position

    def flush(self) -> None:
        """Do nothing: streams have a buffer of their own."""

    def close(self) -> None:
        """Take note that Arrow is done."""
        self.closed = True

    def readable(self) -> bool:
        """Tell that it cannot be read."""
        return False

    def writable(self) -> bool:
        """Tell that it can be written."""
        return True

    def seekable(self) -> bool:
        """Tell that it cannot be sought."""
        return False
