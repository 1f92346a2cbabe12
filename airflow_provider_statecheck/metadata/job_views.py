"""Consistent views of a job, and versions of its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Select
from sqlalchemy.engine import Connection, Engine

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import (
    Failure,
    JobFigures,
    failure_of_attempt,
    failure_of_checkpoint,
    status_of,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
    RowsVersion,
    time_of_job,
)
from airflow_provider_statecheck.checkpoint.savepoint_restore import newest_readable
from airflow_provider_statecheck.checkpoint.store import JobView, LatestCheckpoints
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.record_rows import (
    Record,
    RecordTable,
    UtcDateTime,
    driver_keeping_bad_values,
    keys,
    split,
)
from airflow_provider_statecheck.metadata.tables import (
    ACTIONS,
    ATTEMPTS,
    CHECKPOINTS,
    JOB_FIGURES,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
)
from airflow_provider_statecheck.metadata.unit_of_work import UnitOfWork

log = logging.getLogger(__name__)

_KEPT_TIMES = 1_000
"""Number of times of transactions whose conversions are kept."""


def view_of(connection: Connection, job: JobRecord, now: datetime) -> JobView:
    """Return the view of a job: its newest checkpoints, and all rows that are still in use."""

    def rows_of(table: RecordTable[Record], query: Select[Any]) -> tuple[Record, ...]:
        return tuple(table.read(row) for row in connection.execute(query, keys(job_id=job.job_id)))

    def merged(table: RecordTable[Record], *queries: Select[Any]) -> Iterable[Record]:
        return {table.key_of(row): row for query in queries for row in rows_of(table, query)}.values()

    checkpoints = merged(CHECKPOINTS, statements.UNDISCARDED_CHECKPOINTS, statements.NEWEST_CHECKPOINTS)
    requests = merged(REQUESTS, statements.ALL_OPEN_REQUESTS, statements.RECENT_REQUESTS)
    return JobView(
        job=job,
        operators=rows_of(OPERATORS, statements.ALL_OPERATORS),
        attempts=rows_of(ATTEMPTS, statements.ALL_ATTEMPTS),
        checkpoints=tuple(sorted(checkpoints, key=lambda c: c.checkpoint_id)),
        read_at=time_of_job(job.seen_at, now),
        requests=tuple(sorted(requests, key=lambda r: (r.requested_at, r.request_key))),
        actions=tuple(
            sorted(rows_of(ACTIONS, statements.RECENT_ACTIONS), key=lambda a: (a.requested_at, a.request_key))
        ),
        statistics=rows_of(STATISTICS, statements.ALL_STATISTICS),
    )


class JobVersions:
    """
    Committed versions of the rows of jobs. Each transition increments the number, also the one that removes a job.

    They are read with the driver of the database, which takes less than half the time of SQLAlchemy: readers of state
    look at the version before each answer.

    :param engine: Database; its pool provides and tests the connections.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        compiled = statements.JOB_VERSION.compile(engine)
        self._sql, self._is_positional = str(compiled), compiled.positional
        seen_at = UtcDateTime().dialect_impl(engine.dialect).result_processor(engine.dialect, None)
        # Most checks find the time of the one before, whose conversion would take a sixth of the check.
        self._time = lru_cache(_KEPT_TIMES)(cast("Callable[[Any], datetime]", seen_at))
        self._has_autocommit = engine.dialect.name == "postgresql"

    def read(self, job_id: JobId) -> RowsVersion | None:
        """Return the version of the rows of a job, or ``None`` if it has no row."""
        try:
            return self._read(job_id)
        except self._engine.dialect.loaded_dbapi.Error as error:
            log.debug("Reading the version of job %s again: %s", job_id, error)
        # SQLAlchemy tells errors apart, and replaces the connections of its pool if the database was restarted.
        with self._engine.connect() as connection:
            return version_of(connection, job_id)

    def _read(self, job_id: JobId) -> RowsVersion | None:
        connection = self._engine.raw_connection()
        try:
            with driver_keeping_bad_values(connection.driver_connection):
                row = self._row(connection.driver_connection, job_id)
        except BaseException:
            connection.invalidate()
            raise
        # The pool ends the transaction, so that the next read sees later commits.
        connection.close()
        if row is None:
            return None
        return _rows_version(job_id, row[0], self._time(row[1]))

    def _row(self, connection: Any, job_id: JobId) -> Any:
        if self._has_autocommit:
            # Begin and end of a transaction would cost a round trip each.
            connection.autocommit = True
        cursor = connection.cursor()
        cursor.execute(self._sql, (job_id,) if self._is_positional else keys(job_id=job_id))
        row = cursor.fetchone()
        cursor.close()
        if self._has_autocommit:
            connection.autocommit = False
        return row


def version_of(connection: Connection, job_id: JobId) -> RowsVersion | None:
    """Return the version of the rows of a job in the transaction of a connection, or ``None`` if it has no row."""
    row = connection.execute(statements.JOB_VERSION, keys(job_id=job_id)).one_or_none()
    return None if row is None else _rows_version(job_id, *row)


def _rows_version(job_id: JobId, number: Any, seen_at: Any) -> RowsVersion:
    return RowsVersion(JOBS.value("version", number, job_id=job_id), JOBS.value("seen_at", seen_at, job_id=job_id))


def latest_of(connection: Connection, job_id: JobId) -> LatestCheckpoints | None:
    """Return the newest readable checkpoints of a job, or ``None`` if there is no such job."""
    rows = connection.execute(statements.LATEST_CHECKPOINTS, keys(job_id=job_id)).all()
    if not rows:
        return None
    split_rows = [split(row, JOBS, OPERATORS, CHECKPOINTS) for row in rows]
    by_operator = groupby(split_rows, lambda parts: parts[1])
    found = [(OPERATORS.read(values), list(of_it)) for values, of_it in by_operator if values[0] is not None]
    newest = (newest_readable(operator, _checkpoints_in(of_it)) for operator, of_it in found)
    return LatestCheckpoints(
        job=JOBS.read(split_rows[0][0]),
        operators=tuple(operator for operator, _ in found),
        checkpoints=tuple(checkpoint for checkpoint in newest if checkpoint is not None),
    )


def _checkpoints_in(rows: Iterable[Sequence[Any]]) -> Iterator[CheckpointRecord]:
    return (CHECKPOINTS.read(values) for *_, values in rows if values[0] is not None)


class FiguresOfTransition:
    """
    Figures of a job in the list of jobs, and the Dags of its operators, during a transition.

    The changes of a checkpoint or of a registration determine the new figures. After other changes, such as the end of
    an attempt or the rewind of a job, the figures that may have changed are read from the rows again.
    """

    def __init__(self, rows: UnitOfWork, figures: JobFigures) -> None:
        self._rows = rows
        self._written = self._figures = figures
        self._running: set[tuple[OperatorId, int]] = set()
        self._has_other_status = False
        self._has_other_checkpoint = False
        self._has_other_failure = False

    def attempt_saved(self, known: AttemptRecord | None, earlier: AttemptRecord | None, record: AttemptRecord) -> None:
        """
        Take note of a saved attempt, and add its Dag.

        :param earlier: The known attempt, or the one before it; ``None`` for the first attempt of its operator.
        """
        dag_id = record.owner.dag_id
        if dag_id is not None and (earlier is None or earlier.owner.dag_id != dag_id):
            self._rows.execute(statements.ADD_DAG, operator_id=record.operator_id, dag_id=dag_id)
        is_of_stage = not record.is_of_job
        if record.is_running and is_of_stage:
            self._running.add((record.operator_id, record.epoch))
        else:
            self._running.discard((record.operator_id, record.epoch))
        if known is None or known.status is not record.status:
            self._has_other_status = True
            self._add_failure_of(record)
        if earlier is None and is_of_stage:
            # The failures of a coordinator of several operators count only in a job without stages.
            self._has_other_failure |= self._figures.failed_at is not None

    def operator_saved(self, known: OperatorRecord | None, record: OperatorRecord) -> None:
        """Take note of a saved operator."""
        if known is None or known.generation != record.generation:
            self._has_other_checkpoint |= self._figures.checkpoint_id is not None

    def checkpoint_saved(
        self,
        known: CheckpointRecord | None,
        record: CheckpointRecord,
        operator_of: Callable[[OperatorId], OperatorRecord | None],
    ) -> None:
        """Take note of a saved checkpoint."""
        if record.is_usable and (known is None or not known.is_usable):
            operator = operator_of(record.operator_id)
            if operator is not None and operator.generation == record.generation and self._is_newest(record):
                self._set_checkpoint(record.checkpoint_id, record.completed_at, record.full_size_bytes)
        elif record.checkpoint_id == self._figures.checkpoint_id and not record.is_usable:
            self._has_other_checkpoint = True
        if record.status is CheckpointStatus.ABORTED:
            self._add_failure(failure_of_checkpoint(record))

    def attempts_removed(self, operator_id: OperatorId) -> None:
        """
        Take note that ended attempts of an operator were removed, and remove the Dags that have no attempt any more.
        """
        owners = self._rows.values(ATTEMPTS, "owner", statements.OWNERS_OF_OPERATOR, operator_id=operator_id)
        kept = {dag_id for owner in owners if (dag_id := owner.dag_id) is not None}
        self._rows.execute(statements.remove_other_dags(operator_id, kept))
        self._has_other_status = True
        self._has_other_failure |= self._figures.failed_at is not None

    def checkpoints_removed(self, checkpoint_ids: Sequence[int]) -> None:
        """Take note that ended checkpoints will be removed."""
        failed_at = self._figures.failed_at
        if failed_at is not None and not self._has_other_failure:
            # Another failure is known only after a look at all checkpoints, and the last one is rarely among the old
            # ones.
            self._has_other_failure = bool(
                self._rows.execute(statements.fails_after(checkpoint_ids, failed_at)).scalar()
            )

    def times_changed(self) -> None:
        """Take note that times in the rows were corrected."""
        self._has_other_checkpoint = self._has_other_failure = True

    def job_removed(self) -> None:
        """Take note that all rows of the job were removed."""
        self._figures = JobFigures()
        self._has_other_status = self._has_other_checkpoint = self._has_other_failure = False

    def changes(self) -> dict[str, Any]:
        """Return the columns of the job's row to change, at the end of the transition."""
        if self._has_other_status:
            self._read_status()
        if self._has_other_checkpoint:
            self._read_newest_checkpoint()
        if self._has_other_failure:
            self._figures = replace(self._figures, failed_at=None, failure=None)
            for failure in self._read_failures():
                self._add_failure(failure)
        return JOB_FIGURES.changes(self._written, self._figures)

    def _is_newest(self, record: CheckpointRecord) -> bool:
        known = self._figures
        if record.completed_at is None or known.completed_at is None or known.checkpoint_id is None:
            return True
        return (record.completed_at, record.checkpoint_id) > (known.completed_at, known.checkpoint_id)

    def _read_newest_checkpoint(self) -> None:
        newest = next(iter(self._rows.read(CHECKPOINTS, statements.NEWEST_CHECKPOINT_OF_JOB)), None)
        if newest is None:
            self._set_checkpoint(None, None, None)
        else:
            self._set_checkpoint(newest.checkpoint_id, newest.completed_at, newest.full_size_bytes)

    def _set_checkpoint(self, checkpoint_id: int | None, completed_at: datetime | None, size: int | None) -> None:
        self._figures = replace(
            self._figures, checkpoint_id=checkpoint_id, completed_at=completed_at, full_size_bytes=size
        )

    def _add_failure_of(self, attempt: AttemptRecord) -> None:
        failure = failure_of_attempt(attempt)
        if attempt.is_of_job:
            self._has_other_failure |= failure is not None
        else:
            self._add_failure(failure)

    def _add_failure(self, failure: Failure | None) -> None:
        known = self._figures
        if failure is not None and (known.failed_at is None or failure > (known.failed_at, known.failure or "")):
            self._figures = replace(known, failed_at=failure[0], failure=failure[1])

    def _read_status(self) -> None:
        if self._running:
            newest = [AttemptStatus.RUNNING]
        else:
            attempts = self._rows.read(ATTEMPTS, statements.NEWEST_ATTEMPTS)
            of_stages = [a for a in attempts if not a.is_of_job]
            newest = [attempt.status for attempt in of_stages or attempts]
        has_attempts = newest or self._rows.execute(statements.HAS_ATTEMPTS).scalar()
        self._figures = replace(self._figures, status=status_of(newest) if has_attempts else None)

    def _read_failures(self) -> list[Failure | None]:
        return [
            *map(failure_of_attempt, self._rows.read(ATTEMPTS, statements.LAST_FAILED_ATTEMPTS)),
            *map(failure_of_checkpoint, self._rows.read(CHECKPOINTS, statements.LAST_FAILED_CHECKPOINTS)),
        ]
