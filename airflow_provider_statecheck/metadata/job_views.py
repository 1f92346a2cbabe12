"""All rows of a job, read together."""

from __future__ import annotations

from datetime import datetime
from typing import Any, TypeVar

from sqlalchemy import Select
from sqlalchemy.engine import Connection

from airflow_provider_statecheck.checkpoint.clock import time_of_job
from airflow_provider_statecheck.checkpoint.handles.state_handles import uris_of
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import JobRecord
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.mapping import ATTEMPTS, CHECKPOINTS, OPERATORS, REQUESTS, STATISTICS
from airflow_provider_statecheck.metadata.record_table import RecordTable, keys

Record = TypeVar("Record")


def view_of(connection: Connection, job: JobRecord, now: datetime) -> JobView:
    """Return all that is kept of a job."""

    def all_of(table: RecordTable[Record], query: Select[Any]) -> tuple[Record, ...]:
        return tuple(table.read(row) for row in connection.execute(query, keys(job_id=job.job_id)))

    return JobView(
        job=job,
        operators=all_of(OPERATORS, statements.ALL_OPERATORS),
        attempts=all_of(ATTEMPTS, statements.ALL_ATTEMPTS),
        checkpoints=all_of(CHECKPOINTS, statements.ALL_CHECKPOINTS),
        read_at=time_of_job(job.seen_at, now),
        requests=all_of(REQUESTS, statements.ALL_REQUESTS),
        statistics=all_of(STATISTICS, statements.ALL_STATISTICS),
        # After the attempts: one that has ended by now has added no handle since.
        handle_uris=uris_of(connection.scalars(statements.ALL_HANDLES, keys(job_id=job.job_id))),
    )
