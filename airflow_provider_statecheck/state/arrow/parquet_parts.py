"""
Parquet files of canonical savepoints as parts of a run.

A row group is a block. It is a contiguous range of bytes, so that it is read and verified like a block of an Arrow file.
The columns are those that users read, in the order of the columns of the backend.
"""

from __future__ import annotations

import io
import os
import zlib
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.arrow.layout import VALUE, single
from airflow_provider_statecheck.state.arrow.part_files import Part, PartBytes
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements
from airflow_provider_statecheck.state.serializers.portable_types import conformed


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Row groups of one file."""

    metadata: Any
    """Metadata in the footer of the file."""
    numbers: dict[int, int]
    """Number of each row group, by its offset in the file."""

    @classmethod
    def of(cls, part: Part, files: PartBytes) -> RowGroups:
        """
        Read the footer of a part.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises CorruptStateError: if the footer is corrupt.
        :raises StorageError: if the storage fails.
        """
        import pyarrow as pa
        from pyarrow import parquet

        assert part.footer is not None  # noqa: S101 - the part is a Parquet file
        offset, length, checksum = part.footer
        (footer,) = files.read(part.handle, [(offset, length)])
        if len(footer) != length or zlib.crc32(footer) != checksum:
            raise _corrupt_footer(part, "bytes that do not match the checksum")
        try:
            metadata = parquet.read_metadata(pa.BufferReader(footer))
        except (pa.ArrowException, OSError) as error:
            raise _corrupt_footer(part, f"other data ({error})") from error
        return cls(metadata, {_offset_of(metadata.row_group(n)): n for n in range(metadata.num_row_groups)})

    def rows(self, part: Part, block: int, data: memoryview | bytes) -> Any:
        """
        Return the rows of a block as a table with the columns of the backend.

        :param data: Bytes of the row group.
        """
        import pyarrow as pa
        from pyarrow import parquet

        offset = int(part.offsets[block])
        source = pa.PythonFile(_Window(data, offset), mode="r")
        file = parquet.ParquetFile(source, metadata=self.metadata)
        return _in_layout(part, file.read_row_group(self.numbers[offset], use_threads=False))


def _corrupt_footer(part: Part, found: str) -> CorruptStateError:
    return CorruptStateError(
        f"Expected the footer of a Parquet file of state {part.state.name}, found {found}; the file is corrupt or truncated, "
        f"restore from another checkpoint."
    )


def _offset_of(row_group: Any) -> int:
    column = row_group.column(0)
    return int(column.data_page_offset if column.dictionary_page_offset is None else column.dictionary_page_offset)


class _Window(io.RawIOBase):
    """File of which only the bytes of one row group are known."""

    def __init__(self, data: memoryview | bytes, offset: int) -> None:
        self._data = memoryview(data)
        self._offset = offset
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        origin = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._offset + len(self._data)}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readinto(self, buffer: Any) -> int:
        start = self._position - self._offset
        found = self._data[start : start + len(buffer)]
        buffer[: len(found)] = found
        self._position += len(found)
        return len(found)


def _in_layout(part: Part, table: Any) -> Any:
    import pyarrow as pa

    columns = []
    for index, field in enumerate(part.schema):
        column = single(table.column(index))
        is_timed = field.name == VALUE and part.state.ttl
        columns.append(
            _timed(column, single(table.column(index + 1)), field.type)
            if is_timed
            else conformed(column, field.type, field.name)
        )
    return pa.table(columns, schema=part.schema)


def _timed(values: Any, times: Any, wanted: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_list(wanted):
        elements = _timed(values.flatten(), times.flatten(), wanted.value_type)
        return with_elements(values, elements)
    cells = timed_cells(conformed(values, wanted.field(0).type, VALUE), _milliseconds(times))
    return cells if cells.type == wanted else cells.cast(wanted)


def _milliseconds(times: Any) -> Any:
    import pyarrow as pa

    return times.cast(pa.timestamp("ms", "UTC")).cast(pa.int64())


def timed_cells(values: Any, times: Any) -> Any:
    """
    Return the cells of a state with a time to live.

    :param values: Array of values, or of lists of them.
    :param times: Times of the last access in milliseconds, or lists of them with equal lengths.
    """
    import pyarrow as pa

    if pa.types.is_list(times.type):
        return with_elements(values, timed_cells(values.flatten(), times.flatten()))
    # A value without a time is no value.
    nulls = times.is_null() if times.null_count else None
    return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"], mask=nulls)
