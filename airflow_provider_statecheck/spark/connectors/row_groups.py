"""
Row groups of Parquet files, which PyArrow reads inside Spark tasks.

Spark's reader supports only whole files: it reads a file to its end even if a filter on ``_metadata.file_block_start``
or ``_metadata.row_index`` excludes all its rows.
"""

from __future__ import annotations

import functools
import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import SourceChangedError, StateCheckError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import (
    ItemReader,
    ItemSplit,
)
from airflow_provider_statecheck.spark.connectors.file_parts import FileParts, RowGroups
from airflow_provider_statecheck.spark.driver.session import cores_of
from airflow_provider_statecheck.spark.snapshots.columns import readable_type
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.cutting import ReadingRules, Unreadable, find_column
from airflow_provider_statecheck.spark.tables.schemas import (
    TASK_BYTES,
    TaskReader,
    arrow_schema,
    batches_of,
    concealed_failures,
    consecutive,
    group_sizes,
    open_file,
    pack_tasks,
    quoted_column,
    union_all,
)
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.uris import open_filesystem, redact

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import DataType, StructType

log = logging.getLogger(__name__)

_OPEN_BYTES = 4 * 1024 * 1024
"""What opening a file costs, as Spark's ``spark.sql.files.openCostInBytes``."""


class CuttingReader(ItemReader):
    """Reads whole files as another reader does, and row groups of large files through PyArrow."""

    spark: SparkSession

    def __init__(self) -> None:
        self._sizes: dict[str, list[int] | None] = {}

    @override
    def row_groups(self, item: Item) -> list[int] | None:
        if item.name not in self._sizes:
            footer = self._footer(item)
            reason = self._obstacle(item, footer)
            if reason is not None:
                log.warning("%s cannot be cut, and is read as a whole: %s", redact(item.name), reason)
            self._sizes[item.name] = None if reason is not None else group_sizes(footer)
        return self._sizes[item.name]

    @override
    def rows_of(self, split: ItemSplit) -> range | None:
        try:
            footer = self._footer(split.item)
        except StateCheckError:
            return None
        return None if isinstance(footer, Unreadable) else rows_of_groups(footer, split.groups)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        whole = [split for split in splits if split.groups is None]
        frames = [self._load_whole(whole)] if whole else []
        return union_all([*frames, *self._load_cut(splits)])

    def _load_cut(self, splits: Sequence[ItemSplit]) -> Iterator[DataFrame]:
        cut = [
            (self._row_groups_of(split.item, *split.groups), self.row_groups(split.item) or [])
            for split in splits
            if split.groups is not None
        ]
        limit = task_bytes(cores_of(self.spark), cut) if cut else 0
        tasks = [task for groups, sizes in cut for task in cut_into_tasks(groups, sizes, limit)]
        for _, group in groupby(sorted(tasks, key=_partition_columns), key=_partition_columns):
            yield self._load_tasks(list(group))

    def _footer(self, item: Item) -> Any:
        root, uri = self._place_of(item)
        return read_footer(uri, root, item.size_bytes, self._options_of(root))

    @abstractmethod
    def _load_whole(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """Return the rows of whole files."""

    @abstractmethod
    def _load_tasks(self, tasks: Sequence[RowGroups]) -> DataFrame:
        """Return the rows of row groups of files that have the same partition columns."""

    @abstractmethod
    def _row_groups_of(self, item: Item, start: int, end: int) -> RowGroups:
        """Return row groups of the file of an item."""

    @abstractmethod
    def _place_of(self, item: Item) -> tuple[str, str]:
        """Return the root and the URI of the file of an item."""

    @abstractmethod
    def _options_of(self, root: str) -> Mapping[str, Any]:
        """Return the options of the filesystem of a root."""

    @abstractmethod
    def _obstacle(self, item: Item, footer: Any) -> str | None:
        """Return why PyArrow would not read the same rows from a file as Spark; ``None`` if it would."""

    @functools.cached_property
    def rules(self) -> ReadingRules:
        """Settings of the session on which it depends what Spark reads."""
        return ReadingRules.of(self.spark)


def _partition_columns(task: RowGroups) -> list[str]:
    return sorted(task.partition)


def load_row_groups(
    spark: SparkSession,
    tasks: Sequence[RowGroups],
    schema: StructType,
    options: Mapping[str, Any],
    *,
    is_case_sensitive: bool = True,
) -> DataFrame:
    """Return the rows of row groups; one Spark task reads each element of ``tasks``."""
    from pyspark.sql.types import StringType, StructField, StructType

    partitions = set(tasks[0].partition)
    # Partition values are texts in the names of directories; Spark casts them.
    types = [StringType() if f.name in partitions else readable_type(f.dataType) for f in schema.fields]
    raw = StructType([StructField(*each) for each in zip(schema.names, types, strict=True)])
    reader = RowGroupReader(
        options=HiddenOptions(options),
        schema=arrow_schema(raw),
        packed_tasks=pack_row_groups(tasks),
        is_case_sensitive=is_case_sensitive,
    )
    columns = [(quoted_column(f.name), f) for f in schema.fields]
    typed = [(_from_directory(column, f.dataType) if f.name in partitions else column, f) for column, f in columns]
    # Like the reader of whole files, with the metadata of columns.
    return reader.frame(spark, raw).select([column.alias(f.name, metadata=f.metadata) for column, f in typed])


def _from_directory(text: Column, kind: DataType) -> Column:
    from pyspark.sql import functions as F
    from pyspark.sql.types import NullType

    # Null in all directories has no type; Spark refuses the cast of a text to it.
    return F.lit(None) if isinstance(kind, NullType) else text.cast(kind)


def pack_row_groups(tasks: Sequence[RowGroups]) -> bytes:
    """Return tasks in compressed form."""
    return pack_tasks([astuple(task) for task in tasks])


def task_bytes(cores: int, cut: Sequence[tuple[RowGroups, Sequence[int]]]) -> int:
    """
    Return the size of a task with which the row groups of a job occupy all cores.

    :param cut: Row groups that are read, each with the sizes of all row groups of its file.
    """
    total = sum(sum(sizes[groups.start : groups.end]) for groups, sizes in cut)
    return max(1, min(TASK_BYTES, total // cores))


def cut_into_tasks(groups: RowGroups, sizes: Sequence[int], limit: int = TASK_BYTES) -> Iterator[RowGroups]:
    """
    Divide row groups among tasks; each task gets one large row group or several small ones.

    :param sizes: Sizes of all row groups of the file.
    :param limit: Size of a task in bytes.
    """
    first = groups.start
    for part in consecutive(sizes[first : groups.end], limit):
        yield replace(groups, start=first + part.start, end=first + part.stop)


PartOfFiles = tuple[int, int, int]
"""
What a Spark task reads: the number of its increment, and the first task of the reader and the one after the last.
"""


def row_group_reader(increments: Sequence[FileParts], cores: int) -> tuple[RowGroupReader, tuple[PartOfFiles, ...]]:
    """
    Return a reader of the row groups of several increments, and what each Spark task reads.

    :param cores: Number of cores to occupy.
    """
    sized = [each.sizes() for each in increments]
    limit = task_bytes(cores, [pair for each in sized for pair in each])
    tasks: list[RowGroups] = []
    parts: list[PartOfFiles] = []
    for number, each in enumerate(sized):
        pieces = [(task, sizes) for groups, sizes in each for task in cut_into_tasks(groups, sizes, limit)]
        costs = [_OPEN_BYTES + sum(sizes[task.start : task.end]) for task, sizes in pieces]
        before = len(tasks)
        parts += [(number, before + span.start, before + span.stop) for span in consecutive(costs, limit)]
        tasks += [task for task, _ in pieces]
    first = increments[0]
    reader = RowGroupReader(
        options=HiddenOptions(first.options),
        schema=arrow_schema(first.schema),
        # No column is one of directories.
        packed_tasks=pack_row_groups([replace(task, partition={}) for task in tasks]),
        is_case_sensitive=first.is_case_sensitive,
    )
    return reader, tuple(parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader(TaskReader):
    """Reads row groups inside Spark tasks."""

    options: HiddenOptions
    is_case_sensitive: bool

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        groups = RowGroups(*task)
        with _opened(groups.uri, groups.root, groups.size_bytes, self.options.reveal()) as source:
            yield from self._read_groups(source, groups)

    def _read_groups(self, source: Any, task: RowGroups) -> Iterator[Any]:
        with parquet.ParquetFile(
            source, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as file:
            columns = self._stored_names(file.schema_arrow.names, task.partition)
            for batch in batches_of(file, range(task.start, task.end), list(columns.values())):
                yield self._to_schema(batch, columns, task.partition)

    def _stored_names(self, names: Sequence[str], partition: Mapping[str, str | None]) -> dict[str, str]:
        wanted = (name for name in self.schema.names if name not in partition)
        pairs = ((name, find_column(names, name, is_case_sensitive=self.is_case_sensitive)) for name in wanted)
        return {name: found for name, found in pairs if found is not None}

    def _to_schema(self, batch: Any, columns: Mapping[str, str], partition: Mapping[str, str | None]) -> Any:
        arrays = []
        for column in self.schema:
            if column.name in partition:
                arrays.append(pa.repeat(pa.scalar(partition[column.name], column.type), batch.num_rows))
            elif column.name in columns:
                arrays.append(batch.column(columns[column.name]).cast(column.type))
            else:
                arrays.append(pa.nulls(batch.num_rows, column.type))
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


@contextmanager
def _opened(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Iterator[Any]:
    with concealed_failures(f"The file {redact(uri)} of a source cannot be read", options):
        filesystem = open_filesystem(root, dict(options))
        try:
            file, found = open_file(filesystem, filesystem._strip_protocol(uri), redact(uri))
        except FileNotFoundError as error:
            raise SourceChangedError(f"Expected the file {redact(uri)} of a source, found none; restore it.") from error
        with file:
            if found != size_bytes:
                raise SourceChangedError(
                    f"Expected {size_bytes} bytes in {redact(uri)}, as it was listed, found {found}; the file changed "
                    "during the run."
                )
            yield file


def read_footer(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Read the Parquet metadata of a file, or why PyArrow does not read it.

    :raises SourceChangedError: if the file is missing or its size has changed.
    :raises StorageError: if the storage fails, or the file is not a Parquet file.
    """
    with _opened(uri, root, size_bytes, options) as source:
        source.seek(-min(_TAIL_BYTES, size_bytes), 2)
        tail = source.read(_TAIL_BYTES)
        if tail.endswith(_ENCRYPTED):
            return Unreadable("it is encrypted")
        try:
            found = parquet.read_metadata(source)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            if not tail.endswith(_PARQUET):
                raise
            return Unreadable(f"PyArrow does not read its schema ({error})")
    # The signature of a file with encrypted columns follows its metadata; PyArrow aborts the process at such a column.
    is_signed = int.from_bytes(tail[:4], "little") != found.serialized_size
    return Unreadable("it is encrypted") if is_signed else found


_TAIL_BYTES = 8
_PARQUET, _ENCRYPTED = b"PAR1", b"PARE"


def rows_of_groups(metadata: Any, groups: tuple[int, int] | None) -> range:
    """Return the numbers of the rows in row groups of a file; of all rows without groups."""
    start, end = groups or (0, metadata.num_row_groups)
    counts = [metadata.row_group(i).num_rows for i in range(end)]
    return range(sum(counts[:start]), sum(counts))
