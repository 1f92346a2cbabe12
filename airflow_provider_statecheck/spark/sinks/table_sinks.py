"""Sinks for Delta, Iceberg and SQL tables, with exactly-once commits per checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, ClassVar, Literal, Self, get_args

from airflow_provider_statecheck.checkpoint.codec import require_count, require_one_of
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.sinks.delta_destination import DeltaDestination
from airflow_provider_statecheck.spark.sinks.delta_output import (
    AppendedFiles,
    DeltaCommittable,
    UpsertedRows,
    delta_writer,
)
from airflow_provider_statecheck.spark.sinks.iceberg_destination import IcebergDestination
from airflow_provider_statecheck.spark.sinks.iceberg_writer import (
    IcebergCommittable,
    IcebergSinkWriter,
    WriterTarget,
    has_marks,
    require_keys,
)
from airflow_provider_statecheck.spark.sinks.limits import TargetLimits
from airflow_provider_statecheck.spark.sinks.places import Place
from airflow_provider_statecheck.spark.sinks.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    unique_names,
)
from airflow_provider_statecheck.spark.sinks.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.sql_loading import TableName, require_columns
from airflow_provider_statecheck.spark.sinks.target_files import (
    ParquetSinkWriter,
    TargetFiles,
    ledger_storage,
    open_target,
    require_directory,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.column_types import require_stored
from airflow_provider_statecheck.spark.tables.data_files import FILE_BYTES, FileLayout
from airflow_provider_statecheck.spark.tables.databases import SinkDatabase, is_sqlite_file, shown_address
from airflow_provider_statecheck.spark.tables.delta import DeltaTableAccess, deltalake, require_safe_commits
from airflow_provider_statecheck.spark.tables.iceberg import OpenTable, TableAddress, TaskTable, required_fields
from airflow_provider_statecheck.spark.tables.schemas import required_columns, with_required
from airflow_provider_statecheck.storage.uris import path_text, redact

_DEFAULT_BUFFER_BYTES = 128 * 1024 * 1024
_STAGED_LAYOUT = FileLayout(compression="zstd", partition_by=(), max_file_bytes=FILE_BYTES)
"""Layout of the rows that wait for the database."""
Compression = Literal["zstd", "snappy", "gzip", "none"]
_DELTA, _ICEBERG, _SQL = "delta", "iceberg", "sql"
"""Kinds of places."""


class DeltaSink(CommittingSink):
    """
    Adds the output of each checkpoint to a Delta table in one version, when the checkpoint is complete, or upserts it.

    A missing table is created. Other writers may write to the table concurrently; without ``upsert_by``, the sink never
    changes their files.

    :param table: Directory of the table as a path or a URI.
    :param partition_by: Partition columns of the table.
    :param upsert_by: Key columns for upserts by the driver; by default rows are only added.
    :param merge_schema: Whether to add missing columns to the table.
    :param compression: Parquet compression codec.
    :param max_file_bytes: File size in bytes at which the writer starts a new file, by default 512 MiB.
    :param storage_options: Filesystem options; by default those of the stage's checkpoint storage.
    :param delta_options: Options of deltalake for the same storage; by default derived from ``storage_options``.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` replaces it with
        the first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[DeltaCommittable]] = DeltaCommittable

    def __init__(
        self,
        table: str | PathLike[str],
        *,
        partition_by: Sequence[str] = (),
        upsert_by: Sequence[str] = (),
        merge_schema: bool = False,
        compression: Compression = "zstd",
        max_file_bytes: int = FILE_BYTES,
        storage_options: Mapping[str, Any] | None = None,
        delta_options: Mapping[str, str] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        require_one_of("compression", compression, get_args(Compression))
        self.table = path_text(table)
        self._partition_by = unique_names("partition_by", partition_by)
        self._merges_schema = merge_schema
        self._keys = unique_names("upsert_by", upsert_by)
        self._layout = FileLayout(
            compression=compression,
            partition_by=() if self._keys else self._partition_by,  # deltalake writes the files of an upsert
            max_file_bytes=max_file_bytes,
        )
        self._given_options = hidden_options(storage_options)
        self._given_delta_options = hidden_options(delta_options)
        self._files: TargetFiles | None = None
        self._generation = 0
        self._required: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"DeltaSink({redact(self.table)!r})"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Tasks only write files.
        return {**super().__getstate__(), "_given_delta_options": None}

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        files = self._require_opened(self._files)
        return delta_writer(
            files, self._layout, self._generation, context, self._keys, self._required, self._partition_by
        )

    @override
    def at(self, place: Place) -> Self | None:
        if place.kind != _DELTA:
            return None
        former = self._copy()
        former.table = place.address
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        return Place.of_uri(_DELTA, open_target(self.table, context.options(self._given_options)).base_uri)

    @override
    def _destination(self, context: SinkContext) -> DeltaDestination:
        deltalake()
        require_stored(context.schema, "a Delta table")
        files = TargetFiles.open(self.table, context.lineage, context.options(self._given_options))
        table = DeltaTableAccess.of(files.storage, self._given_delta_options)
        require_safe_commits(table.options.reveal())
        records = CommitFiles(ledger_storage(files.storage), context.lineage, DeltaCommittable)
        self._files, self._generation = files, context.generation
        snapshot = table.snapshot()
        self._required = () if snapshot is None else required_columns(snapshot.schema)
        upserts = {"keys": self._keys, "compression": self._layout.compression} if self._keys else {}
        kind: Any = UpsertedRows if upserts else AppendedFiles
        destination: DeltaDestination = kind(
            table=table,
            files=files,
            records=records,
            context=context,
            partition_by=self._partition_by,
            merges_schema=self._merges_schema,
            **upserts,
        )
        return destination


class IcebergSink(CommittingSink):
    """
    Adds the output of each checkpoint to an Iceberg table in one snapshot, when the checkpoint is complete.

    Several sinks of one or more stages may write to a table, concurrently with other writers; without ``upsert_by``, each
    changes only its own files. The table must exist, and it determines the columns, the partitions and the file properties.

    :param table: Identifier of the table, such as ``sales.orders``.
    :param catalog: Name of the catalog; by default the one that is configured for pyiceberg.
    :param properties: Properties of the pyiceberg catalog and of the table's storage, such as ``uri``; may contain
        credentials.
    :param upsert_by: Key columns for upserts; without them the sink appends rows. The driver rewrites the files that
        contain keys of a checkpoint.
    :param buffer_bytes: Size in bytes of the rows that a task buffers before it writes one file per partition, by
        default 128 MiB.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` removes it with the
        first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[IcebergCommittable]] = IcebergCommittable

    def __init__(
        self,
        table: str,
        *,
        catalog: str | None = None,
        properties: Mapping[str, Any] | None = None,
        upsert_by: Sequence[str] = (),
        buffer_bytes: int = _DEFAULT_BUFFER_BYTES,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        self.table = table
        self._address: TableAddress | None = TableAddress(table, catalog, properties)
        self._upsert_by = unique_names("upsert_by", upsert_by)
        self._buffer_bytes = require_count("buffer_bytes", buffer_bytes)
        self._target: WriterTarget | None = None
        self._opened: OpenTable | None = None

    def __repr__(self) -> str:
        return f"IcebergSink({self.table!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks write; only the driver needs the catalog and its credentials.
        address = self._address if self._target is None else None
        return {**super().__getstate__(), "_opened": None, "_address": address}

    @override
    def open(self, context: SinkContext) -> None:
        self._release()
        try:
            super().open(context)
        except BaseException:
            self._release()
            raise

    def writer(self, context: SinkTaskContext) -> IcebergSinkWriter:
        """Return the writer of one Spark task."""
        return IcebergSinkWriter(self._require_opened(self._target), context)

    @override
    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        super().commit(checkpoint_id, committables)
        # Vended credentials for the storage expire, often after an hour.
        if self._opened is not None and self._target is not None:
            self._update_target(self._opened, self._target.lineage)

    @override
    def close(self, succeeded: bool) -> None:
        try:
            super().close(succeeded)
        finally:
            self._release()

    @override
    def at(self, place: Place) -> Self | None:
        if self._address is None or place.kind != _ICEBERG:
            return None
        former = self._copy()
        former.table, former._address = place.address, self._address.of_table(place.address)
        former._target = former._opened = None
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        if self._address is None:
            raise self._copy_error()
        return Place(kind=_ICEBERG, address=self.table, store=self._address.shown_catalog)

    @override
    def _destination(self, context: SinkContext) -> IcebergDestination:
        if self._address is None:
            raise self._copy_error()
        require_stored(context.schema, "an Iceberg table")
        self._opened = table = OpenTable(self._address)
        loaded = table.load()
        with table.redacted_failures():
            self._require_fitting(loaded, context.schema, table.name)
            self.can_retract = not self._upsert_by or has_marks(loaded)
        self._update_target(table, context.lineage)
        return IcebergDestination(
            table=table,
            context=context,
            upsert_by=self._upsert_by,
            marks_rows=bool(self._upsert_by) and self.can_retract,
        )

    def _require_fitting(self, loaded: Any, schema: Any, name: str) -> None:
        _require_writable_table(loaded, name)
        _require_partitionable(loaded, name)
        _require_fitting_columns(loaded, schema, name)
        if self._upsert_by:
            require_keys(loaded, self._upsert_by, schema, name)
            _require_no_equality_deletes(loaded, name)

    def _update_target(self, table: OpenTable, lineage: str) -> None:
        with table.redacted_failures():
            self._target = WriterTarget(
                table=TaskTable.of(table.latest, table.name),
                lineage=lineage,
                buffer_bytes=self._buffer_bytes,
                upsert_by=self._upsert_by,
            )

    def _release(self) -> None:
        self._committer = None
        table, self._opened = self._opened, None
        if table is not None:
            table.close()


_TABLE_FORMAT = 2


def _require_writable_table(table: Any, shown: str) -> None:
    if table.metadata.format_version != _TABLE_FORMAT:
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} in format {_TABLE_FORMAT}, found {table.metadata.format_version}; "
            "create the table with the property format-version = 2, or upgrade it."
        )
    written = table.metadata.properties.get("write.format.default", "parquet")
    if written.lower() != "parquet":
        raise UnsupportedStateError(
            f"Expected the Iceberg table {shown} to be written as Parquet, found {written!r}; change write.format.default."
        )


def _require_partitionable(table: Any, shown: str) -> None:
    from importlib.util import find_spec

    from pyiceberg.transforms import IdentityTransform, VoidTransform

    computed = [f for f in table.spec().fields if not isinstance(f.transform, IdentityTransform | VoidTransform)]
    if computed and find_spec("pyiceberg_core") is None:
        raise EnvironmentNotReadyError(
            f"Expected the package pyiceberg-core for the partitions of the Iceberg table {shown} by "
            f"{computed[0].transform}, found none; pip install 'pyiceberg[pyiceberg-core]' on the driver and on the executors."
        )


def _require_fitting_columns(table: Any, schema: Any, shown: str) -> None:
    if schema is None:
        return
    from pyiceberg.io.pyarrow import _check_pyarrow_schema_compatible

    try:
        ours = with_required(schema, required_fields(table.schema()))
        _check_pyarrow_schema_compatible(table.schema(), ours, format_version=table.metadata.format_version)
    except (ValueError, TypeError) as error:
        raise UnsupportedStateError(
            f"Expected output that fits the columns of the Iceberg table {shown}, found differences:\n{error}\n"
            "Convert the output in the stage, or alter the table."
        ) from error


def _require_no_equality_deletes(table: Any, shown: str) -> None:
    snapshot = table.metadata.snapshot_by_name("main")
    summary = snapshot and snapshot.summary
    if summary and int(summary.get("total-equality-deletes") or 0):
        raise UnsupportedStateError(
            f"Expected no equality deletes in the Iceberg table {shown}, which an upsert cannot read, found some; rewrite its data "
            "files to apply the deletes."
        )


class SqlSink(CommittingSink):
    """
    Adds the rows of each checkpoint to a PostgreSQL or SQLite table in one transaction, or upserts them by key.

    Spark tasks stage the rows as files; only the driver connects to the database. Several sinks of one or more stages
    may write to the same table and share a staging directory.

    :param url: SQLAlchemy URL, ``env:NAME`` for a URL in an environment variable of the driver, or a function that
        returns a URL. The URL is never logged.
    :param table: Table as ``table`` or ``schema.table``; created if it is missing.
    :param staging: Directory for staged rows as a path or an fsspec URI; the driver and all executors must reach it.
    :param upsert_by: Key columns for upserts; by default rows are only added.
    :param mark_rows: Whether two additional columns record the sink and the checkpoint of each row. Without them,
        committed rows cannot be rolled back, and a start that requires it fails.
    :param storage_options: Filesystem options of the staging directory; by default those of the stage's checkpoint
        storage.
    :param on_earlier_output: Handling of the output of earlier starts by a fresh start: ``retract`` deletes it with the
        first commit, ``refuse`` fails the start.
    :raises InvalidConfigurationError: if an argument is out of range.
    """

    _committable: ClassVar[type[Committable]] = Committable

    def __init__(
        self,
        url: str | Callable[[], str],
        table: str,
        *,
        staging: str,
        upsert_by: Sequence[str] = (),
        mark_rows: bool = True,
        storage_options: Mapping[str, Any] | None = None,
        on_earlier_output: OnEarlierOutput = "retract",
    ) -> None:
        super().__init__(on_earlier_output)
        self._shown = shown_address(url)
        self._url: str | Callable[[], str] | None = url
        self._table = TableName.parse(table)
        self._staging = staging
        self._keys = unique_names("upsert_by", upsert_by)
        self.can_retract = mark_rows
        self._limits: TargetLimits | None = None
        self._given_options = hidden_options(storage_options)
        self._files: TargetFiles | None = None

    def __repr__(self) -> str:
        return f"SqlSink({self._shown!r}, {str(self._table)!r})"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Tasks stage rows; only the driver, which opens the sink, connects to the database.
        url = None if self._files is not None else self._url
        return {**super().__getstate__(), "_url": url}

    def writer(self, context: SinkTaskContext) -> ParquetSinkWriter:
        """Return the writer of one Spark task."""
        files = self._require_opened(self._files)
        return ParquetSinkWriter(files, _STAGED_LAYOUT, context, limits=self._require_opened(self._limits))

    @override
    def at(self, place: Place) -> Self | None:
        if place.kind != _SQL or self._url is None:
            return None
        former = self._copy()
        former._table, former._staging = TableName.parse(place.address), place.staging
        # A file has no password; the URL of another server has one that the place does not name.
        if is_sqlite_file(place.store):
            former._url = place.store
        return former

    @override
    def _place(self, context: SinkContext) -> Place:
        if self._url is None:
            raise self._copy_error()
        staging = open_target(self._staging, context.options(self._given_options))
        store = SinkDatabase.open(self._url).address
        return Place(kind=_SQL, address=str(self._table), store=store, staging=redact(staging.base_uri))

    @override
    def _destination(self, context: SinkContext) -> SqlDestination:
        if self._url is None:
            raise self._copy_error()
        require_stored(context.schema, "a table of a database")
        if context.schema is not None:
            require_columns(context.schema, self._keys)
        files = TargetFiles.open(self._staging, context.lineage, context.options(self._given_options))
        require_directory(files)
        destination = SqlDestination(
            database=SinkDatabase.open(self._url),
            table=self._table,
            files=files,
            keys=self._keys,
            marks_rows=self.can_retract,
            context=context,
        )
        self._limits = destination.prepare()
        self._files = files
        return destination
