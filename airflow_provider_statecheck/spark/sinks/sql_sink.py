"""A table of a database to which each completed checkpoint adds its rows exactly once."""

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
    Adds each checkpoint's rows to a table of PostgreSQL or SQLite in one transaction, or replaces rows by their keys.

    Spark's tasks stage the rows as files; only the driver speaks to the database. Several sinks, of one stage or of many, may
    write to one table, and stage in one directory.

    :param url: A URL of SQLAlchemy, ``env:NAME`` for one in an environment variable of the driver, or a function that
        returns one. It is never shown.
    :param table: The table, with its schema before a dot if it is not the usual one; it is made if it is missing.
    :param staging: A directory where rows wait for their commit, that Spark's executors and the driver reach: a path or any
        fsspec URI.
    :param upsert_by: Columns by which a row replaces the one that is there; without them rows are added.
    :param mark_rows: Whether each row says, in two columns more, which sink and checkpoint made it. Without that nothing can be
        taken back: a start that needs to is refused.
    :param storage_options: Options of the staging directory's filesystem; by default those of the stage's checkpoint storage.
    :param on_earlier_output: What a fresh start does with the output of earlier ones: ``retract`` deletes it together with the
        first commit of the new one, ``refuse`` does not start.
    :raises InvalidConfigurationError: for a value out of its range.
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
        self._keys = _different_names(upsert_by)
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
        # Tasks stage rows; only the driver, which opens the sink, speaks to the database.
        url = None if self._target is not None else self._url
        return {**self.__dict__, "_committer": None, "_url": url}

    def open(self, context: SinkContext) -> None:
        """
        Check the table and take it over from earlier attempts.

        :raises StaleAttemptError: A newer attempt has it.
        :raises EnvironmentNotReadyError: It holds output that has to go and may not.
        :raises UnsupportedStateError: What is to be written does not fit what is there.
        :raises CorruptStateError: Output of the restored checkpoint was replaced.
        :raises StorageError: The database or the staging directory does not answer.
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
        Load what belongs to a completed checkpoint, once however often it is tried.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises CorruptStateError: Staged rows are missing or were changed.
        :raises UnsupportedStateError: The table does not take them.
        :raises StorageError: The database or the staging directory does not answer.
        """
        found = [Committable.from_json(document) for document in committables]
        self._opened().commit(checkpoint_id, found)
        lineage = self._files().lineage
        ours = [each for each in found if each.lineage == lineage]
        self._delete([file.staged for each in ours for file in each.files])
        if not self._has_swept and any(each.epoch == self._epoch for each in ours):
            # Nothing goes on any more from what earlier attempts staged and nobody committed.
            self._sweep(self._epoch - 1)
            self._has_swept = True

    def close(self, succeeded: bool) -> None:
        """
        End the attempt; after a success nothing stays but what was committed.

        :raises StaleAttemptError: A newer attempt has the table.
        :raises StorageError: The database does not answer.
        """
        committer, self._committer = self._committer, None
        # After a failure the next attempt knows what is still needed.
        if committer is not None and succeeded:
            committer.close()
            self._sweep(self._epoch)

    def _destination(self, context: SinkContext, files: TargetFiles) -> SqlDestination:
        if self._url is None:
            raise CoordinatorError(f"Expected {self!r} to be opened on the driver, found a copy for tasks.")
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
            log.warning("Staged rows that nothing names stay in %s: %s", files.target, error)
            return
        self._delete([name for name in names if (staged_epoch(name) or 0) <= last_epoch])

    def _delete(self, names: Sequence[str]) -> None:
        files = self._files()
        for name in names:
            try:
                files.delete(f"{staging_directory(files.lineage)}/{name}")
            except StateCheckError as error:
                log.warning("The file %s stays in the staging directory %s: %s", name, files.target, error)

    def _files(self) -> TargetFiles:
        if self._target is None:
            raise CoordinatorError(f"Expected {self!r} to be opened before it is used; open it on the driver.")
        return self._target.files(TargetFiles)

    def _opened(self) -> TwoPhaseCommitter:
        if self._committer is None:
            raise CoordinatorError(f"Expected {self!r} to be open, found it closed; open it before commits.")
        return self._committer


def _different_names(columns: Sequence[str]) -> tuple[str, ...]:
    if isinstance(columns, str) or not all(columns) or len(set(columns)) != len(columns):
        raise InvalidConfigurationError(f"Expected upsert_by as a list of different columns, found {columns!r}.")
    return tuple(columns)
