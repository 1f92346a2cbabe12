"""A job as it stands, its rows read together."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.engine import Connection

from airflow_provider_statecheck.checkpoint.clock import time_of_job
from airflow_provider_statecheck.checkpoint.handles.state_handles import uris_of
from airflow_provider_statecheck.checkpoint.job_view import CheckpointPage, JobView
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.mapping import ATTEMPTS, CHECKPOINTS, OPERATORS, REQUESTS, STATISTICS
from airflow_provider_statecheck.metadata.record_table import RecordTable, keys

Record = TypeVar("Record")


def view_of(connection: Connection, job: JobRecord, now: datetime) -> JobView:
    """Return a job as it stands."""

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
        # After the attempts: one that has ended by now has added no handle since.
        handle_uris=uris_of(connection.scalars(statements.ALL_HANDLES, keys(job_id=job.job_id))),
    )
