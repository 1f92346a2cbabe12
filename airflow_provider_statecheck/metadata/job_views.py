"""Consistent views of a job and of its newest checkpoints, and the versions of its rows."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, cast

from sqlalchemy import Select
from sqlalchemy.engine import Connection, Engine

from airflow_provider_statecheck.checkpoint.clock import time_of_job
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.savepoint_restore import newest_readable
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView, LatestCheckpoints
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.column_types import UtcDateTime
from airflow_provider_statecheck.metadata.tables import (
    ACTIONS,
    ATTEMPTS,
    CHECKPOINTS,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
    Record,
    RecordTable,
    keys,
    split,
)

log = logging.getLogger(__name__)

_KEPT_TIMES = 1_000
"""Number of times of transactions whose conversions are kept."""


def view_of(connection: Connection, job: JobRecord, now: datetime) -> JobView:
    """Return the view of a job: its newest checkpoints, and all rows that are still in use."""

    def rows_of(table: RecordTable[Record], query: Select[Any]) -> tuple[Record, ...]:
        return tuple(table.read(row) for row in connection.execute(query, keys(job_id=job.job_id)))

    def merged(table: RecordTable[Record], *queries: Select[Any]) -> Iterable[Record]:
        return {table.key_of(row): row for query in queries for row in rows_of(table, query)}.values()

    checkpoints = merged(CHECKPOINTS, statements.UNDISCARDED_CHECKPOINTS, statements.page_of(CheckpointPage()))
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
            row = self._row(connection.driver_connection, job_id)
        except BaseException:
            connection.invalidate()
            raise
        # The pool ends the transaction, so that the next read sees later commits.
        connection.close()
        return None if row is None else RowsVersion(int(row[0]), self._time(row[1]))

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
    return None if row is None else RowsVersion(*row)


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
