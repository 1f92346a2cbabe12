"""The count of checkpoint ids in a database."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.coordination.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore, SqlJobTransaction


class SqlCheckpointIDCounter(JobIDCounter):
    """
    The column ``next_checkpoint_id`` of the table ``statecheck_job``.

    Each call begins with a write to the row, so callers in other threads and processes wait until it is committed.

    :param engine: The database; its tables exist.
    :param job_id: The job; it registered an attempt.
    :param clock: Where time comes from.
    """

    def __init__(self, engine: Engine, job_id: JobId, clock: Clock | None = None) -> None:
        super().__init__(SqlJobStore(engine, clock), job_id)

    def _raise_to(self, tx: JobTransaction, count: int) -> None:
        assert isinstance(tx, SqlJobTransaction)  # noqa: S101 - the store above makes no others
        tx.set_next_checkpoint_id(count)
