"""
Row groups of Parquet files, read by PyArrow inside Spark tasks.

Spark's reader supports only whole files: it reads a file to its end even if a filter on ``_metadata.file_block_start``
or ``_metadata.row_index`` excludes all its rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import SourceChangedError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.snapshots.columns import readable_type
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.schemas import (
    TASK_BYTES,
    TaskReader,
    arrow_schema,
    batches_of,
    concealed_failures,
    consecutive,
    find_column,
    open_file,
    pack_tasks,
    quoted_column,
)
from airflow_provider_statecheck.storage.uris import open_filesystem, redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType


@dataclass(frozen=True, slots=True)
class RowGroups:
    """Consecutive row groups of a file, read by one task."""

    root: str
    uri: str
    size_bytes: int
    start: int
    end: int
    partition: Mapping[str, str | None]


def load_row_groups(
    spark: SparkSession, tasks: Sequence[RowGroups], schema: StructType, options: Mapping[str, Any]
) -> DataFrame:
    """Return the rows of row groups; one Spark task reads each element of ``tasks``."""
    from pyspark.sql.types import StringType, StructField, StructType

    partitions = set(tasks[0].partition)
    # Partition values are texts in the names of directories; Spark casts them.
    types = [StringType() if f.name in partitions else readable_type(f.dataType) for f in schema.fields]
    raw = StructType([StructField(*each) for each in zip(schema.names, types, strict=True)])
    reader = RowGroupReader(
        options=HiddenOptions(options), schema=arrow_schema(raw), packed_tasks=pack_row_groups(tasks)
    )
    columns = [(quoted_column(f.name), f) for f in schema.fields]
    typed = [(column.cast(f.dataType) if f.name in partitions else column, f) for column, f in columns]
    # Like the reader of whole files, with the metadata of columns.
    return reader.frame(spark, raw).select([column.alias(f.name, metadata=f.metadata) for column, f in typed])


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


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroupReader(TaskReader):
    """Reads row groups inside Spark tasks."""

    options: HiddenOptions

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        """
        Yield the rows of row groups.

        :raises SourceChangedError: if a file has changed since it was listed.
        """
        groups = RowGroups(*task)
        with _opened(groups.uri, groups.root, groups.size_bytes, self.options.reveal()) as source:
            yield from self._read_groups(source, groups)

    def _read_groups(self, source: Any, task: RowGroups) -> Iterator[Any]:
        import pyarrow.parquet as pq

        with pq.ParquetFile(
            source, pre_buffer=True, page_checksum_verification=True, coerce_int96_timestamp_unit="us"
        ) as parquet:
            columns = self._stored_names(parquet.schema_arrow.names, task.partition)
            for batch in batches_of(parquet, range(task.start, task.end), list(columns.values())):
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
                    f"Expected {size_bytes} bytes in {redact(uri)}, as it was listed, found {found}; the file changed during the "
                    "run."
                )
            yield file


def read_footer(uri: str, root: str, size_bytes: int, options: Mapping[str, Any]) -> Any:
    """
    Read the Parquet metadata of a file.

    :raises SourceChangedError: if the file is missing or its size has changed.
    :raises StorageError: if the storage fails, or the file is not a Parquet file.
    """
    import pyarrow.parquet as pq

    with _opened(uri, root, size_bytes, options) as source:
        return pq.read_metadata(source)


def rows_of_groups(metadata: Any, groups: tuple[int, int] | None) -> range:
    """Return the numbers of the rows in row groups of a file; of all rows without groups."""
    start, end = groups or (0, metadata.num_row_groups)
    counts = [metadata.row_group(i).num_rows for i in range(end)]
    return range(sum(counts[:start]), sum(counts))
