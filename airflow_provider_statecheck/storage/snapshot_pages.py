"""Rows of the Parquet files of a snapshot, read by ranges with verified checksums of pages."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotFile
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

_BATCH_ROWS = 64 * 1024
_BUFFER_BYTES = 1024 * 1024
_FEW_ROWS = 1024
"""Maximum number of wanted rows for which the columns are read in small pieces instead of whole row groups."""
_SMALL_BUFFER_BYTES = 64 * 1024


def read_pages(storage: CheckpointStorage, uri: str, file: SnapshotFile) -> int:
    """
    Read all pages of a file and verify their checksums.

    :return: Number of rows of the file.
    :raises CorruptStateError: if a page was changed.
    :raises NotImplementedError: for a type that only Spark supports.
    """
    rows = 0
    for batch in read_batches(storage, uri, file):
        rows += batch.num_rows
    return rows


def read_batches(
    storage: CheckpointStorage,
    uri: str,
    file: SnapshotFile,
    columns: Sequence[str] | None = None,
    wanted: int | None = None,
) -> Iterator[Any]:
    """
    Yield the rows of a file as record batches, and verify the checksums of the pages that are read.

    :param columns: Names of the columns in the file; by default all.
    :param wanted: Number of rows that the caller is going to read; a few are read without the rest of their row group. By
        default all.
    :raises CorruptStateError: if a page was changed.
    :raises CheckpointNotFoundError: if the file is missing.
    :raises NotImplementedError: for a type that only Spark supports.
    """
    import pyarrow
    import pyarrow.parquet

    is_preview = wanted is not None and wanted <= _FEW_ROWS
    buffer_bytes = _SMALL_BUFFER_BYTES if is_preview else _BUFFER_BYTES
    try:
        source = io.BufferedReader(_RangeReader(storage, uri, file.size_bytes), buffer_bytes)
        # Spark writes a checksum with each page. Without checksums, only undecodable pages are detected. Spark's older
        # timestamps have microseconds; Arrow's default of nanoseconds would overflow.
        parquet: Any = pyarrow.parquet.ParquetFile(
            source,
            page_checksum_verification=True,
            coerce_int96_timestamp_unit="us",
            pre_buffer=not is_preview,
            buffer_size=buffer_bytes if is_preview else 0,
        )
        batch_rows = min(wanted or _BATCH_ROWS, _BATCH_ROWS)
        for batch in parquet.iter_batches(batch_size=batch_rows, columns=columns, use_threads=False):
            batch.validate(full=True)
            yield batch
    except pyarrow.ArrowNotImplementedError:
        raise
    except (OSError, pyarrow.ArrowException) as error:
        raise CorruptStateError(f"A page of {redact(uri)} cannot be read: {error}", uri=redact(uri)) from error


class _RangeReader(io.RawIOBase):
    """File on checkpoint storage that is read by ranges."""

    def __init__(self, storage: CheckpointStorage, uri: str, size: int) -> None:
        self._storage = storage
        self._uri = uri
        self._size = size
        self._position = 0

    @override
    def readable(self) -> bool:
        return True

    @override
    def seekable(self) -> bool:
        return True

    @override
    def tell(self) -> int:
        return self._position

    @override
    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = start + offset
        return self._position

    @override
    def readinto(self, buffer: WriteableBuffer, /) -> int:
        view = memoryview(buffer).cast("B")
        end = min(self._position + len(view), self._size)
        if end <= self._position:
            return 0
        data = self._storage.read_range(self._uri, self._position, end)
        view[: len(data)] = data
        self._position += len(data)
        return len(data)
