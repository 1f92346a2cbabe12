"""Parquet data files of tasks, and rows that are split into Hive-style partitions."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.spark.tables.partition_directories import partition_path
from airflow_provider_statecheck.storage.failures import local_failures
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest

ROW_GROUP_BYTES = 128 * 1024 * 1024
"""Size of the buffered rows that are written as one row group."""
FILE_BYTES = 512 * 1024 * 1024
"""Size at which a writer starts a new file, by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """Layout of the data files of a sink."""

    compression: str
    partition_by: tuple[str, ...]
    max_file_bytes: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "max_file_bytes", require_count("max_file_bytes", self.max_file_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A complete Parquet file that is not committed yet."""

    name: str
    """Path relative to the target."""
    directory: str
    """Partition of the rows, such as ``day=2024-01-01``; empty without partitions."""
    size_bytes: int
    rows: int
    footer_sha256: str
    statistics: str = ""
    """Column statistics for the table of the file, if it needs them."""


class OutputFile:
    """
    A local Parquet file that buffers tables and writes them as row groups.

    Its methods raise ``StorageError`` if the disk is full or read-only.

    :param schema: Arrow schema of the tables.
    """

    def __init__(self, path: Path, schema: Any, compression: str) -> None:
        self.path = path
        self.rows = 0
        self.buffered_bytes = 0
        self._buffered: list[Any] = []
        self._metadata: list[Any] = []
        with local_failures(path):
            self._stream = path.open("xb")
            self._parquet = parquet.ParquetWriter(
                self._stream,
                schema,
                compression=compression,
                write_page_checksum=True,
                metadata_collector=self._metadata,
            )

    @property
    def written_bytes(self) -> int:
        """The number of bytes written so far."""
        return self._stream.tell()

    @property
    def metadata(self) -> Any:
        """The footer metadata of the finished file, with column statistics."""
        return self._metadata[0]

    def add(self, table: Any) -> None:
        """Buffer a table."""
        self._buffered.append(table)
        self.buffered_bytes += table.nbytes
        self.rows += table.num_rows

    def flush(self) -> None:
        """Write the buffered tables as one row group."""
        if self._buffered:
            table = pa.concat_tables(self._buffered)
            self._buffered, self.buffered_bytes = [], 0
            with local_failures(self.path):
                self._parquet.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self, *, is_synced: bool) -> None:
        """
        Write the remaining rows and the footer.

        :param is_synced: Whether the file must survive a crash of the machine; a file that is uploaded need not.
        """
        self.flush()
        with local_failures(self.path):
            self._parquet.close()
            self._stream.flush()
            if is_synced:
                os.fsync(self._stream.fileno())
            self._stream.close()

    def digest(self) -> str:
        """Return the digest of the footer of the finished file."""
        with self.path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            return footer_digest(read, str(self.path), self.path.stat().st_size)

    def discard(self) -> None:
        """Delete the file, finished or not."""
        # Otherwise the garbage collector would write the footer into a closed stream. After a failed write there is
        # none.
        with suppress(OSError, ValueError, RuntimeError):
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()
        self.path.unlink(missing_ok=True)


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """
    Create a temporary directory inside Spark's local directory, which is deleted with the executor.

    :raises StorageError: if the disk is full or read-only.
    """
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    parent = local if local and Path(local).is_dir() else None
    with local_failures(parent or "the temporary directory"):
        return tempfile.TemporaryDirectory(prefix="statecheck-", dir=parent)


def require_partitionable(schema: Any, columns: Sequence[str]) -> None:
    """
    Require partition columns whose values can be encoded in directory names.

    :raises UnsupportedStateError: if a column is missing or has another type, or if no other column remains.
    """
    for column in columns:
        if schema.get_field_index(column) < 0:
            raise UnsupportedStateError(
                f"Expected the column {column!r} of partition_by in the output, found {', '.join(schema.names)}; add "
                "the column to the output, or partition by another one."
            )
        if not _is_partitionable(schema.field(column).type):
            raise UnsupportedStateError(
                f"Expected partition_by to name columns of integers, strings, dates or booleans, found {column!r} of "
                f"type {schema.field(column).type}; convert it in the stage."
            )
    if set(columns) >= set(schema.names):
        raise UnsupportedStateError(
            f"Expected a column in addition to those of partition_by, found only {', '.join(columns)}; remove one from "
            "partition_by."
        )


def split(table: Any, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """
    Split a table by partition.

    :return: Pairs of a partition directory and its rows in their original order, without the partition columns.
    """
    if not columns or not table.num_rows:
        yield "", table.drop_columns(list(columns))
        return
    unpartitioned = table.drop_columns(list(columns))
    for values, rows in _partitions(table, columns):
        yield partition_path(dict(zip(columns, values, strict=True))), unpartitioned.take(rows)


def _partitions(table: Any, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], Any]]:
    keys = [f"key_{position}" for position in range(len(columns))]
    texts = [table.column(column).cast(pa.string()) for column in columns]
    numbered = pa.table([*texts, pa.array(range(table.num_rows), pa.int64())], names=[*keys, "row"])
    grouped = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    for group in grouped.to_batches():
        for position in range(group.num_rows):
            values = tuple(group.column(key)[position].as_py() for key in keys)
            yield values, group.column("row_list")[position].values


def _is_partitionable(kind: Any) -> bool:
    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_boolean)
    return any(test(kind) for test in tests)
