"""The end of a Dag run, as it is told to the process that ends it, before that is committed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.checkpoint.clock import SystemClock
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.job_status import JobStatus
from airflow_provider_statecheck.checkpoint.maintenance import JobMaintenance
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection, Engine


class EndedRun:
    """
    A ``RunDirectory`` that knows one run.

    :param dag_id: Its Dag.
    :param run_id: Its id.
    :param status: How it ended.
    """

    def __init__(self, dag_id: str, run_id: str, status: JobStatus) -> None:
        self._run = (dag_id, run_id)
        self._status = status

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say how the run of an attempt ended, ``None`` for any other run."""
        airflow = dict(owner.airflow)
        return self._status if (airflow.get("dag_id"), airflow.get("run_id")) == self._run else None


def settle_ended_run(dag_run: Any, status: JobStatus) -> tuple[int, ...]:
    """
    Take away from restore what does not stay after this end of a run, in the transaction that ends the run.

    Rolled back with it, so that no run goes on whose checkpoints are given up. Only rows change; bytes go with the next
    garbage collection, which also does this where nobody was told of the end.

    :param dag_run: Airflow's row of the run.
    :param status: How it ended.
    :return: The checkpoints that go.
    """
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return ()
    connection = session.connection()
    # Whatever fails in here must leave the transaction of the scheduler usable.
    with connection.begin_nested():
        return _settle(connection, dag_run, status)


def _settle(connection: Connection, dag_run: Any, status: JobStatus) -> tuple[int, ...]:
    from airflow_provider_statecheck.metadata.sql_store import JoinedSqlJobStore
    from airflow_provider_statecheck.metadata.token_store import SqlTokenStore

    # A session on a connection that is within a savepoint commits no more than a savepoint of its own.
    engine = cast("Engine", connection)
    ended = EndedRun(dag_run.dag_id, dag_run.run_id, status)
    maintenance = JobMaintenance(JoinedSqlJobStore(connection), ended, SqlTokenStore(engine), SystemClock())
    run_key = dag_run.run_id if dag_run.logical_date is None else dag_run.logical_date.isoformat()
    try:
        return maintenance.settle_run(job_id_of(f"{dag_run.dag_id}/{run_key}"))
    except CheckpointNotFoundError:
        # Most runs take no checkpoints.
        return ()
