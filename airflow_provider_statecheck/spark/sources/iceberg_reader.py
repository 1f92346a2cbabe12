"""Read data files of an Iceberg table in tasks of Spark, through pyiceberg."""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import portable_metadata
from airflow_provider_statecheck.spark.sinks.iceberg.data_files import decode_data_file, encode_data_file
from airflow_provider_statecheck.spark.sinks.iceberg.storage_properties import storage_properties_of
from airflow_provider_statecheck.spark.snapshots.arrow_columns import arrow_schema
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import ItemSplit
from airflow_provider_statecheck.spark.sources.iceberg_ranges import PlannedFiles
from airflow_provider_statecheck.spark.sources.item import Item
from airflow_provider_statecheck.storage.options import conceal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 32 * 1024 * 1024


class IcebergReader:
    """
    Reads planned files.

    :param spark: The session.
    :param table: As it was loaded.
    :param planned: The files.
    :param columns: Which columns to read; all for ``None``.
    :raises InvalidConfigurationError: if the table has no such column, or one that Spark has no type for.
    :raises UnsupportedStateError: if tasks cannot reach its storage.
    """

    def __init__(self, spark: SparkSession, table: Any, planned: PlannedFiles, columns: Sequence[str] | None) -> None:
        self._spark = spark
        self._table = table
        self._planned = planned
        self._projected = _projected(table, planned.until, columns)
        self._shown = ".".join(table.name())
        self._io = storage_properties_of(table, self._shown)

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """Files of Iceberg never change; one that is gone is noticed when it is read."""

    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        """
        Return the rows of splits.

        :raises InvalidConfigurationError: if Spark has no type for a column.
        """
        schema = self.arrow_schema()
        columns = self._spark_schema(schema)
        reader = self.file_reader(splits, arrow_schema(columns))
        numbers = self._spark.range(0, reader.shares, 1, reader.shares)
        return numbers.mapInArrow(functools.partial(read_iceberg_files, reader), columns)

    def file_reader(self, splits: Sequence[ItemSplit], schema: Any) -> IcebergFileReader:
        """
        Return what reads splits in tasks.

        :param schema: In which Arrow types their rows are wanted.
        """
        shares = pack_shares([self._planned.tasks[split.item.name] for split in splits if split.item])
        return IcebergFileReader(
            table=self._shown,
            metadata=portable_metadata(self._table),
            io=self._io,
            projected=self._projected.model_dump_json(),
            schema=schema,
            shares=len(shares),
            packed_shares=zlib.compress(json.dumps(shares, separators=(",", ":")).encode()),
        )

    def arrow_schema(self) -> Any:
        """Return the columns as Arrow knows them."""
        from pyiceberg.io.pyarrow import _ConvertToSmallTypes, schema_to_pyarrow, visit_pyarrow

        return visit_pyarrow(schema_to_pyarrow(self._projected, include_field_ids=False), _ConvertToSmallTypes())

    def snapshot(self) -> dict[str, Any]:
        """Return what another attempt needs to read the same files."""
        return {"snapshots": self._planned.encode()}

    def _spark_schema(self, schema: Any) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        try:
            return from_arrow_schema(schema)
        except Exception as error:  # the class differs between versions of Spark
            raise InvalidConfigurationError(
                f"Expected columns that Spark has types for, found {error}; leave such a column out by columns=."
            ) from error


def read_iceberg_files(reader: IcebergFileReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Give the rows of a task; plans name this function."""
    return reader.read(batches)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFileReader:
    """Reads the shares of tasks."""

    table: str
    metadata: str
    io: HiddenOptions
    projected: str
    schema: Any
    """Arrow schema in which Spark takes the rows."""
    shares: int
    """How many there are."""
    packed_shares: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Give the rows of the shares whose numbers arrive.

        :param batches: Record batches with one column of numbers.
        :raises StorageError: if a file cannot be read.
        """
        shares = json.loads(zlib.decompress(self.packed_shares))
        for batch in batches:
            for number in batch.column(0).to_pylist():
                yield from self._read_share(shares[number])

    def _read_share(self, share: Sequence[Any]) -> Iterator[Any]:
        try:
            scan = self._scan()
            for data, deletes in share:
                yield from (self._as_expected(batch) for batch in _rows(scan, data, deletes))
        except StateCheckError:
            raise
        except Exception as error:
            # Without its cause: Spark writes the whole chain to its logs, and clients name credentials.
            said = conceal(str(error), self.io.reveal())
            raise StorageError(
                f"A file of the Iceberg table {self.table} cannot be read: {type(error).__name__} {said}"
            ) from None

    def _scan(self) -> Any:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.schema import Schema
        from pyiceberg.table.metadata import TableMetadataUtil

        metadata = TableMetadataUtil.parse_raw(self.metadata)
        io = load_file_io(self.io.reveal(), metadata.location)
        return ArrowScan(metadata, io, Schema.model_validate_json(self.projected), AlwaysTrue())

    def _as_expected(self, batch: Any) -> Any:
        import pyarrow as pa

        arrays = [batch.column(field.name).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _rows(scan: Any, data: Any, deletes: Sequence[Any]) -> Iterator[Any]:
    from pyiceberg.io.pyarrow import _read_all_delete_files
    from pyiceberg.table import FileScanTask

    task = FileScanTask(decode_data_file(data), {decode_data_file(file) for file in deletes})
    # Not to_record_batches, which holds a whole file in memory.
    found: Iterator[Any] = scan._record_batches_from_scan_tasks_and_deletes(
        [task], _read_all_delete_files(scan._io, [task])
    )
    return found


def _projected(table: Any, snapshot_id: int | None, columns: Sequence[str] | None) -> Any:
    snapshot = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    known = table.schemas()
    schema = known.get(snapshot.schema_id, table.schema()) if snapshot is not None else table.schema()
    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.column_names]
    if missing:
        raise InvalidConfigurationError(
            f"Expected columns of the source, found {missing}; it has {schema.column_names}."
        )
    return schema.select(*columns)


def pack_shares(tasks: Sequence[Any]) -> list[list[Any]]:
    """Return files, with those of deleted positions, in shares for tasks: one large file, or several small ones."""
    shares: list[list[Any]] = []
    room = 0
    for task in tasks:
        if task.file.file_size_in_bytes > room or not shares:
            shares.append([])
            room = _TASK_BYTES
        room -= task.file.file_size_in_bytes
        shares[-1].append([_plain(task.file), [_plain(file) for file in task.delete_files]])
    return shares


def _plain(file: Any) -> dict[str, Any]:
    return encode_data_file(file, with_metrics=False)
