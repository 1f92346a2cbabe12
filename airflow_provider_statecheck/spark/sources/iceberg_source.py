"""An Iceberg table as a source."""

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
from airflow_provider_statecheck.spark.sources.source_changes import on_change_of
from airflow_provider_statecheck.spark.sources.splits import Item, Ledger
from airflow_provider_statecheck.storage.schemes import conceal

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


class IcebergSource:
    """
    An Iceberg table as it is at the start; a new run that goes on with the state reads what was appended since.

    PyIceberg reads, in tasks of Spark: no connector and no catalog of Spark is needed.

    :param table: Its name with that of its namespace, such as ``sales.orders``.
    :param catalog: The name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: What pyiceberg needs to know of the catalog and of the table's storage; they may be credentials.
    :param starting_snapshot: Read only what was appended after this snapshot; by default everything.
    :param columns: Which columns to read; all by default.
    :param bytes_per_increment: About how much one Spark job reads. ``"auto"`` is a 64th of all, at least 256 MiB; where
        another limit is given, it is none.
    :param files_per_increment: How many files one Spark job reads at most.
    :param on_change: What to do if rows were changed or deleted since: ``"fail"``, ``"ignore"`` to go on with what was
        appended, or ``"restart"``.
    :raises InvalidConfigurationError: if an argument is out of its range.
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
        self._on_change = on_change_of(on_change)

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
        List the files of the table and plan what is left of them.

        :param spark: The session that will read.
        :param restored: What an enumerator of this source gave; ``None`` at the start.
        :param new_run: Whether a new run goes on with the state of one that has ended, so that what was appended is read.
        :param storage_options: Without effect; the properties of the catalog say how its storage is reached.
        :raises EnvironmentNotReadyError: if there is no such table.
        :raises InvalidConfigurationError: if a snapshot or a column is not in the table.
        :raises SourceChangedError: if rows were changed, or what is still to be read is gone.
        :raises SourceRestartRequiredError: if they were and the stage is to begin again.
        """
        table = OpenTable(self._address)
        try:
            loaded = table.load()
            with table.failures_told():
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
            planned = ranges.of_new_run(before) if new_run else ranges.of_run(before)
            ledger, increments = before.ledger.carried_to(planned.items), before.increments
        # Within a run increments stay as large as they were, so that they are the same ones.
        is_kept = before is not None and not new_run
        target = before.target_bytes if before is not None and is_kept else self._target(ledger)
        reader = IcebergReader(spark, ranges.table, planned, self._columns)
        limits = Limits(size_bytes=self._bytes or target, items=self._files)
        return ItemEnumerator(SourceState(ledger, increments, target), limits, reader, lambda _: None)

    def _target(self, ledger: Ledger) -> int | None:
        left = ledger.total_bytes - ledger.finished_bytes
        return max(SMALLEST_TARGET_BYTES, left // WANTED_INCREMENTS) if self._is_auto else None
