"""
An Iceberg table as a source, planned by snapshot ranges.

PyIceberg plans the files in the driver and reads them inside Spark tasks, so Spark needs neither a connector nor a
catalog.

A fresh start reads all files of one snapshot, or the files appended since a starting snapshot. A restarted run reads
the same ranges again; a new run adds the range of snapshots since.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.enumerator import ItemReader, ItemSplit, SourceState, parse_limits
from airflow_provider_statecheck.spark.connectors.iceberg.table import (
    OpenTable,
    TableAddress,
    TaskTable,
    decode_data_file,
    encode_data_file,
)
from airflow_provider_statecheck.spark.connectors.item_source import ItemSource, Opening, parse_columns
from airflow_provider_statecheck.spark.connectors.source import OnChange, change_error, restart_or_rewind
from airflow_provider_statecheck.spark.tables.schemas import (
    TASK_BYTES,
    TaskReader,
    arrow_schema,
    concealed_failures,
    consecutive,
    pack_tasks,
    require_columns,
    spark_schema,
)
from airflow_provider_statecheck.state.source_items import Item, Ledger
from airflow_provider_statecheck.storage.stored_json import decoding
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


_SHOWN = 3


@dataclass(frozen=True, slots=True)
class SnapshotRange:
    """Files appended after one snapshot up to another one; all files of the latter if there is no first one."""

    after: int | None
    until: int | None
    """``None`` for a table without snapshots."""


@dataclass(frozen=True, slots=True)
class PlannedFiles:
    """The files of snapshot ranges."""

    ranges: tuple[SnapshotRange, ...]
    tasks: Mapping[str, Any]
    """PyIceberg scan tasks by the paths of their data files."""

    @property
    def items(self) -> tuple[Item, ...]:
        """The files as items; the record count is enough as a version, because data files never change."""
        return tuple(
            Item.of(path, task.file.file_size_in_bytes, task.file.record_count) for path, task in self.tasks.items()
        )

    @property
    def until(self) -> int | None:
        """The last snapshot of the ranges."""
        return self.ranges[-1].until

    def encode(self) -> list[list[int | None]]:
        """Return the ranges as plain values."""
        return [[snapshots.after, snapshots.until] for snapshots in self.ranges]


def decode_ranges(reader: Mapping[str, Any] | None) -> tuple[SnapshotRange, ...]:
    """
    Decode the ranges from the state of a reader.

    :raises CorruptStateError: if the state is invalid.
    """
    with decoding("the snapshots that a source has read"):
        (first, *others) = (SnapshotRange(after, until) for after, until in (reader or {})["snapshots"])
        return (first, *others)


class IcebergRanges:
    """
    Plans the files of a run.

    :param name: Name of the table in messages.
    :param on_change: Policy for snapshots that changed or deleted rows.
    :param remedy: What helps against such a snapshot, besides ignoring it.
    """

    def __init__(
        self, table: Any, name: str, on_change: OnChange, remedy: str = "set another starting_snapshot"
    ) -> None:
        self.table = table
        self._name = name
        self._on_change = on_change
        self._remedy = remedy

    def at_start(self, after: int | None) -> PlannedFiles:
        """
        Plan a fresh start.

        :param after: Starting snapshot; ``None`` to read the whole table.
        :raises InvalidConfigurationError: if the starting snapshot is not in the history of the table.
        :raises SourceChangedError: if rows were changed since the starting snapshot.
        """
        if after is None:
            return self._plan((SnapshotRange(None, self._head),))
        if after not in {snapshot.snapshot_id for snapshot in self._ancestors()}:
            raise InvalidConfigurationError(
                f"Expected a starting snapshot in the retained history of the Iceberg table {self._name}, found "
                f"{after}; set another one, or none to read everything."
            )
        self._require_appends_after(after)
        return self._plan((SnapshotRange(after, self._head),))

    def of_restarted_run(self, before: SourceState) -> PlannedFiles:
        """
        Plan the files of a run that was started before, regardless of later commits.

        :raises SourceChangedError: if a snapshot with unread files has expired.
        :raises SourceRestartRequiredError: if so and the policy is ``RESTART``.
        """
        ranges = decode_ranges(before.reader)
        if not before.ledger.unfinished and not all(self._is_retained(snapshots) for snapshots in ranges):
            return PlannedFiles(ranges, {})
        return self._require_unfinished_files(before, self._plan(ranges))

    def of_new_run(self, before: SourceState) -> PlannedFiles:
        """
        Plan a new run: the unread files of the previous run, and the files appended since.

        :raises SourceChangedError: if rows were changed, or snapshots with unread files have expired.
        :raises SourceRestartRequiredError: if so and the policy is ``RESTART``.
        """
        ranges = decode_ranges(before.reader)
        left = ranges if before.ledger.unfinished else ()
        after = ranges[-1].until
        if after is not None:
            self._require_ancestor(after)
            self._require_appends_after(after)
        return self._require_unfinished_files(before, self._plan((*left, SnapshotRange(after, self._head))))

    @property
    def _head(self) -> int | None:
        snapshot = self.table.current_snapshot()
        return None if snapshot is None else int(snapshot.snapshot_id)

    def _plan(self, ranges: tuple[SnapshotRange, ...]) -> PlannedFiles:
        missing = [snapshots for snapshots in ranges if not self._is_retained(snapshots)]
        if missing:
            self._refuse(f"snapshot {missing[0].until} has expired, with files that are still to be read", is_lost=True)
        tasks = {task.file.file_path: task for snapshots in ranges for task in self._tasks(snapshots)}
        return PlannedFiles(ranges, tasks)

    def _require_unfinished_files(self, before: SourceState, planned: PlannedFiles) -> PlannedFiles:
        # Snapshots inside a range may have expired, and with them the information which files they added.
        lost = [item.name for item in before.ledger.unfinished if item.name not in planned.tasks]
        if lost:
            self._refuse(
                f"snapshots have expired with {len(lost)} file(s) that are still to be read, such as {redact(lost[0])}",
                is_lost=True,
            )
        return planned

    def _tasks(self, snapshots: SnapshotRange) -> list[Any]:
        if snapshots.until is None:
            return []
        if snapshots.after is None:
            found = sorted(self._scanned(snapshots.until), key=lambda task: str(task.file.file_path))
        else:
            found = list(self._appended(snapshots.after, snapshots.until))
        self._require_readable(found)
        return found

    def _scanned(self, snapshot_id: int) -> list[Any]:
        try:
            return list(self.table.scan(snapshot_id=snapshot_id).plan_files())
        except ValueError as error:
            raise self._unreadable(str(error)) from error

    def _require_readable(self, tasks: Iterable[Any]) -> None:
        from pyiceberg.manifest import FileFormat

        for file in (file for task in tasks for file in (task.file, *task.delete_files)):
            if file.file_format is not FileFormat.PARQUET:
                raise self._unreadable(f"{redact(file.file_path)} in the format {file.file_format.value}")
            if file.key_metadata:
                raise self._unreadable(f"{redact(file.file_path)}, which is encrypted")

    def _unreadable(self, found: str) -> UnsupportedStateError:
        return UnsupportedStateError(
            f"Expected the rows of the Iceberg table {self._name} in Parquet files with position deletes at most, "
            f"found: {found}. Rewrite its data files to apply the deletes, and run again."
        )

    def _appended(self, after: int, until: int) -> Iterator[Any]:
        from pyiceberg.table import FileScanTask
        from pyiceberg.table.snapshots import Operation

        # Oldest snapshots first, and the files of each snapshot by path.
        for snapshot in reversed(list(self._between(after, until))):
            if snapshot.summary.operation is Operation.APPEND:
                files = sorted(self._added_by(snapshot), key=lambda file: str(file.file_path))
                yield from (FileScanTask(file) for file in files)

    def _added_by(self, snapshot: Any) -> Iterator[Any]:
        from pyiceberg.manifest import ManifestContent, ManifestEntryStatus

        for manifest in snapshot.manifests(self.table.io):
            if manifest.content == ManifestContent.DATA and manifest.added_snapshot_id == snapshot.snapshot_id:
                for entry in manifest.fetch_manifest_entry(self.table.io):
                    if entry.status == ManifestEntryStatus.ADDED and entry.snapshot_id == snapshot.snapshot_id:
                        yield entry.data_file

    def _require_ancestor(self, snapshot_id: int) -> None:
        known = {parent for s in self._ancestors() for parent in (s.snapshot_id, s.parent_snapshot_id)}
        if snapshot_id not in known:
            self._refuse(
                f"its history no longer includes snapshot {snapshot_id}, the last one that was read", is_lost=True
            )

    def _require_appends_after(self, after: int) -> None:
        from pyiceberg.table.snapshots import Operation

        harmless = (Operation.APPEND, Operation.REPLACE)
        found = [s for s in self._between(after, self._head) if s.summary.operation not in harmless]
        if found:
            shown = ", ".join(f"{s.snapshot_id} ({s.summary.operation.value})" for s in found[-_SHOWN:])
            self._refuse(f"rows were changed or deleted by {len(found)} snapshot(s): {shown}", is_lost=False)

    def _refuse(self, found: str, *, is_lost: bool) -> None:
        if not is_lost and self._on_change is OnChange.IGNORE:
            return
        remedy = (
            self._remedy
            if is_lost
            else f"set on_change to 'ignore' to continue with the appended rows, or {self._remedy}"
        )
        raise change_error(
            f"Expected only appends to the Iceberg table {self._name} since it was read, found that {found}",
            f"{remedy[0].upper()}{remedy[1:]}.",
            self._on_change,
        )

    def _is_retained(self, snapshots: SnapshotRange) -> bool:
        return snapshots.until is None or self.table.metadata.snapshot_by_id(snapshots.until) is not None

    def _ancestors(self) -> Iterable[Any]:
        return self._between(None, self._head)

    def _between(self, after: int | None, until: int | None) -> Iterator[Any]:
        from pyiceberg.table.snapshots import ancestors_of

        metadata = self.table.metadata
        for snapshot in ancestors_of(metadata.snapshot_by_id(until) if until is not None else None, metadata):
            if snapshot.snapshot_id == after:
                return
            yield snapshot


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
                ledger, planned = self._planned(loaded, table.name, opening)
                return ledger, IcebergReader(opening.spark, loaded, planned, self._columns)
        finally:
            table.close()

    def _planned(self, loaded: Any, name: str, opening: Opening) -> tuple[Ledger, PlannedFiles]:
        if opening.before is None:
            planned = IcebergRanges(loaded, name, self._on_change).at_start(self._starting_snapshot)
            return Ledger(planned.items), planned
        remedy = restart_or_rewind(opening.before.ledger, new_run=opening.is_new_run)
        ranges = IcebergRanges(loaded, name, self._on_change, remedy)
        plan = ranges.of_new_run if opening.is_new_run else ranges.of_restarted_run
        planned = plan(opening.before)
        return opening.before.ledger.with_items(planned.items), planned


class IcebergReader(ItemReader):
    """
    Reads planned files of an Iceberg table; data files never change, and reading reports deleted ones.

    :param columns: Columns to read; all for ``None``.
    :raises InvalidConfigurationError: if a column does not exist, or Spark has no type for it.
    :raises UnsupportedStateError: if tasks cannot access the storage of the table.
    """

    def __init__(self, spark: SparkSession, table: Any, planned: PlannedFiles, columns: Sequence[str] | None) -> None:
        self._spark = spark
        self._planned = planned
        self._projection = _projection(table, planned.until, columns)
        self._table = TaskTable.of(table, ".".join(table.name()))

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
            table=self._table,
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

    table: TaskTable
    projected: str

    @override
    def read_task(self, task: Any) -> Iterator[Any]:
        what = f"A file of the Iceberg table {self.table.shown} cannot be read"
        with concealed_failures(what, self.table.io.reveal()):
            scan = self._scan()
            for data, deletes in task:
                yield from (self._to_schema(batch) for batch in _record_batches(scan, data, deletes))

    def _scan(self) -> Any:
        from pyiceberg.expressions import AlwaysTrue
        from pyiceberg.io.pyarrow import ArrowScan
        from pyiceberg.schema import Schema

        return ArrowScan(*self.table.open(), Schema.model_validate_json(self.projected), AlwaysTrue())

    def _to_schema(self, batch: Any) -> Any:
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
    shares = consecutive([task.file.file_size_in_bytes for task in tasks], TASK_BYTES)
    return [files[share.start : share.stop] for share in shares]
