"""
Parquet data files written by the tasks of a sink, with Hive-style partitions.

:class:`DataFileWriter` writes the rows of one task for any sink. The sink supplies the location, the layout, the schema
and the file names, and builds its committable from the files that :meth:`DataFileWriter.finish` returns::

    writer = DataFileWriter(files, layout, schema, name=lambda directory: f"data/{directory}/{new_key()}.parquet")
    writer.write(table)
    written = writer.finish()  # or writer.abort()
"""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.codec import require_count
from airflow_provider_statecheck.exceptions import StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.spark.tables.schemas import partition_path
from airflow_provider_statecheck.storage.snapshot_manifest import footer_digest

log = logging.getLogger(__name__)
ROW_GROUP_BYTES = 128 * 1024 * 1024
"""Size of the buffered rows that are written as one row group."""
FILE_BYTES = 512 * 1024 * 1024
"""Size at which a writer starts a new file, by default."""
# Each open file holds a buffer and a file handle; rows that are sorted by partition need one open file.
_MAX_OPEN_FILES = 64


class DataFileWriter:
    """
    Splits rows by partition and writes files of bounded size.

    The number of open files is bounded: when the limit is reached, the least recently used file is finished.

    :param schema: Arrow schema of the output with the partition columns; tables are cast to it.
    :param name: Function that returns a new file name, relative to the target, for a partition directory. The last path
        component must be unique within the task.
    :param statistics: Function that returns the statistics of a file from its footer metadata, which is as
        ``pyarrow.parquet.read_metadata`` returns it.
    """

    def __init__(
        self,
        files: DataFiles,
        layout: FileLayout,
        schema: Any,
        name: Callable[[str], str],
        statistics: Callable[[Any], str] = lambda _: "",
    ) -> None:
        self._files = files
        self._statistics = statistics
        self._layout = layout
        self._schema = schema
        self._name = name
        self._open: dict[str, tuple[str, OutputFile]] = {}
        self._names: list[str] = []
        self._written: list[WrittenFile] = []
        self._scratch = ExitStack()
        self._folder: Path | None = None

    def write(self, table: Any) -> None:
        """Write a table with the columns of the schema, in any order."""
        if not table.num_rows:
            return
        fitted = table.select(self._schema.names).cast(self._schema)
        for directory, part in split(fitted, self._layout.partition_by):
            self._add(directory, part)

    def finish(self) -> tuple[WrittenFile, ...]:
        """Finish all files and return them."""
        while self._open:
            self._finish(next(iter(self._open)))
        self._scratch.close()
        return tuple(self._written)

    def abort(self) -> None:
        """Delete the written files; files that cannot be deleted are orphans, and a later sweep deletes them."""
        for _, file in self._open.values():
            file.discard()
        self._open.clear()
        self._scratch.close()
        for name in self._names:
            self._delete(name)
        self._names.clear()
        self._written.clear()

    def _add(self, directory: str, part: Any) -> None:
        # Reinserting keeps the files in the order of their last use, least recent first.
        name, file = self._open.pop(directory) if directory in self._open else self._begin(directory)
        self._open[directory] = name, file
        file.add(part)
        if file.buffered_bytes >= min(ROW_GROUP_BYTES, self._layout.max_file_bytes):
            file.flush()
        if file.written_bytes >= self._layout.max_file_bytes:
            self._finish(directory)
        self._bound_memory()

    def _begin(self, directory: str) -> tuple[str, OutputFile]:
        if len(self._open) >= _MAX_OPEN_FILES:
            self._finish(next(iter(self._open)))
        name = self._name(directory)
        return name, OutputFile(self._local_path(name), self._file_schema(), self._layout.compression)

    def _file_schema(self) -> Any:
        return pa.schema([field for field in self._schema if field.name not in self._layout.partition_by])

    def _local_path(self, name: str) -> Path:
        if self._files.is_local:
            # An incomplete file in the target is harmless because no commit refers to it.
            return self._files.local_path(name)
        if self._folder is None:
            self._folder = Path(self._scratch.enter_context(scratch_directory()))
        return self._folder / name.rpartition("/")[2]

    def _bound_memory(self) -> None:
        if sum(file.buffered_bytes for _, file in self._open.values()) >= ROW_GROUP_BYTES:
            max((file for _, file in self._open.values()), key=lambda file: file.buffered_bytes).flush()

    def _finish(self, directory: str) -> None:
        name, file = self._open[directory]
        file.finish(is_synced=self._files.is_local)
        # Added before the upload, because a failed upload may leave the file.
        self._names.append(name)
        self._written.append(self._written_file(name, directory, file))
        del self._open[directory]
        if not self._files.is_local:
            self._files.upload(file.path, name)
            file.path.unlink()

    def _written_file(self, name: str, directory: str, file: OutputFile) -> WrittenFile:
        return WrittenFile(
            name=name,
            directory=directory,
            size_bytes=file.path.stat().st_size,
            rows=file.rows,
            footer_sha256=file.digest(),
            statistics=self._statistics(file.metadata),
        )

    def _delete(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StateCheckError as error:
            log.warning("Orphan file %s in %s was not deleted: %s", name, self._files.target, error)


class DataFiles(Protocol):
    """Location of the data files of one writer."""

    @property
    def target(self) -> str:
        """The directory without credentials."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the files are on a local disk."""
        ...

    def local_path(self, name: str) -> Path:
        """Return the path of a file of a local target, and create its directory."""
        ...

    def upload(self, local: Path, name: str) -> None:
        """Copy a finished local file to the target."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; succeeds if it is missing."""
        ...


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

    :param schema: Arrow schema of the tables.
    """

    def __init__(self, path: Path, schema: Any, compression: str) -> None:
        self.path = path
        self.rows = 0
        self.buffered_bytes = 0
        self._buffered: list[Any] = []
        self._stream = path.open("xb")
        self._metadata: list[Any] = []
        self._parquet = parquet.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )

    @property
    def written_bytes(self) -> int:
        """Return the number of bytes written so far."""
        return self._stream.tell()

    @property
    def metadata(self) -> Any:
        """Return the footer metadata of the finished file, with column statistics."""
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
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self, *, is_synced: bool) -> None:
        """
        Write the remaining rows and the footer.

        :param is_synced: Whether the file must survive a crash of the machine; a file that is uploaded need not.
        """
        self.flush()
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
        # Otherwise the garbage collector would write the footer into a closed stream.
        with suppress(OSError, ValueError):
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()
        self.path.unlink(missing_ok=True)


def scratch_directory() -> tempfile.TemporaryDirectory[str]:
    """Create a temporary directory inside Spark's local directory, which is deleted with the executor."""
    local = os.environ.get("SPARK_LOCAL_DIRS", "").partition(",")[0]
    return tempfile.TemporaryDirectory(prefix="statecheck-", dir=local if local and Path(local).is_dir() else None)


def require_partitionable(schema: Any, columns: Sequence[str]) -> None:
    """
    Require partition columns whose values can be encoded in directory names.

    :raises UnsupportedStateError: if a column is missing or has another type, or if no other column remains.
    """
    for column in columns:
        if schema.get_field_index(column) < 0:
            raise UnsupportedStateError(
                f"Expected the column {column!r} of partition_by in the output, found {', '.join(schema.names)}; add the "
                "column to the output, or partition by another one."
            )
        if not _is_partitionable(schema.field(column).type):
            raise UnsupportedStateError(
                f"Expected partition_by to name columns of integers, strings, dates or booleans, found {column!r} of type "
                f"{schema.field(column).type}; convert it in the stage."
            )
    if set(columns) >= set(schema.names):
        raise UnsupportedStateError(
            f"Expected a column in addition to those of partition_by, found only {', '.join(columns)}; remove one from partition_by."
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
