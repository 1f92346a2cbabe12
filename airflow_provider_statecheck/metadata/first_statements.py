"""
First statements of transitions: the lock on the job's row, and what is read with it.

A transition locks the job's row before it reads any other row, so that what it reads is current until its end. On
PostgreSQL, one statement does both for the calls of an attempt, which saves a round trip.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple, Self

from sqlalchemy.engine import Connection

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.checkpoint.store import FirstRead
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.record_rows import RecordTable, keys, split
from airflow_provider_statecheck.metadata.tables import JOB_FIGURES, JOBS

_JOB = (JOBS, JOB_FIGURES)


class FirstRows(NamedTuple):
    """Current rows of an operator, in rows of a join of tables."""

    of: FirstRead
    tables: tuple[RecordTable[Any], ...]
    joined: Sequence[Sequence[Any]]
    is_repeated: bool
    """Whether the key of the trigger request is that of a checkpoint."""


class Begun(NamedTuple):
    """A job whose row is locked, as the transition begins."""

    job: JobRecord
    figures: JobFigures
    rows: FirstRows | None = None
    """Rows that were read together with the job, if they are current."""

    @classmethod
    def of(cls, row: Sequence[Any], rows: FirstRows | None = None) -> Self:
        """Return the job in a row that begins with its columns."""
        job, figures = split(row, *_JOB)
        return cls(JOBS.read(job), JOB_FIGURES.read(figures), rows)


def begin(
    connection: Connection, job_id: JobId, now: datetime, *, is_known: bool, reads: FirstRead | None
) -> Begun | None:
    """
    Lock the row of a job, and return the job; ``None`` if there is none.

    :param is_known: Whether the job must have an attempt.
    :param reads: What to read with the lock, where the database can.
    """
    values = keys(job_id=job_id, now=now)
    if reads is not None and is_known and connection.dialect.name == "postgresql":
        return _begin_and_read(connection, values, reads)
    if connection.dialect.update_returning:
        row = connection.execute(statements.BEGIN_AND_READ[is_known], values).one_or_none()
    else:
        exists = connection.execute(statements.BEGIN[is_known], values).rowcount == 1
        row = connection.execute(statements.JOB_AND_FIGURES, values).one() if exists else None
    return None if row is None else Begun.of(row)


def _begin_and_read(connection: Connection, values: dict[str, object], reads: FirstRead) -> Begun | None:
    tables = statements.ROWS_OF_OPERATOR if reads.ends_checkpoint else statements.ROWS_OF_OPERATOR[:3]
    is_trigger = reads.request_key is not None
    found = values | keys(operator_id=reads.operator_id) | (keys(request_key=reads.request_key) if is_trigger else {})
    rows = connection.execute(statements.begin_with_operator(tables, is_trigger=is_trigger), found).all()
    if not rows:
        return None
    begun = Begun.of(rows[0])
    return begun._replace(rows=_current(begun.job, rows, FirstRows(reads, tables, (), False)))


def _current(job: JobRecord, rows: Sequence[Sequence[Any]], read: FirstRows) -> FirstRows | None:
    before, repeated = rows[0][-2:]
    if job.version != before + 1:
        # Another transition was committed while this one waited for the lock, and the rows are those of before.
        return None
    start = sum(len(table.columns) for table in _JOB)
    return read._replace(joined=[row[start:] for row in rows], is_repeated=repeated is not None)
