"""
Parquet files as a source; large files are read in row groups.

Spark's reader supports only whole files: it reads a file to its end even if a filter on ``_metadata.file_block_start``
or ``_metadata.row_index`` excludes all its rows. PyArrow therefore reads row groups, inside Spark tasks.
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
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema, readable_type
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit, SourceState
from airflow_provider_statecheck.spark.sources.file_listing import FileListing, partition_values
from airflow_provider_statecheck.spark.sources.file_source import FileReader, FileSource
from airflow_provider_statecheck.spark.sources.source_columns import find_column, quoted_column, reads_like_spark
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.failures import RetryPolicy
from airflow_provider_statecheck.storage.schemes import conceal, open_filesystem
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_TASK_BYTES = 32 * 1024 * 1024
_BATCH_BYTES = 8 * 1024 * 1024
_MAX_BATCH_ROWS = 64 * 1024

log = logging.getLogger(__name__)


class ParquetSource(FileSource):
    """
    Parquet files; large files are divided among several increments.

    :param path: A directory, a file, a pattern, or several of them.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if another limit is set. A file of more than twice this size is cut at its row
        groups.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param row_groups_per_increment: Maximum number of row groups in one Spark job.
    :param columns: Columns to read; all by default.
    :param schema: Columns and their types, as a ``StructType`` or DDL; by default inferred from the files once.
    :param on_change: Policy for files that change during a run: ``"fail"``, ``"ignore"`` or ``"restart"``.
    :param order: ``"path"``, or ``"mtime"`` to read the oldest files first.
    :param options: Options of Spark's reader; with any of them, files are not cut.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    _format = "parquet"

    def _reader(self, spark: SparkSession, listing: FileListing, state: SourceState) -> FileReader:
        items, restored = state.ledger.items, state.reader
        return ParquetReader(spark, self._file_format, listing, items, on_change=self._on_change, restored=restored)

    def _row_group_sizes(self, reader: FileReader, item: Item) -> Sequence[int] | None:
        return cast(ParquetReader, reader).row_groups(item)


class ParquetReader(FileReader):
    """Reads whole files through Spark, and row groups of large files through PyArrow."""

    def __init__(self, *args: Any, **named: Any) -> None:
        super().__init__(*args, **named)
        self._sizes: dict[str, list[int] | None] = {}

    def rows_of(self, split: ItemSplit) -> range | None:
        """Return the numbers of the rows of a split within its file, read from the footer; ``None`` if it is unreadable."""
        item = split.item
        if item is None:
            return None
        try:
            return rows_of_groups(self._footer(item), split.groups)
        except StateCheckError:
            return None

    def row_groups(self, item: Item) -> list[int] | None:
        """
        Return the sizes of the row groups of a file; ``None`` if only Spark reads the file correctly.

        :raises SourceChangedError: if the file has changed since it was listed.
        """
        if item.name not in self._sizes:
            self._sizes[item.name] = self._row_group_sizes(item)
        return self._sizes[item.name]

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of splits."""
        whole = [split for split in splits if split.groups is None]
        frames: list[DataFrame] = [super().load(whole)] if whole else []
        cut = [(split.item, split.groups) for split in splits if split.item and split.groups]
        return functools.reduce(lambda frame, other: frame.unionAll(other), [*frames, *self._load_cut(cut)])

    def _load_cut(self, cut: Sequence[tuple[Item, tuple[int, int]]]) -> list[DataFrame]:
        if not cut:
            return []
        size = task_bytes(self.spark, [self.row_groups(item) or [] for item, _ in cut], [groups for _, groups in cut])
        tasks = [task for item, groups in cut for task in self._tasks(item, *groups, size)]
        return [
            load_row_groups(self.spark, group, self.selected_schema, self.listing.options)
            for group in _by_partition_columns(tasks)
        ]

    def _tasks(self, item: Item, start: int, end: int, size: int) -> list[RowGroups]:
        root = self.listing.root_of(item.name)
        groups = RowGroups(root, item.name, item.size_bytes, start, end, partition_values(root, item.name))
        return list(cut_into_tasks(groups, self.row_groups(item) or [], size))

    def _footer(self, item: Item) -> Any:
        return read_footer(item.name, self.listing.root_of(item.name), item.size_bytes, self.listing.options)

    def _row_group_sizes(self, item: Item) -> list[int] | None:
        root = self.listing.root_of(item.name)
        footer = self._footer(item)
        if self.format.options or not reads_like_spark(footer, self._stored_columns(root, item)):
            log.warning("Reading %s as a whole, because its types or options require Spark's reader", redact(item.name))
            return None
        return group_sizes(footer)

    def _stored_columns(self, root: str, item: Item) -> StructType:
        from pyspark.sql.types import StructType

        partition = partition_values(root, item.name)
        return StructType([field for field in self.selected_schema.fields if field.name not in partition])


def _by_partition_columns(tasks: Sequence[RowGroups]) -> list[list[RowGroups]]:
    columns: Callable[[RowGroups], list[str]] = lambda task: sorted(task.partition)  # noqa: E731
    return [list(group) for _, group in groupby(sorted(tasks, key=columns), key=columns)]


def load_row_groups(
    spark: SparkSession, tasks: Sequence[RowGroups], schema: StructType, options: Mapping[str, Any]
) -> DataFrame:
    """Return the rows of row groups; one Spark task reads each element of ``tasks``."""
    from pyspark.sql.types import StringType, StructField, StructType

    partitions = set(tasks[0].partition)
    # Partition values are texts in the names of directories; Spark casts them.
    raw = StructType(
        [
            StructField(f.name, StringType() if f.name in partitions else readable_type(f.dataType))
            for f in schema.fields
        ]
    )
    reader = RowGroupReader(HiddenOptions(options), arrow_schema(raw), _pack(tasks))
    frame = spark.range(0, len(tasks), 1, len(tasks)).mapInArrow(functools.partial(read_row_groups, reader), raw)
    columns = {f.name: quoted_column(f.name) for f in schema.fields}
    # Like the reader of whole files, with the metadata of columns.
    return frame.select(
        [
            (columns[f.name].cast(f.dataType) if f.name in partitions else columns[f.name]).alias(
                f.name, metadata=f.metadata
            )
            for f in schema.fields
        ]
    )


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Consecutive row groups of a file, read by one task."""

    root: str
    uri: str
    size_bytes: int
    start: int
    end: int
    partition: Mapping[str, str | None]


def task_bytes(spark: SparkSession, sizes: Sequence[Sequence[int]], groups: Sequence[tuple[int, int]]) -> int:
    """
    Return the size of a task with which the row groups of a job occupy all cores.

    :param sizes: Sizes of all row groups of each file.
    :param groups: Row groups of each file that are read.
    """
    total = sum(sum(of_file[start:end]) for of_file, (start, end) in zip(sizes, groups, strict=True))
    return max(1, min(_TASK_BYTES, total // cores_of(spark)))


def cut_into_tasks(groups: RowGroups, sizes: Sequence[int], limit: int = _TASK_BYTES) -> Iterator[RowGroups]:
    """
    Divide row groups among tasks; each task gets one large row group or several small ones.

    :param sizes: Sizes of all row groups of the file.
    :param limit: Size of a task in bytes.
    """
    start, size = groups.start, 0
    for group in range(groups.start, groups.end):
        if group > start and size + sizes[group] > limit:
            yield _with_bounds(groups, start, group)
            start, size = group, 0
        size += sizes[group]
    if start < groups.end:
        yield _with_bounds(groups, start, groups.end)


def _with_bounds(groups: RowGroups, start: int, end: int) -> RowGroups:
    return RowGroups(groups.root, groups.uri, groups.size_bytes, start, end, groups.partition)


def _pack(tasks: Sequence[RowGroups]) -> bytes:
    fields = [[t.root, t.uri, t.size_bytes, t.start, t.end, dict(t.partition)] for t in tasks]
    return zlib.compress(json.dumps(fields, separators=(",", ":")).encode())


def _unpack(packed: bytes) -> list[RowGroups]:
    return [RowGroups(*fields) for fields in json.loads(zlib.decompress(packed))]


@dataclass(frozen=True, slots=True)
class RowGroupReader:
    """Reads row groups inside Spark tasks."""

    options: HiddenOptions
    schema: Any
    """Arrow schema of the rows for Spark."""
    packed_tasks: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Yield the rows of tasks.

        :param batches: Record batches with one column of task numbers.
        :raises SourceChangedError: if a file has changed since it was listed.
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
            # No cause: Spark logs the whole chain, and client errors may contain credentials.
            raise _unreadable(task.uri, error, options) from None

    def _read_groups(self, source: Any, task: RowGroups) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(
            source, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            columns = self._stored_names(parquet.schema_arrow.names, task.partition)
            for group in range(task.start, task.end):
                rows = _rows_per_batch(parquet.metadata.row_group(group))
                wanted = list(columns.values())
                for batch in parquet.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                    yield self._to_schema(batch, columns, task.partition)

    def _stored_names(self, names: Sequence[str], partition: Mapping[str, str | None]) -> dict[str, str]:
        pairs = ((name, find_column(names, name)) for name in self.schema.names if name not in partition)
        return {name: found for name, found in pairs if found is not None}

    def _to_schema(self, batch: Any, columns: Mapping[str, str], partition: Mapping[str, str | None]) -> Any:
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


def read_row_groups(reader: RowGroupReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Return the rows of a task; query plans show the name of this function."""
    return reader.read(batches)


def open_parquet(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Open a file for PyArrow.

    :raises SourceChangedError: if the file is missing or its size has changed.
    """
    filesystem = open_filesystem(root, dict(options))
    path = filesystem._strip_protocol(uri)
    try:
        # No cache: PyArrow requests exact ranges, and coalesces neighbouring columns.
        file = RetryPolicy().call(lambda: filesystem.open(path, "rb", cache_type="none"), redact(uri))
    except FileNotFoundError as error:
        raise SourceChangedError(f"Expected the file {redact(uri)} of a source, found none; restore it.") from error
    found = int(file.seek(0, 2))
    file.seek(0)
    if found != size_bytes:
        file.close()
        raise SourceChangedError(
            f"Expected {size_bytes} bytes in {redact(uri)}, as it was listed, found {found}; the file changed during the run."
        )
    return file


def read_footer(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Read the Parquet metadata of a file.

    :raises SourceChangedError: if the file is missing or its size has changed.
    :raises StorageError: if the storage fails, or the file is not a Parquet file.
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
    """Return the compressed size of each row group."""
    groups = (metadata.row_group(i) for i in range(metadata.num_row_groups))
    return [sum(group.column(i).total_compressed_size for i in range(group.num_columns)) for group in groups]


def rows_of_groups(metadata: Any, groups: tuple[int, int] | None) -> range:
    """Return the numbers of the rows in row groups of a file; of all rows without groups."""
    start, end = groups or (0, metadata.num_row_groups)
    counts = [metadata.row_group(i).num_rows for i in range(end)]
    return range(sum(counts[:start]), sum(counts))


def _rows_per_batch(group: Any) -> int:
    return int(min(_MAX_BATCH_ROWS, max(1, group.num_rows * _BATCH_BYTES // max(1, group.total_byte_size))))


def _unreadable(uri: str, error: Exception, options: Mapping[str, Any]) -> StorageError:
    message = conceal(str(error), options)
    return StorageError(f"The file {redact(uri)} of a source cannot be read: {type(error).__name__} {message}")
