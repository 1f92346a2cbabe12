"""Cache of the rows that one transaction uses, and the view of a whole job."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar, cast

from sqlalchemy import ColumnElement, Select
from sqlalchemy.engine import Connection

from airflow_provider_statecheck.checkpoint.clock import time_of_job
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.checkpoint.state_pointers import uris_of
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobView
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.models import Base
from airflow_provider_statecheck.metadata.record_table import (
    ATTEMPTS,
    CHECKPOINTS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
    RecordTable,
    keys,
    table_of,
)
from airflow_provider_statecheck.metadata.statements import remove

Record = TypeVar("Record")


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
        known = cast("Record | None", self._records.get((table, *key)))
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
        statistics=rows_of(STATISTICS, statements.ALL_STATISTICS),
        # Read after the attempts, so the view has all handles of attempts that it shows as ended.
        handle_uris=uris_of(connection.scalars(statements.ALL_HANDLES, keys(job_id=job.job_id))),
    )
