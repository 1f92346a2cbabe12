"""
An Iceberg table as a source.

PyIceberg plans the files in the driver and reads them inside Spark tasks, so Spark needs neither a connector nor a
catalog.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StateCheckError, StorageError
from airflow_provider_statecheck.spark.sinks.iceberg.catalogs import (
    OpenTable,
    TableAddress,
    portable_metadata,
    storage_properties_of,
)
from airflow_provider_statecheck.spark.sinks.iceberg.iceberg_writer import decode_data_file, encode_data_file
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.enumerator import (
    ItemEnumerator,
    ItemSplit,
    Limits,
    SourceState,
    decode_source_state,
)
from airflow_provider_statecheck.spark.sources.file_source import SMALLEST_TARGET_BYTES, WANTED_INCREMENTS
from airflow_provider_statecheck.spark.sources.iceberg_ranges import IcebergRanges, PlannedFiles
from airflow_provider_statecheck.spark.sources.source import AUTO, parse_bytes_per_increment, require_count
from airflow_provider_statecheck.spark.sources.source_changes import parse_on_change
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.schemes import conceal

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TASK_BYTES = 32 * 1024 * 1024


class IcebergSource:
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
        if isinstance(columns, str):
            raise InvalidConfigurationError(f"Expected columns to be a list of names, found {columns!r}.")
        self.table = table
        self._address = TableAddress(table, catalog, properties)
        self._starting_snapshot = starting_snapshot
        self._columns = None if columns is None else tuple(columns)
        self._files = None if files_per_increment is None else require_count(files_per_increment, "files_per_increment")
        self._is_auto = bytes_per_increment == AUTO and self._files is None
        self._bytes = parse_bytes_per_increment(bytes_per_increment)
        self._on_change = parse_on_change(on_change)

    def __repr__(self) -> str:
        return f"IcebergSource({self.table!r})"

    def open(
        self,
        spark: SparkSession,
        restored: Mapping[str, Any] | None = None,
        *,
        new_run: bool = False,
        storage_options: Mapping[str, Any] | None = None,
    ) -> ItemEnumerator:
        """
        List the files of the table and plan the unfinished ones.

        :param spark: The session that reads.
        :param restored: State from :meth:`ItemEnumerator.snapshot`; ``None`` on a fresh start.
        :param new_run: ``True`` if a new run continues from the state of an earlier run and also reads appended rows.
        :param storage_options: Unused; the properties of the catalog configure the storage.
        :raises EnvironmentNotReadyError: if there is no such table.
        :raises InvalidConfigurationError: if the table has no such snapshot or column.
        :raises SourceChangedError: if rows were changed, or unread files have expired.
        :raises SourceRestartRequiredError: if so and ``on_change`` is ``"restart"``.
        """
        table = OpenTable(self._address)
        try:
            loaded = table.load()
            with table.redacted_failures():
                return self._enumerator(spark, IcebergRanges(loaded, table.name, self._on_change), restored, new_run)
        finally:
            table.close()

    def _enumerator(
        self, spark: SparkSession, ranges: IcebergRanges, restored: Mapping[str, Any] | None, new_run: bool
    ) -> ItemEnumerator:
        before = None if restored is None else decode_source_state(restored)
        if before is None:
            planned = ranges.at_start(self._starting_snapshot)
            ledger, increments = Ledger(planned.items), 0
        else:
            planned = ranges.of_new_run(before) if new_run else ranges.of_restarted_run(before)
            ledger, increments = before.ledger.with_items(planned.items), before.increments
        # The target size is constant within a run, so that a restarted attempt plans the same increments.
        is_same_run = before is not None and not new_run
        target = before.target_bytes if before is not None and is_same_run else self._target(ledger)
        reader = IcebergReader(spark, ranges.table, planned, self._columns)
        limits = Limits(size_bytes=self._bytes or target, items=self._files)
        return ItemEnumerator(SourceState(ledger, increments, target), limits, reader, lambda _: None)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None


class IcebergReader:
    """
    Reads planned files of an Iceberg table.

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

    def require_unchanged(self, items: Sequence[Item]) -> None:
        """Do nothing: data files never change, and reading reports deleted ones."""

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
        Return the reader of splits for Spark tasks.

        :param schema: Arrow schema of the rows for Spark.
        """
        shares = pack_shares([self._planned.tasks[split.item.name] for split in splits if split.item])
        return IcebergFileReader(
            table=self._shown,
            metadata=portable_metadata(self._table),
            io=self._io,
            projected=self._projection.model_dump_json(),
            schema=schema,
            shares=len(shares),
            packed_shares=zlib.compress(json.dumps(shares, separators=(",", ":")).encode()),
        )

    def arrow_schema(self) -> Any:
        """Return the Arrow schema of the selected columns."""
        from pyiceberg.io.pyarrow import _ConvertToSmallTypes, schema_to_pyarrow, visit_pyarrow

        return visit_pyarrow(schema_to_pyarrow(self._projection, include_field_ids=False), _ConvertToSmallTypes())

    def snapshot(self) -> dict[str, Any]:
        """Return the state for the next attempt: the snapshot ranges."""
        return {"snapshots": self._planned.encode()}

    def _spark_schema(self, schema: Any) -> Any:
        from pyspark.sql.pandas.types import from_arrow_schema

        try:
            return from_arrow_schema(schema)
        except Exception as error:  # the class differs between versions of Spark
            raise InvalidConfigurationError(
                f"Expected columns that Spark has types for, found {error}; exclude the column with columns=."
            ) from error


def _projection(table: Any, snapshot_id: int | None, columns: Sequence[str] | None) -> Any:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergFileReader:
    """Reads files inside Spark tasks; each task reads one share of the files."""

    table: str
    metadata: str
    io: HiddenOptions
    projected: str
    schema: Any
    """Arrow schema of the rows for Spark."""
    shares: int
    """Number of shares."""
    packed_shares: bytes

    def read(self, batches: Iterator[Any]) -> Iterator[Any]:
        """
        Yield the rows of shares.

        :param batches: Record batches with one column of share numbers.
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
                yield from (self._to_schema(batch) for batch in _record_batches(scan, data, deletes))
        except StateCheckError:
            raise
        except Exception as error:
            # No cause: Spark logs the whole chain, and client errors may contain credentials.
            message = conceal(str(error), self.io.reveal())
            raise StorageError(
                f"A file of the Iceberg table {self.table} cannot be read: {type(error).__name__} {message}"
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

    def _to_schema(self, batch: Any) -> Any:
        import pyarrow as pa

        arrays = [batch.column(field.name).cast(field.type) for field in self.schema]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)


def read_iceberg_files(reader: IcebergFileReader, batches: Iterator[Any]) -> Iterator[Any]:
    """Return the rows of a task; query plans show the name of this function."""
    return reader.read(batches)


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
    shares: list[list[Any]] = []
    room = 0
    for task in tasks:
        if task.file.file_size_in_bytes > room or not shares:
            shares.append([])
            room = _TASK_BYTES
        room -= task.file.file_size_in_bytes
        shares[-1].append([_encode_file(task.file), [_encode_file(file) for file in task.delete_files]])
    return shares


def _encode_file(file: Any) -> dict[str, Any]:
    return encode_data_file(file, with_metrics=False)
