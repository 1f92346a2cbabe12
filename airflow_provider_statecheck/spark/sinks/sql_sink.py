"""Sink for a table of a SQL database, with exactly-once commits per checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.spark.sinks.sink import (
    Committable,
    OnEarlierOutput,
    SinkContext,
    SinkTaskContext,
    require_one_of,
)
from airflow_provider_statecheck.spark.sinks.sql.loading import SqlSinkWriter
from airflow_provider_statecheck.spark.sinks.sql.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.sql.tables import TableName, require_columns
from airflow_provider_statecheck.spark.sinks.sql.transactions import SinkDatabase
from airflow_provider_statecheck.spark.sinks.target_checks import require_directory
from airflow_provider_statecheck.spark.sinks.target_files import (
    OpenedTarget,
    TargetFiles,
    staged_epoch,
    staging_directory,
)
from airflow_provider_statecheck.spark.sinks.two_phase_committer import TwoPhaseCommitter
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.spark.sources.sql.database import shown_address

log = logging.getLogger(__name__)


class SqlSink:
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
        require_one_of("on_earlier_output", on_earlier_output, get_args(OnEarlierOutput))
        self._shown = shown_address(url)
        self._url: str | Callable[[], str] | None = url
        self._table = TableName.parse(table)
        self._staging = staging
        self._keys = _unique_names(upsert_by)
        self._marks_rows = mark_rows
        self._given_options = None if storage_options is None else HiddenOptions(storage_options)
        self._refuses_earlier_output = on_earlier_output == "refuse"
        self._target: OpenedTarget | None = None
        self._committer: TwoPhaseCommitter | None = None
        self._epoch = 0
        self._has_swept = False

    def __repr__(self) -> str:
        return f"SqlSink({self._shown!r}, {str(self._table)!r})"

    def __getstate__(self) -> dict[str, Any]:
        # Tasks stage rows; only the driver, which opens the sink, connects to the database.
        url = None if self._target is not None else self._url
        return {**self.__dict__, "_committer": None, "_url": url}

    def open(self, context: SinkContext) -> None:
        """
        Check the table and take ownership of it from earlier attempts.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises EnvironmentNotReadyError: if the table has output to delete that is not retractable, or that the sink
            refuses.
        :raises UnsupportedStateError: if the schema is incompatible with the table.
        :raises CorruptStateError: if output of the restored checkpoint was replaced.
        :raises StorageError: if the database or the staging directory fails.
        """
        if context.schema is not None:
            require_columns(context.schema, self._keys)
        target = OpenedTarget.of(self._staging, context, self._given_options)
        files = target.files(TargetFiles)
        require_directory(files)
        destination = self._destination(context, files)
        destination.prepare(context.schema)
        committer = self._new_committer(context, destination)
        committer.open()
        self._target, self._committer = target, committer
        self._epoch, self._has_swept = context.epoch, False

    def writer(self, context: SinkTaskContext) -> SqlSinkWriter:
        """Return the writer of one Spark task."""
        return SqlSinkWriter(self._files(), self._keys, context)

    def commit(self, checkpoint_id: int, committables: Sequence[Mapping[str, Any]]) -> None:
        """
        Load the rows of a completed checkpoint; idempotent.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises CorruptStateError: if staged rows are missing or were modified.
        :raises UnsupportedStateError: if the table rejects the rows.
        :raises StorageError: if the database or the staging directory fails.
        """
        found = [Committable.from_json(document) for document in committables]
        self._opened().commit(checkpoint_id, found)
        lineage = self._files().lineage
        own = [each for each in found if each.lineage == lineage]
        self._delete_staged([file.staged for each in own for file in each.files])
        if not self._has_swept and any(each.epoch == self._epoch for each in own):
            # From here on, no attempt can resume from uncommitted rows of earlier attempts.
            self._sweep(self._epoch - 1)
            self._has_swept = True

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success, delete its uncommitted and staged rows.

        :raises StaleAttemptError: if a newer attempt owns the table.
        :raises StorageError: if the database fails.
        """
        committer, self._committer = self._committer, None
        # After a failure, the next attempt determines which rows it still needs.
        if committer is not None and succeeded:
            committer.close()
            self._sweep(self._epoch)

    def _destination(self, context: SinkContext, files: TargetFiles) -> SqlDestination:
        if self._url is None:
            raise CoordinatorError(
                f"Expected {self!r} to be opened on the driver, found the copy of a task; open it before tasks start."
            )
        return SqlDestination(
            database=SinkDatabase.open(self._url),
            table=self._table,
            files=files,
            keys=self._keys,
            marks_rows=self._marks_rows,
            job_name=context.job_name,
            uid=context.uid,
        )

    def _new_committer(self, context: SinkContext, destination: SqlDestination) -> TwoPhaseCommitter:
        return TwoPhaseCommitter(
            destination=destination,
            context=context,
            lineage=destination.files.lineage,
            can_retract=self._marks_rows,
            refuses_earlier_output=self._refuses_earlier_output,
        )

    def _sweep(self, last_epoch: int) -> None:
        files = self._files()
        try:
            names = files.list_files(staging_directory(files.lineage))
        except StateCheckError as error:
            log.warning("Orphan files in the staging directory %s were not deleted: %s", files.target, error)
            return
        self._delete_staged([name for name in names if (staged_epoch(name) or 0) <= last_epoch])

    def _delete_staged(self, names: Sequence[str]) -> None:
        files = self._files()
        for name in names:
            try:
                files.delete(f"{staging_directory(files.lineage)}/{name}")
            except StateCheckError as error:
                log.warning("File %s in the staging directory %s was not deleted: %s", name, files.target, error)

    def _files(self) -> TargetFiles:
        if self._target is None:
            raise CoordinatorError(
                f"Expected {self!r} to be opened before it is used, found it unopened; open it on the driver."
            )
        return self._target.files(TargetFiles)

    def _opened(self) -> TwoPhaseCommitter:
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        return self._committer


def _unique_names(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(columns) or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(
            f"Expected upsert_by as a list of unique column names, found {columns!r}; correct the list."
        )
    return tuple(columns)
