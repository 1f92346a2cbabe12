"""
Writers of sorted tables to run files: state files, and Parquet files of canonical savepoints.

In a Parquet file, a row group is a block. It is a contiguous range of bytes, so that it is read and verified like a
block of an Arrow file. The columns are those that users read, in the order of the columns of the backend.
"""

from __future__ import annotations

import io
import uuid
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from threading import BoundedSemaphore
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.states.handles import StreamStateHandle
from airflow_provider_statecheck.exceptions import RequestLimitError, StorageError
from airflow_provider_statecheck.lazy import np, pa, parquet
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    PARTIAL,
    VALUE,
    ArrowStateSettings,
    position_names,
    single,
)
from airflow_provider_statecheck.state.arrow.run_files import (
    BLOCK_FIELDS,
    Footer,
    RunBytes,
    RunFile,
    RunFiles,
    corrupt_run_file,
)
from airflow_provider_statecheck.state.bounded_process import run_bounded
from airflow_provider_statecheck.state.keyed.expiry import timed_cells
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.nested_columns import conformed, with_elements
from airflow_provider_statecheck.storage.bounds import LARGEST_DECODED, is_bounded
from airflow_provider_statecheck.storage.snapshot_manifest import RangeReader
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

_MAGIC_SIZE = 8
_PREFIX_SIZE = 8
BlockNumbers = tuple[int, int, int, int]


class RunWriter:
    """
    Writer of sorted tables to run files.

    :param schema: Arrow schema of the rows.
    :param open_stream: Opens the stream of a new file.
    :param settings: Sizes and compression.
    :param open_file: Opens the file in a stream, by default an Arrow IPC file.
    """

    def __init__(
        self,
        schema: Any,
        state: StateSchema,
        open_stream: Callable[[], CheckpointStateOutputStream],
        settings: ArrowStateSettings,
        open_file: RunFileOpener | None = None,
    ) -> None:
        self._schema = schema
        self._state = state
        self._open_stream = open_stream
        self._settings = settings
        self._open_file = open_file or ArrowRunFile
        self._pending: Any = None
        self._file: OpenRunFile | None = None
        self.run_files: list[RunFile] = []
        """Complete files."""

    def write_all(self, tables: Iterable[Any]) -> RunFiles:
        """
        Write sorted tables in their order, and return all run files.

        :raises StorageError: if the storage fails; complete run files remain on the storage.
        """
        try:
            for table in tables:
                self._append(table)
            if self._pending is not None:
                self._write_blocks(self._pending, [0, self._pending.num_rows])
            self._close_file()
        except BaseException:
            if self._file is not None:
                self._file.abort()
            raise
        return tuple(self.run_files)

    def _append(self, table: Any) -> None:
        if table.num_rows == 0:
            return
        rows = table if self._pending is None else pa.concat_tables([self._pending, table])
        rows = (rows if rows.schema.equals(self._schema) else rows.cast(self._schema)).combine_chunks()
        starts, end = self._block_starts(rows)
        self._pending = rows.slice(end) if end < rows.num_rows else None
        self._write_blocks(rows, [*starts, end])

    def _block_starts(self, rows: Any) -> tuple[list[int], int]:
        """Return the start of each complete block, and the end of the last one. The other rows wait for more."""
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
                self._file = self._open_file(self._schema, self._open_stream(), self._settings.compression)
            self._file.write(rows.slice(start, end - start))
            if self._file.size >= self._settings.part_bytes:
                self._close_file()

    def _close_file(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            self.run_files.append(file.close(self._state))


class OpenRunFile(ABC):
    """
    Open state file. Subclasses define its format.

    :param schema: Arrow schema of the rows.
    """

    def __init__(self, schema: Any, stream: CheckpointStateOutputStream, compression: str | None) -> None:
        self._schema = schema
        self._sink = RunFileSink(stream)
        self._position_names = position_names(schema.names)
        self._firsts: list[Any] = []
        self._blocks: list[BlockNumbers] = []
        self._raw_bytes = 0
        self._deletions = 0
        self._partials = 0

    @property
    def size(self) -> int:
        """The number of bytes written."""
        return self._sink.position

    def write(self, rows: Any) -> None:
        """Write one block."""
        self._blocks.append(self._write_block(rows))
        self._firsts.append(rows.slice(0, 1).select(self._position_names))
        self._raw_bytes += rows.nbytes
        if DELETED in self._schema.names:
            self._deletions += single(rows.column(DELETED)).true_count
        if PARTIAL in self._schema.names:
            self._partials += single(rows.column(PARTIAL)).true_count

    def close(self, state: StateSchema) -> RunFile:
        """Close the file and return it as run file of its run."""
        try:
            footer = self._write_end()
        except BaseException:
            self.abort()
            raise
        handle = handle_of(self._sink.stream)
        return RunFile(
            path=self._path_of(handle),
            handle=handle,
            state=state,
            schema=self._schema,
            firsts=pa.concat_tables(self._firsts).combine_chunks(),
            blocks=np.array(self._blocks, BLOCK_FIELDS),
            raw_bytes=self._raw_bytes,
            deletions=self._deletions,
            partials=self._partials,
            footer=footer,
        )

    def abort(self) -> None:
        """Discard the file."""
        self._sink.stream.close()

    @abstractmethod
    def _write_block(self, rows: Any) -> BlockNumbers:
        """Write a block, and return its fields of :data:`BLOCK_FIELDS`."""

    @abstractmethod
    def _write_end(self) -> Footer | None:
        """Write what follows the last block."""

    @abstractmethod
    def _path_of(self, handle: StreamStateHandle) -> str:
        """Return the name of the file in the handle of a snapshot."""


def handle_of(stream: CheckpointStateOutputStream) -> StreamStateHandle:
    """
    Close a stream with written bytes and return their handle.

    :raises StorageError: if the storage fails, or returns no handle.
    """
    handle = stream.close_and_get_handle()
    if handle is None:
        raise StorageError("Expected a handle of a state file, found none; the stream of the storage returned no file.")
    return handle


RunFileOpener = Callable[[Any, CheckpointStateOutputStream, str | None], OpenRunFile]


class ArrowRunFile(OpenRunFile):
    """Arrow IPC file, in which each record batch is a block."""

    def __init__(self, schema: Any, stream: CheckpointStateOutputStream, compression: str | None) -> None:
        super().__init__(schema, stream, compression)
        options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
        self._writer = pa.ipc.new_file(pa.PythonFile(self._sink, mode="w"), schema, options=options)

    def _write_block(self, rows: Any) -> BlockNumbers:
        self._writer.write_batch(rows.to_batches()[0])
        written = self._sink.store()
        # Arrow writes the header of the file with the first block.
        header = _header_length(written) if not self._blocks else 0
        start = self._sink.position - len(written) + header
        return start, len(written) - header, rows.num_rows, zlib.crc32(memoryview(written)[header:])

    def _write_end(self) -> None:
        self._writer.close()
        self._sink.store()

    def _path_of(self, handle: StreamStateHandle) -> str:
        return f"{uuid.uuid4().hex}.arrow"


def _header_length(written: bytes) -> int:
    """Return the size of the magic bytes and the schema, which precede the first block."""
    return _MAGIC_SIZE + _PREFIX_SIZE + int.from_bytes(written[_MAGIC_SIZE + 4 : _MAGIC_SIZE + _PREFIX_SIZE], "little")


class RunFileSink(io.RawIOBase):
    """File object for Arrow, which writes a block in many pieces. Closing it leaves the stream open."""

    def __init__(self, stream: CheckpointStateOutputStream) -> None:
        self.stream = stream
        self.position = 0
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        """Hold a piece until ``store`` is called."""
        piece = bytes(data)
        self._pieces.append(piece)
        self.position += len(piece)
        return len(piece)

    def store(self) -> bytes:
        """Write the pieces since the last call to the stream at once, and return their bytes."""
        written, self._pieces = b"".join(self._pieces), []
        self.stream.write(written)
        return written

    def tell(self) -> int:
        return self.position

    def writable(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of one file."""

    metadata: Any
    """Metadata in the footer of the file."""
    numbers: dict[int, int]
    """Number of each row group, by its offset in the file."""

    @classmethod
    def of(cls, run_file: RunFile, files: RunBytes) -> RowGroups:
        """
        Read the footer of a run file.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises CorruptStateError: if the footer is corrupt.
        :raises StorageError: if the storage fails.
        """
        assert run_file.footer is not None  # noqa: S101 - the run file is a Parquet file
        offset, length, checksum = run_file.footer
        (footer,) = files.read(run_file.handle, [(offset, length)])
        if len(footer) != length or zlib.crc32(footer) != checksum:
            raise corrupt_run_file(run_file, "the Parquet footer", "bytes that do not match the checksum")
        try:
            metadata = parquet.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowException, OSError) as error:
            raise corrupt_run_file(run_file, "the Parquet footer", f"other data ({error})") from error
        return cls(metadata, {_offset_of(metadata.row_group(n)): n for n in range(metadata.num_row_groups)})

    def rows(self, run_file: RunFile, block: int, data: memoryview | bytes) -> Any:
        """
        Return the rows of a block as a table with the columns of the backend.

        :param data: Bytes of the row group.
        :raises RequestLimitError: if this process decodes state of any job, and the rows are too large for it, or if
            too many are decoded at once.
        """
        offset = int(run_file.offsets[block])
        group = (self.metadata, self.numbers[offset], offset)
        read = read_elsewhere if is_bounded() else _read_row_group
        return _in_layout(run_file, read(*group, data))


def _read_row_group(metadata: Any, number: int, offset: int, data: memoryview | bytes) -> Any:
    # Of the file, only the bytes of this row group are known.
    known = memoryview(data)
    window = RangeReader(lambda start, end: known[start - offset : end - offset], offset + len(known))
    file = parquet.ParquetFile(pa.PythonFile(window, mode="r"), metadata=metadata)
    return file.read_row_group(number, use_threads=False)


ELSEWHERE: Final = BoundedSemaphore(2)
_SECONDS: Final = 30
WAIT_SECONDS: Final = 2.0
"""Time for which a thread of a server waits for its turn, as the reads of other jobs need the thread."""


def read_elsewhere(metadata: Any, number: int, offset: int, data: memoryview | bytes) -> Any:
    """
    Return the rows of a row group, decoded in a process with bounded memory.

    :raises RequestLimitError: if too many row groups are being decoded.
    """
    if not ELSEWHERE.acquire(timeout=WAIT_SECONDS):
        raise RequestLimitError(
            "Expected few reads of canonical savepoints at once, found more than this server decodes; send the "
            "request again.",
            retry_after_seconds=WAIT_SECONDS,
        )
    try:
        reply = run_bounded(_stream_of_row_group, metadata, number, offset, bytes(data), seconds=_SECONDS)
    finally:
        ELSEWHERE.release()
    table = pa.ipc.open_stream(reply).read_all()
    table.validate(full=True)
    return table


def _stream_of_row_group(metadata: Any, number: int, offset: int, data: bytes) -> bytes:
    try:
        table = _read_row_group(metadata, number, offset, data)
    except (pa.ArrowException, OSError, LookupError) as error:
        if isinstance(error, MemoryError):
            raise
        return b""  # which is no stream either
    if table.nbytes > LARGEST_DECODED:
        raise MemoryError
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _offset_of(row_group: Any) -> int:
    column = row_group.column(0)
    return int(column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset)


def _in_layout(run_file: RunFile, table: Any) -> Any:
    columns = []
    for index, field in enumerate(run_file.schema):
        column = single(table.column(index))
        is_timed = field.name == VALUE and run_file.state.expires
        columns.append(
            _timed(column, single(table.column(index + 1)), field.type)
            if is_timed
            else conformed(column, field.type, field.name)
        )
    return pa.table(columns, schema=run_file.schema)


def _timed(values: Any, times: Any, wanted: Any) -> Any:
    if pa.types.is_list(wanted):
        elements = _timed(values.flatten(), times.flatten(), wanted.value_type)
        return with_elements(values, elements)
    cells = timed_cells(conformed(values, wanted.field(0).type, VALUE), _milliseconds(times))
    return cells if cells.type == wanted else cells.cast(wanted)


def _milliseconds(times: Any) -> Any:
    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())
