"""Sink for a table of a SQL database, with exactly-once commits per checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from typing_extensions import override

from airflow_provider_statecheck.spark.sinks.commits.committer import CommittingSink
from airflow_provider_statecheck.spark.sinks.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    unique_names,
)
from airflow_provider_statecheck.spark.sinks.sql.loading import SqlSinkWriter
from airflow_provider_statecheck.spark.sinks.sql.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.sql.tables import TableName, require_columns
from airflow_provider_statecheck.spark.sinks.target_checks import require_directory
from airflow_provider_statecheck.spark.sinks.target_files import OpenedTarget, TargetFiles
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.tables.databases import SinkDatabase, shown_address


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
        self._given_options = None if storage_options is None else HiddenOptions(storage_options)
        self._target: OpenedTarget | None = None

    def __repr__(self) -> str:
        return f"SqlSink({self._shown!r}, {str(self._table)!r})"

    @override
    def __getstate__(self) -> dict[str, Any]:
        # Tasks stage rows; only the driver, which opens the sink, connects to the database.
        url = None if self._target is not None else self._url
        return {**super().__getstate__(), "_url": url}

    def writer(self, context: SinkTaskContext) -> SqlSinkWriter:
        """Return the writer of one Spark task."""
        return SqlSinkWriter(self._require_opened(self._target).files(TargetFiles), self._keys, context)

    @override
    def _destination(self, context: SinkContext) -> SqlDestination:
        if self._url is None:
            raise self._copy_error()
        if context.schema is not None:
            require_columns(context.schema, self._keys)
        target = OpenedTarget.of(self._staging, context, self._given_options)
        files = target.files(TargetFiles)
        require_directory(files)
        destination = SqlDestination(
            database=SinkDatabase.open(self._url),
            table=self._table,
            files=files,
            keys=self._keys,
            marks_rows=self.can_retract,
            job_name=context.job_name,
            uid=context.uid,
        )
        destination.prepare(context.schema)
        self._target = target
        return destination
