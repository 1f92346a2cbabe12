"""
The API's services on Airflow's own database: tasks, liveness and ends of Dag runs.

A task writes the hash of a secret into its own task state store, which Airflow lets nobody else write, and then shows
the secret. So no worker has to be given a password, whatever executor runs it.
"""

from __future__ import annotations

import hmac
import json
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.metrics import airflow_metrics
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.clock import SystemClock
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError
from airflow_provider_statecheck.gateway.protocol import CHALLENGE_KEY, challenge_of
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.metadata.database import executing
from airflow_provider_statecheck.metadata.token_store import Caller

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import Session


class AirflowTasks:
    """Task instances in Airflow's database; only where the ORM is open."""

    def prove(self, ti_id: str, secret: str) -> Caller:
        """
        Return the running task instance that holds a secret, which is of no use any more afterwards.

        :raises AccessDeniedError: if there is none, it does not run, or the secret is not its own.
        :raises CoordinatorUnavailableError: if the database does not answer.
        """
        from airflow.utils.session import create_session

        # A session of its own: the first statement of the transaction is the lock.
        with executing(), create_session(scoped=False) as session:
            _lock_if_sqlite(session)
            ti = _running_task(session, ti_id)
            _use_up(session, ti, secret)
            return Caller(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)

    def is_waiting(self, caller: Caller) -> bool:
        """Tell whether a task instance runs or is deferred."""
        return task_state(caller) in ("running", "deferred")

    def is_dag(self, dag_id: str) -> bool:
        """Tell whether there is a Dag of this id."""
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with executing(), create_session() as session:
            return session.get(DagModel, dag_id) is not None


def task_state(task: Caller) -> str | None:
    """Return the state of a task instance, ``None`` if there is no such one."""
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(TaskInstance.state).where(
        TaskInstance.dag_id == task.dag_id,
        TaskInstance.run_id == task.run_id,
        TaskInstance.task_id == task.task_id,
        TaskInstance.map_index == task.map_index,
    )
    with executing(), create_session() as session:
        return session.scalar(query)


def _lock_if_sqlite(session: Session) -> None:
    # SQLite has no row locks: two exchanges would both read the secret before either deletes it.
    from sqlalchemy import text

    if session.get_bind().dialect.name == "sqlite":
        session.execute(text("BEGIN IMMEDIATE"))


def _running_task(session: Session, ti_id: str) -> TaskInstance:
    from airflow.models.taskinstance import TaskInstance

    # The lock makes two exchanges of one secret wait for each other, so that only the first finds it.
    ti = session.get(TaskInstance, _uuid(ti_id), with_for_update={"of": TaskInstance})
    if ti is None or ti.state != "running":
        raise AccessDeniedError(
            f"Expected a running task instance {ti_id}, found {'none' if ti is None else ti.state}; only a task that "
            f"runs gets a token."
        )
    return ti


def _use_up(session: Session, ti: TaskInstance, secret: str) -> None:
    from airflow.state import TaskScope, get_state_backend

    backend = get_state_backend()
    scope = TaskScope(dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index)
    written = backend.get(scope, CHALLENGE_KEY, session=session)
    if written is None or not _is_equal(_text(written), challenge_of(secret)):
        raise AccessDeniedError(
            f"Expected the secret that task instance {ti.id} announced in its state store, found another or one that was "
            f"used before."
        )
    backend.delete(scope, CHALLENGE_KEY, session=session)


def _is_equal(one: str, other: str) -> bool:
    # Of texts, the comparison takes ASCII alone, and anything may be in the store.
    return hmac.compare_digest(one.encode(errors="replace"), other.encode())


def _text(stored: str) -> str:
    # The task's side stores any JSON value; the server keeps it as JSON text.
    try:
        return str(json.loads(stored))
    except ValueError:
        return stored


def _uuid(ti_id: str) -> UUID:
    try:
        return UUID(ti_id)
    except ValueError:
        raise AccessDeniedError("Expected the id of a task instance, found something else.") from None


class AirflowTaskLiveness:
    """Looks at the task instance's row; only where the ORM is open."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Tell whether the owner's task instance is in the state ``running``."""
        coordinates = dict(owner.airflow)
        if not coordinates:
            return False
        task = Caller(
            dag_id=coordinates["dag_id"],
            run_id=coordinates["run_id"],
            task_id=coordinates["task_id"],
            map_index=int(coordinates["map_index"]),
        )
        return task_state(task) == "running"


_ENDED = {None: JobStatus.CANCELED, "success": JobStatus.FINISHED, "failed": JobStatus.FAILED}
"""A run that somebody marked as failed looks like one that failed; so it counts as the end after which more is kept."""


class AirflowRuns:
    """Looks at the run's row; only where the ORM is open."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say how the run of an attempt ended, ``None`` as long as it has not; one that is gone was cancelled."""
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        run = dict(owner.airflow)
        query = select(DagRun.state).where(DagRun.dag_id == run["dag_id"], DagRun.run_id == run["run_id"])
        with executing(), create_session() as session:
            return _ENDED.get(session.scalar(query))


def airflow_services() -> Services:
    """Return them; the database is opened by the first request."""
    return Services(
        _engine,
        AirflowTasks(),
        liveness=AirflowTaskLiveness(),
        observer=airflow_metrics(),
        runs=AirflowRuns(),
        maintenance_dags=_maintenance_dags,
    )


def _maintenance_dags() -> frozenset[str]:
    from airflow.configuration import conf

    names = conf.get("statecheck", "maintenance_dags", fallback="statecheck_maintenance")
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def _engine() -> Engine:
    from airflow import settings

    engine: Engine = settings.get_engine()
    return engine


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
