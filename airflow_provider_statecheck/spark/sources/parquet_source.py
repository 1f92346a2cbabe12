"""
Parquet files as a source; large files are read in row groups.

Spark's own reader takes whole files only: it reads a file to its end even where a filter on ``_metadata.file_block_start``
or ``_metadata.row_index`` leaves nothing of it. So PyArrow reads parts of files, inside Spark tasks.
"""

from __future__ import annotations

import functools
import json
import logging
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.exceptions import SourceChangedError, StateCheckError, StorageError
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit, SourceState
from airflow_provider_statecheck.spark.sources.file_listing import FileListing, partition_of
from airflow_provider_statecheck.spark.sources.file_source import FileReader, FileSource
from airflow_provider_statecheck.spark.sources.source_columns import column_of, is_read_alike
from airflow_provider_statecheck.spark.sources.splits import Item
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.schemes import conceal, open_filesystem
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


_TASK_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 64 * 1024


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Neighbouring row groups of a file, which one task reads."""

    root: str
    uri: str
    size_bytes: int
    start: int
    end: int
    partition: Mapping[str, str | None]


def cut_into_tasks(groups: RowGroups, sizes: Sequence[int]) -> Iterator[RowGroups]:
    """
    Give row groups in shares for tasks: each of one row group, or of several small ones.

    :param sizes: The sizes of all row groups of the file.
    """
    start, size = groups.start, 0
    for group in range(groups.start, groups.end):
        if group > start and size + sizes[group] > _TASK_BYTES:
            yield _part(groups, start, group)
            start, size = group, 0
        size += sizes[group]
    if start < groups.end:
        yield _part(groups, start, groups.end)


def load_row_groups(
    spark: SparkSession, tasks: Sequence[RowGroups], schema: StructType, options: Mapping[str, Any]
) -> DataFrame:
    """Return the rows of row groups; each task of Spark reads the share of one."""
    from pyspark.sql.types import StringType, StructField, StructType

    from airflow_provider_statecheck.spark.sources.source_columns import named

    partitions = set(tasks[0].partition)
    crossing = StructType(
        [StructField(f.name, StringType() if f.name in partitions else f.dataType) for f in schema.fields]
    )
    reader = RowGroupReader(HiddenOptions(options), arrow_schema(crossing), _pack(tasks))
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(functools.partial(read_row_groups, reader), crossing)
    return frame.select(
        [named(f.name).cast(f.dataType).alias(f.name) if f.name in partitions else named(f.name) for f in schema.fields]
    )


def read_row_groups(reader: RowGroupReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Give the rows of a task; plans name this function."""
    return reader.read(batches)


def open_parquet(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Return a file for PyArrow to read.

    :raises SourceChangedError: if it is missing, or has another size.
    """
    filesystem = open_filesystem(root, dict(options))
    path = filesystem._strip_protocol(uri)
    try:
        # Parquet asks for exactly what it needs, and for neighbouring columns at once.
        file = RetryPolicy().call(lambda: filesystem.open(path, "rb", cache_type="none"), redact(uri))
    except FileNotFoundError as error:
        raise SourceChangedError(f"Expected the file {redact(uri)} of a source, found none.") from error
    found = int(file.seek(0, 2))
    file.seek(0)
    if found != size_bytes:
        file.close()
        raise SourceChangedError(
            f"Expected {size_bytes} bytes in {redact(uri)}, as it was listed, found {found}; it was changed meanwhile."
        )
    return file


def read_footer(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Return what PyArrow knows of a file from its last bytes.

    :raises SourceChangedError: if it is missing, or has another size.
    :raises StorageError: if the storage fails, or it is no Parquet file.
    """
    import pyarrow.parquet as pq

    try:
        with open_parquet(uri, root, size_bytes, options) as source:
            return pq.read_metadata(source)
    except StateCheckError:
        raise
    except Exception as error:
        raise _unreadable(uri, error, options) from None


def group_sizes(metadata: Any) -> list[int]:
    """Return the stored size of each row group."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]


@dataclass(frozen=True, slots=True)
class RowGroupReader:
    """Reads the share of one task."""

    options: HiddenOptions
    schema: Any
    """Arrow schema in which Spark takes the rows."""
    packed_tasks: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Give the rows of the tasks whose numbers arrive.

        :param batches: Record batches with one column of numbers.
        :raises SourceChangedError: if a file is no longer what was listed.
        """
        tasks = _unpack(self.packed_tasks)
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read_task(tasks[number])

    def _read_task(self, task: RowGroups) -> Iterator[Any]:
        options = self.options.reveal()
        try:
            with open_parquet(task.uri, task.root, task.size_bytes, options) as source:
                yield from self._read_groups(source, task)
        except StateCheckError:
            raise
        except Exception as error:
            # Without its cause: Spark writes the whole chain to its logs, and clients name credentials.
            raise _unreadable(task.uri, error, options) from None

    def _read_groups(self, source: Any, task: RowGroups) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(
            source, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            columns = self._columns_in(parquet.schema_arrow.names, task.partition)
            for group in range(task.start, task.end):
                rows = _rows_per_batch(parquet.metadata.row_group(group))
                wanted = list(columns.values())
                for batch in parquet.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                    yield self._as_expected(batch, columns, task.partition)

    def _columns_in(self, names: Sequence[str], partition: Mapping[str, str | None]) -> dict[str, str]:
        pairs = ((name, column_of(names, name)) for name in self.schema.names if name not in partition)
        return {name: found for name, found in pairs if found is not None}

    def _as_expected(self, batch: Any, columns: Mapping[str, str], partition: Mapping[str, str | None]) -> Any:
        import pyarrow as pa

        arrays = []
        for field in self.schema:
            if field.name in partition:
                arrays.append(pa.repeat(pa.scalar(partition[field.name], field.type), batch.num_rows))
            elif field.name in columns:
                arrays.append(batch.column(columns[field.name]).cast(field.type))
            else:
                arrays.append(pa.nulls(batch.num_rows, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _part(groups: RowGroups, start: int, end: int) -> RowGroups:
    return RowGroups(groups.root, groups.uri, groups.size_bytes, start, end, groups.partition)


def _pack(tasks: Sequence[RowGroups]) -> bytes:
    told = [[t.root, t.uri, t.size_bytes, t.start, t.end, dict(t.partition)] for t in tasks]
    return zlib.compress(json.dumps(told, separators=(",", ":")).encode())


def _unpack(packed: bytes) -> list[RowGroups]:
    return [RowGroups(*fields) for fields in json.loads(zlib.decompress(packed))]


def _rows_per_batch(group: Any) -> int:
    return int(min(_MAX_BATCH_ROWS, max(1, group.num_rows * _BATCH_BYTES // max(1, group.total_byte_size))))


def _unreadable(uri: str, error: Exception, options: Mapping[str, Any]) -> StorageError:
    said = conceal(str(error), options)
    return StorageError(f"The file {redact(uri)} of a source cannot be read: {type(error).__name__} {said}")


log = logging.getLogger(__name__)


class ParquetReader(FileReader):
    """Reads whole files through Spark, and some row groups of a file through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sizes: dict[str, list[int] | None] = {}

    def row_groups(self, item: Item) -> list[int] | None:
        """
        Return the sizes of the row groups of a file; ``None`` if only Spark can read it as it should be read.

        :raises SourceChangedError: if it is no longer what was listed.
        """
        if item.name not in self._sizes:
            self._sizes[item.name] = self._cut(item)
        return self._sizes[item.name]

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        whole = [split for split in splits if split.groups is None]
        frames: list[DataFrame] = [super().load(whole)] if whole else []
        frames += [self._parts(tasks) for tasks in self._tasks([split for split in splits if split.groups])]
        return functools.reduce(lambda frame, other: frame.unionAll(other), frames)

    def _parts(self, tasks: Sequence[RowGroups]) -> DataFrame:
        return load_row_groups(self.spark, tasks, self.wanted, self.listing.options)

    def _tasks(self, splits: Sequence[ItemSplit]) -> list[list[RowGroups]]:
        tasks = [
            task for split in splits if split.item and split.groups for task in self._shares(split.item, *split.groups)
        ]
        by_columns: Callable[[RowGroups], list[str]] = lambda task: sorted(task.partition)  # noqa: E731
        return [list(group) for _, group in groupby(sorted(tasks, key=by_columns), key=by_columns)]

    def _shares(self, item: Item, start: int, end: int) -> list[RowGroups]:
        root = self.listing.root_of(item.name)
        groups = RowGroups(root, item.name, item.size_bytes, start, end, partition_of(root, item.name))
        return list(cut_into_tasks(groups, self.row_groups(item) or []))

    def _cut(self, item: Item) -> list[int] | None:
        root = self.listing.root_of(item.name)
        footer = read_footer(item.name, root, item.size_bytes, self.listing.options)
        if self.format.options or not is_read_alike(footer, self._in_the_file(root, item)):
            log.warning("%s is read as a whole, because only Spark reads it as it should be read", redact(item.name))
            return None
        return group_sizes(footer)

    def _in_the_file(self, root: str, item: Item) -> StructType:
        from pyspark.sql.types import StructType

        partition = partition_of(root, item.name)
        return StructType([field for field in self.wanted.fields if field.name not in partition])


class ParquetSource(FileSource):
    """
    Parquet files, of which large ones are cut into several increments.

    :param path: A directory, a file, a pattern, or several of them.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none. A file of more than twice as much is cut at its row groups.
    :param files_per_increment: How many files one Spark job reads at most.
    :param row_groups_per_increment: How many row groups it reads at most.
    :param columns: Which columns to read; all by default.
    :param schema: The types of the columns, as a ``StructType`` or DDL; by default they are taken from the files once.
    :param on_change: What to do if files changed since the start of a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader. With any, files are not cut.
    :raises InvalidConfigurationError: if an argument is out of its range.
    """

    _format = "parquet"

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return ParquetReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _groups(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return cast(ParquetReader, reader).row_groups(item)
