"""
Parquet data files written by the tasks of a sink, with Hive-style partitions.

A sink gives :class:`DataFileWriter` the place, the layout, the schema and a namer, and makes what commits the files of what
:meth:`DataFileWriter.finish` returns::

    rows = DataFileWriter(files, layout, schema, name=lambda directory: f"data/{directory}/{new_key()}.parquet")
    rows.write(table)
    found = rows.finish()  # a WrittenFile each; or rows.abort()

What it has in common with the writers of tables is in :mod:`airflow_provider_statecheck.spark.sinks.data_files`.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.exceptions import StateCheckError, UnsupportedStateError
from airflow_provider_statecheck.spark.sinks.sink import Committable, SinkTaskContext, StagedFile, encode_schema
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles, staged_name, staging_directory
from airflow_provider_statecheck.spark.snapshots.executor_io import scratch_directory
from airflow_provider_statecheck.spark.snapshots.manifest import footer_digest

ROW_GROUP_BYTES = 128 * 1024 * 1024
"""How much of a file waits in memory before it is written."""


class OutputFile:
    """
    Collects tables and writes them as row groups.

    :param path: A local file, which only this object writes.
    :param schema: Arrow schema of the tables.
    :param compression: As Parquet names it.
    """

    def __init__(self, path: Path, schema: Any, compression: str) -> None:
        import pyarrow.parquet as pq

        self.path = path
        self.rows = 0
        self.waiting_bytes = 0
        self._waiting: list[Any] = []
        self._stream = path.open("xb")
        self._metadata: list[Any] = []
        self._parquet = pq.ParquetWriter(
            self._stream,
            schema,
            compression=compression,
            write_page_checksum=True,
            metadata_collector=self._metadata,
        )

    @property
    def written_bytes(self) -> int:
        """Return how many bytes the file has so far."""
        return self._stream.tell()

    @property
    def metadata(self) -> Any:
        """Return what the footer of the finished file says, with the statistics of its columns."""
        return self._metadata[0]

    def add(self, table: Any) -> None:
        """Take a table; it may wait for others."""
        self._waiting.append(table)
        self.waiting_bytes += table.nbytes
        self.rows += table.num_rows

    def flush(self) -> None:
        """Write what waits as one row group."""
        import pyarrow as pa

        if self._waiting:
            table = pa.concat_tables(self._waiting)
            self._waiting, self.waiting_bytes = [], 0
            self._parquet.write_table(table, row_group_size=max(1, table.num_rows))

    def finish(self) -> None:
        """Write the rest and make the file durable on this machine."""
        self.flush()
        self._parquet.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()

    def digest(self) -> str:
        """Return the digest of the finished file's footer."""
        with self.path.open("rb") as file:

            def read(start: int, end: int) -> bytes:
                file.seek(start)
                return file.read(end - start)

            return footer_digest(read, str(self.path), self.path.stat().st_size)

    def discard(self) -> None:
        """Delete the file, finished or not."""
        # Its end would else be written when it is forgotten, into a file that is closed.
        with suppress(OSError, ValueError):
            self._parquet.close()
        with suppress(OSError):
            self._stream.close()
        self.path.unlink(missing_ok=True)


_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}


def require_partitionable(schema: Any, columns: Sequence[str]) -> None:
    """
    Refuse columns whose values cannot be told from a directory's name.

    :raises UnsupportedStateError: Says which and why.
    """
    for column in columns:
        if schema.get_field_index(column) < 0:
            raise UnsupportedStateError(
                f"Expected the column {column!r} of partition_by in the output, found {', '.join(schema.names)}; name one of "
                "these, or add it."
            )
        if not _is_partitionable(schema.field(column).type):
            raise UnsupportedStateError(
                f"Expected partition_by to name columns of whole numbers, strings, dates or booleans, found {column!r} of "
                f"type {schema.field(column).type}; convert it in the stage."
            )
    if set(columns) >= set(schema.names):
        raise UnsupportedStateError(
            f"Expected a column beside those of partition_by, found {', '.join(columns)} alone; leave one of them out."
        )


def split(table: Any, columns: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """
    Split a table by the directories that its rows belong to.

    :return: Directories with the rows in their order, without the columns that the directory tells.
    """
    if not columns or not table.num_rows:
        yield "", table.drop_columns(list(columns))
        return
    rest = table.drop_columns(list(columns))
    for values, rows in _groups(table, columns):
        yield _directory(columns, values), rest.take(rows)


def _groups(table: Any, columns: Sequence[str]) -> Iterator[tuple[tuple[str | None, ...], Any]]:
    import pyarrow as pa

    keys = [f"key_{position}" for position in range(len(columns))]
    texts = [table.column(column).cast(pa.string()) for column in columns]
    numbered = pa.table([*texts, pa.array(range(table.num_rows), pa.int64())], names=[*keys, "row"])
    grouped = numbered.group_by(keys, use_threads=False).aggregate([("row", "list")])
    for group in grouped.to_batches():
        for position in range(group.num_rows):
            values = tuple(group.column(key)[position].as_py() for key in keys)
            yield values, group.column("row_list")[position].values


def _directory(columns: Sequence[str], values: Sequence[str | None]) -> str:
    # Spark has no name for the empty string either.
    return "/".join(
        f"{_escaped(column)}={_escaped(value) if value else _NULL}"
        for column, value in zip(columns, values, strict=True)
    )


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)


def _is_partitionable(kind: Any) -> bool:
    import pyarrow as pa

    tests = (pa.types.is_integer, pa.types.is_string, pa.types.is_large_string, pa.types.is_date, pa.types.is_boolean)
    return any(test(kind) for test in tests)


log = logging.getLogger(__name__)

# Each open file holds a buffer and a handle; a task whose rows come sorted by partition needs one.
_OPEN_FILES = 64


class DataFiles(Protocol):
    """Where files are written; :class:`~airflow_provider_statecheck.spark.sinks.target_files.TargetFiles` is one."""

    @property
    def target(self) -> str:
        """The directory, fit to be shown."""
        ...

    @property
    def is_local(self) -> bool:
        """Whether the bytes are files of this machine."""
        ...

    def local_path(self, name: str) -> Path:
        """Return where a file of a local target is, with its directory made."""
        ...

    def upload(self, local: Path, name: str) -> None:
        """Copy a finished local file."""
        ...

    def delete(self, name: str) -> None:
        """Delete a file; a missing one is success."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FileLayout:
    """How the rows of a sink are laid out in files."""

    compression: str
    partition_by: tuple[str, ...]
    max_file_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A complete Parquet file that nothing names yet."""

    name: str
    """Relative to the target, as the namer gave it."""
    directory: str
    """The partition that its rows belong to, such as ``day=2024-01-01``; empty without partitions."""
    size_bytes: int
    rows: int
    footer_sha256: str
    metadata: Any
    """As ``pyarrow.parquet.read_metadata`` returns it, with the statistics of the columns."""


class DataFileWriter:
    """
    Splits rows by partition and writes files of bounded size.

    Files are not open for longer than they must: where too many partitions are, the one that waited longest is finished.

    :param files: Where they lie.
    :param layout: How rows are laid out.
    :param schema: Arrow schema of the files, with the columns of partitions; tables are cast to it.
    :param name: Returns a new name, relative to the target, for a file of a partition's directory; its last part differs
        between any two files of the task.
    """

    def __init__(self, files: DataFiles, layout: FileLayout, schema: Any, name: Callable[[str], str]) -> None:
        self._files = files
        self._layout = layout
        self._schema = schema
        self._name = name
        self._open: dict[str, tuple[str, OutputFile]] = {}
        self._names: list[str] = []
        self._written: list[WrittenFile] = []
        self._scratch = ExitStack()
        self._folder: Path | None = None

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
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
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        for _, file in self._open.values():
            file.discard()
        self._open.clear()
        self._scratch.close()
        for name in self._names:
            self._delete(name)
        self._names.clear()
        self._written.clear()

    def _add(self, directory: str, part: Any) -> None:
        # The last one used stands at the end, so that a full house closes the one that waited longest.
        name, file = self._open.pop(directory) if directory in self._open else self._begin(directory)
        self._open[directory] = name, file
        file.add(part)
        if file.waiting_bytes >= min(ROW_GROUP_BYTES, self._layout.max_file_bytes):
            file.flush()
        if file.written_bytes >= self._layout.max_file_bytes:
            self._finish(directory)
        self._keep_memory_bounded()

    def _begin(self, directory: str) -> tuple[str, OutputFile]:
        if len(self._open) >= _OPEN_FILES:
            self._finish(next(iter(self._open)))
        name = self._name(directory)
        return name, OutputFile(self._place(name), self._file_schema(), self._layout.compression)

    def _file_schema(self) -> Any:
        import pyarrow as pa

        return pa.schema([field for field in self._schema if field.name not in self._layout.partition_by])

    def _place(self, name: str) -> Path:
        if self._files.is_local:
            # Half a file is no harm where it lies: nothing names it.
            return self._files.local_path(name)
        if self._folder is None:
            self._folder = Path(self._scratch.enter_context(scratch_directory()))
        return self._folder / name.rpartition("/")[2]

    def _keep_memory_bounded(self) -> None:
        if sum(file.waiting_bytes for _, file in self._open.values()) >= ROW_GROUP_BYTES:
            max((file for _, file in self._open.values()), key=lambda file: file.waiting_bytes).flush()

    def _finish(self, directory: str) -> None:
        name, file = self._open[directory]
        file.finish()
        # Named first: an upload that fails may have left it.
        self._names.append(name)
        self._written.append(_described(name, directory, file))
        del self._open[directory]
        if not self._files.is_local:
            self._files.upload(file.path, name)
            file.path.unlink()

    def _delete(self, name: str) -> None:
        try:
            self._files.delete(name)
        except StateCheckError as error:
            log.warning("The file %s stays in %s, where nothing names it: %s", name, self._files.target, error)


def _described(name: str, directory: str, file: OutputFile) -> WrittenFile:
    return WrittenFile(
        name=name,
        directory=directory,
        size_bytes=file.path.stat().st_size,
        rows=file.rows,
        footer_sha256=file.digest(),
        metadata=file.metadata,
    )


class ParquetSinkWriter:
    """
    Writes whole files into the staging directory.

    A task that fails, or loses against its copy, leaves files there that nothing names.

    :param files: The target.
    :param layout: How rows are laid out.
    :param context: Which task writes.
    :param new_name: Makes keys that nobody else uses.
    """

    def __init__(
        self,
        files: TargetFiles,
        layout: FileLayout,
        context: SinkTaskContext,
        new_name: Callable[[], str] = new_key,
    ) -> None:
        self._lineage = files.lineage
        self._context = context
        self._columns = context.schema.remove_metadata()
        directory = staging_directory(files.lineage)
        # The driver moves them to the directories of their partitions.
        self._rows = DataFileWriter(
            files, layout, self._columns, lambda _: f"{directory}/{staged_name(context.epoch, new_name())}"
        )

    def write(self, table: Any) -> None:
        """Take a table with the columns of the schema, in any order."""
        self._rows.write(table)

    def prepare_commit(self) -> list[dict[str, Any]]:
        """Finish all files and return what commits them."""
        committable = Committable(
            lineage=self._lineage,
            epoch=self._context.epoch,
            subtask=self._context.subtask,
            schema=encode_schema(self._columns),
            files=tuple(_staged(file) for file in self._rows.finish()),
        )
        return [committable.to_json()]

    def abort(self) -> None:
        """Delete what was written; what cannot be deleted now is swept later, because nothing names it."""
        self._rows.abort()


def _staged(file: WrittenFile) -> StagedFile:
    return StagedFile(
        staged=file.name.rpartition("/")[2],
        directory=file.directory,
        size_bytes=file.size_bytes,
        rows=file.rows,
        footer_sha256=file.footer_sha256,
    )
