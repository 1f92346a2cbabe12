"""Sink for tables of databases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Self

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.exactly_once.committing_sink import CommittingSink
from airflow_provider_statecheck.spark.connectors.exactly_once.places import Place
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import (
    ParquetSinkWriter,
    TargetFiles,
    open_target,
    require_directory,
)
from airflow_provider_statecheck.spark.connectors.limits import TargetLimits
from airflow_provider_statecheck.spark.connectors.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    unique_names,
)
from airflow_provider_statecheck.spark.connectors.sql.databases import SinkDatabase, is_sqlite_file, shown_address
from airflow_provider_statecheck.spark.connectors.sql.destination import SqlDestination
from airflow_provider_statecheck.spark.connectors.sql.loading import TableName, require_columns
from airflow_provider_statecheck.spark.snapshots.executor_io import hidden_options
from airflow_provider_statecheck.spark.tables.column_types import require_stored
from airflow_provider_statecheck.spark.tables.data_files import FILE_BYTES, FileLayout
from airflow_provider_statecheck.storage.uris import redact

_STAGED_LAYOUT = FileLayout(compression="zstd", partition_by=(), max_file_bytes=FILE_BYTES)
"""Layout of the rows that wait for the database."""
_KIND = "sql"
"""Kind of the place."""


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
        if place.kind != _KIND or self._url is None:
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
        return Place(kind=_KIND, address=str(self._table), store=store, staging=redact(staging.base_uri))

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
