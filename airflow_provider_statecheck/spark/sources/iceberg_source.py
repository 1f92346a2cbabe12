"""
An Iceberg table as a source.

PyIceberg plans the files in the driver and reads them inside Spark tasks, so Spark needs neither a connector nor a
catalog.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import ItemReader, ItemSplit
from airflow_provider_statecheck.spark.sources.iceberg_ranges import IcebergRanges, PlannedFiles
from airflow_provider_statecheck.spark.sources.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.sources.planning import parse_limits
from airflow_provider_statecheck.spark.tables.frames import TaskReader, concealed_failures, pack_tasks
from airflow_provider_statecheck.spark.tables.iceberg import (
    OpenTable,
    TableAddress,
    decode_data_file,
    encode_data_file,
    portable_metadata,
    storage_properties_of,
)
from airflow_provider_statecheck.spark.tables.parquet_files import consecutive
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, require_columns, spark_schema
from airflow_provider_statecheck.state.source_items import Ledger

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 32 * 1024 * 1024


class IcebergSource(ItemSource):
    """
    The rows of an Iceberg table at its current snapshot; a later run reads the rows appended since.

    :param table: Name of the table with its namespace, such as ``sales.orders``.
    :param catalog: Name of the catalog; by default the one configured for PyIceberg.
    :param properties: PyIceberg properties of the catalog and of the storage; may contain credentials.
    :param starting_snapshot: The first run reads only the rows appended after this snapshot; by default the whole
        table.
    :param columns: Columns to read; all by default.
    :param bytes_per_increment: Approximate input of one Spark job. The default ``"auto"`` is 1/64 of the input but at
        least 256 MiB, or no limit if ``files_per_increment`` is set.
    :param files_per_increment: Maximum number of files in one Spark job.
    :param on_change: Policy for snapshots that change or delete rows: ``"fail"``, ``"ignore"`` to read only the
        appended rows, or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is invalid.
    """

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        starting_snapshot: int | None = None,
        columns: Sequence[str] | None = None,
        bytes_per_increment: str | int | None = "auto",
        files_per_increment: int | None = None,
        on_change: str = "fail",
    ) -> None:
        super().__init__(parse_limits(bytes_per_increment, ("files_per_increment", files_per_increment)), on_change)
        self.table = table
        self._address = TableAddress(table, catalog, properties)
        self._starting_snapshot = starting_snapshot
        self._columns = parse_columns(columns)

    def __repr__(self) -> str:
        return f"IcebergSource({self.table!r})"

    @override
    def _plan(self, opening: Opening) -> tuple[Ledger, ItemReader]:
        table = OpenTable(self._address)
        try:
            loaded = table.load()
            with table.redacted_failures():
                ranges = IcebergRanges(loaded, table.name, self._on_change)
                ledger, planned = self._planned(ranges, opening)
                return ledger, IcebergReader(opening.spark, loaded, planned, self._columns)
        finally:
            table.close()

    def _planned(self, ranges: IcebergRanges, opening: Opening) -> tuple[Ledger, PlannedFiles]:
        if opening.before is None:
            planned = ranges.at_start(self._starting_snapshot)
            return Ledger(planned.items), planned
        plan = ranges.of_new_run if opening.is_new_run else ranges.of_restarted_run
        planned = plan(opening.before)
        return opening.before.ledger.with_items(planned.items), planned


class IcebergReader(ItemReader):
    """
    Reads planned files of an Iceberg table; data files never change, and reading reports deleted ones.

    :param spark: The session.
    :param table: The loaded PyIceberg table.
    :param planned: The planned files.
    :param columns: Columns to read; all for ``None``.
    :raises InvalidConfigurationError: if a column does not exist, or Spark has no type for it.
    :raises UnsupportedStateError: if tasks cannot access the storage of the table.
    """

    def __init__(self, spark: SparkSession, table: Any, planned: PlannedFiles, columns: Sequence[str] | None) -> None:
        self._spark = spark
        self._table = table
        self._planned = planned
        self._projection = _projection(table, planned.until, columns)
        self._shown = ".".join(table.name())
        self._io = storage_properties_of(table, self._shown)

    @override
    def load(self, splits: Sequence[ItemSplit]) -> DataFrame:
        columns = spark_schema(self.arrow_schema())
        return self.file_reader(splits, arrow_schema(columns)).frame(self._spark, columns)

    def file_reader(self, splits: Sequence[ItemSplit], schema: Any) -> IcebergFileReader:
        """
        Return the reader of splits for Spark tasks.

        :param schema: Arrow schema of the rows for Spark.
        """
        shares = pack_shares([self._planned.tasks[split.item.name] for split in splits])
        return IcebergFileReader(
            table=self._shown,
            metadata=portable_metadata(self._table),
            io=self._io,
            projected=self._projection.model_dump_json(),
            schema=schema,
            packed_tasks=pack_tasks(shares),
        )

    def arrow_schema(self) -> Any:
        """Return the Arrow schema of the selected columns."""
        from pyiceberg.io.pyarrow import _ConvertToSmallTypes, schema_to_pyarrow, visit_pyarrow

        return visit_pyarrow(schema_to_pyarrow(self._projection, include_field_ids=False), _ConvertToSmallTypes())

    @override
    def snapshot(self) -> dict[str, Any]:
        return {"snapshots": self._planned.encode()}


def _projection(table: Any, snapshot_id: int | None, columns: Sequence[str] | None) -> Any:
    snapshot = None if snapshot_id is None else table.metadata.snapshot_by_id(snapshot_id)
    known = table.schemas()
    schema = known.get(snapshot.schema_id, table.schema()) if snapshot is not None else table.schema()
    if columns is None:
        return schema
    require_columns(columns, schema.column_names)
    return schema.select(*columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFileReader(TaskReader):
    """Reads files inside Spark tasks; each task reads one share of the files."""

    table: str
    metadata: str
    io: HiddenOptions
    projected: str

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        """
        Yield the rows of a share.

        :raises StorageError: if a file cannot be read.
        """
        with concealed_failures(f"A file of the Iceberg table {self.table} cannot be read", self.io.reveal()):
            scan = self._scan()
            for data, deletes in task:
                yield from (self._to_schema(batch) for batch in _record_batches(scan, data, deletes))

    def _scan(self) -> Any:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io import load_file_io
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.schema import Schema
        from pyiceberg.table.metadata import TableMetadataUtil

        metadata = TableMetadataUtil.parse_raw(self.metadata)
        io = load_file_io(self.io.reveal(), metadata.location)
        return ArrowScan(metadata, io, Schema.model_validate_json(self.projected), AlwaysTrue())

    def _to_schema(self, batch: Any) -> Any:
        import pyarrow as pa

        arrays = [batch.column(field.name).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def _record_batches(scan: Any, data: Any, deletes: Sequence[Any]) -> Iterator[Any]:
    from pyiceberg.io.pyarrow import _read_all_delete_files
    from pyiceberg.table import FileScanTask

    task = FileScanTask(decode_data_file(data), {decode_data_file(file) for file in deletes})
    # The public to_record_batches would load a whole file into memory.
    found: Iterator[Any] = scan._record_batches_from_scan_tasks_and_deletes(
        [task], _read_all_delete_files(scan._io, [task])
    )
    return found


def pack_shares(tasks: Sequence[Any]) -> list[list[Any]]:
    """Group files and their position deletes into shares for tasks; a large file has a share to itself."""
    encode = functools.partial(encode_data_file, with_metrics=False)
    files = [[encode(task.file), [encode(file) for file in task.delete_files]] for task in tasks]
    shares = consecutive([task.file.file_size_in_bytes for task in tasks], _TASK_BYTES)
    return [files[share.start : share.stop] for share in shares]
