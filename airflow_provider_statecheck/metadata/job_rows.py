"""Cache of the rows that one transaction uses, and reads of a job or of its newest checkpoints."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from itertools import groupby
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Select
from sqlalchemy.engine import Connection, Engine, Row

from airflow_provider_statecheck.checkpoint.clock import clamp_times, time_of_job
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.savepoint_restore import newest_readable
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView, LatestCheckpoints
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.models import Base, UtcDateTime
from airflow_provider_statecheck.metadata.record_table import (
    ACTIONS,
    ATTEMPTS,
    CHECKPOINTS,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
    RecordTable,
    keys,
    table_of,
)
from airflow_provider_statecheck.metadata.statements import remove

log = logging.getLogger(__name__)

_KEPT_TIMES = 1_000
"""Number of times of transactions whose conversions are kept."""

Record = TypeVar("Record")

_FIRST_OPERATOR_COLUMN = len(JOBS.columns)
_FIRST_CHECKPOINT_COLUMN = _FIRST_OPERATOR_COLUMN + len(OPERATORS.columns)
"""Indexes of columns of the operator and of its checkpoint in a row of ``LATEST_CHECKPOINTS``."""


class HeldRows:
    """
    Cache of the rows of a job during a transition, including the changes of the transition.

    The transition locks the job's row, and only the holder of this lock writes rows of the job. Cached rows are
    therefore current.

    :param connection: Connection that holds the lock.
    :param job_id: Id of the job.
    """

    def __init__(self, connection: Connection, job_id: str) -> None:
        self._connection = connection
        self._job_id = job_id
        self._records: dict[tuple[object, ...], object | None] = {}

    def holds(self, table: RecordTable[Record], *key: object) -> bool:
        """Return ``True`` if the row of a key, or its absence, is cached."""
        return (table, *key) in self._records

    def get(self, table: RecordTable[Record], *key: object) -> Record | None:
        """Return the row of a key, or ``None``; read it if it is not cached."""
        if not self.holds(table, *key):
            row = table.find(self._connection, *key)
            self._records[table, *key] = None if row is None else table.read(row)
        return cast("Record | None", self._records[table, *key])

    def held(self, table: RecordTable[Record], *key: object) -> Record | None:
        """Return the cached row of a key, or ``None``."""
        return cast("Record | None", self._records.get((table, *key)))

    def hold(self, table: RecordTable[Record], record: Record | None, *key: object) -> None:
        """Cache the row of a key, or its absence."""
        self._records[table, *key] = record

    def read(self, table: RecordTable[Record], query: Select[Any], **values: object) -> list[Record]:
        """Return the rows of a query on the job, and cache them."""
        rows = self._connection.execute(query, keys(job_id=self._job_id, **values))
        records = [table.read(row) for row in rows]
        for record in records:
            self.hold(table, record, *table.key_of(record))
        return records

    def insert(self, table: RecordTable[Record], record: Record) -> None:
        """Insert a row and cache it."""
        table.insert(self._connection, table.values_of(record))
        self.hold(table, record, *table.key_of(record))

    def save(self, table: RecordTable[Record], record: Record) -> None:
        """Insert or replace a row and cache it; only changed columns are written if the old row is cached."""
        key = table.key_of(record)
        known = self.held(table, *key)
        if known is not None:
            self._replace(table, known, record)
        elif self.holds(table, *key):
            table.insert(self._connection, table.values_of(record))
        else:
            table.save(self._connection, table.values_of(record))
        self.hold(table, record, *key)

    def remove(self, model: type[Base], *conditions: ColumnElement[bool]) -> None:
        """Delete the rows of the job that meet all conditions, in one statement, and clear the cache."""
        self._connection.execute(remove(table_of(model), *conditions), keys(job_id=self._job_id))
        self._records.clear()

    def _replace(self, table: RecordTable[Record], known: Record, record: Record) -> None:
        changes = table.changes(known, record)
        if changes:
            key = dict(zip(table.key_names, table.key_of(record), strict=True))
            table.update(self._connection, changes | key)


def set_back(connection: Connection, job: JobRecord, now: datetime) -> JobRecord:
    """Move the times of a job and its rows back to the current time, after a clock was far ahead."""
    log.warning("Job %s: reset its time, which was %s ahead of the clock", job.name, job.seen_at - now)
    values = keys(job_id=job.job_id) | {"now": now}
    connection.execute(statements.SET_SEEN_AT, values)
    for table, query in statements.DATED_LATER.items():
        for row in connection.execute(query, values).all():
            table.change(connection, table.read(row), clamp_times(table.read(row), now))
    return replace(job, seen_at=now)


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
    by_operator = groupby(rows, lambda row: row[_FIRST_OPERATOR_COLUMN:_FIRST_CHECKPOINT_COLUMN])
    found = [(OPERATORS.read(values), list(of_it)) for values, of_it in by_operator if values[0] is not None]
    newest = (newest_readable(operator, _checkpoints_in(of_it)) for operator, of_it in found)
    return LatestCheckpoints(
        job=JOBS.read(rows[0][:_FIRST_OPERATOR_COLUMN]),
        operators=tuple(operator for operator, _ in found),
        checkpoints=tuple(checkpoint for checkpoint in newest if checkpoint is not None),
    )


def _checkpoints_in(rows: Iterable[Row[Any]]) -> Iterator[CheckpointRecord]:
    checkpoints = (row[_FIRST_CHECKPOINT_COLUMN:] for row in rows)
    return (CHECKPOINTS.read(values) for values in checkpoints if values[0] is not None)
