"""
Services of the API on Airflow's database: task proofs, liveness, and ends of Dag runs.

A task authenticates with a secret: it writes the hash to a place to which only the task itself can write, and then
sends the secret. Workers therefore need no password, with any executor.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.airflow_dags import AirflowDags
from airflow_provider_statecheck.api.challenges import Challenges, announced_challenges
from airflow_provider_statecheck.api.holders import TaskDirectory, UserDirectory, no_users
from airflow_provider_statecheck.api.metrics import airflow_metrics
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.checkpoint.ids import job_id_of, run_key
from airflow_provider_statecheck.checkpoint.properties import JobStatus, job_status_of
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, SystemClock
from airflow_provider_statecheck.configuration import StateServingSettings, maintenance_dags, reads_other_jobs
from airflow_provider_statecheck.exceptions import AccessDeniedError, CheckpointNotFoundError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.metadata.unit_of_work import executing
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import ColumnElement, Select
    from sqlalchemy.engine import Connection
    from sqlalchemy.orm import Session

    from airflow_provider_statecheck.queryable.locations import OpenStorage


_START_TIMEOUT = timedelta(minutes=5)
"""
Time for which a queued task is waited for; a task that no worker takes would block the later ones without a limit.
"""


def airflow_services(
    open_storage: OpenStorage | None = None, users: UserDirectory = no_users, tasks: TaskDirectory | None = None
) -> Services:
    """
    Return the services on Airflow's database, which the first request opens.

    :param open_storage: Opens the storage of a checkpoint, for queryable state; without it, state is not served.
    :param users: Lookup of the users who obtained tokens.
    :param tasks: Lookup of tasks, by default in Airflow's database.
    """
    return Services(
        _engine,
        tasks or AirflowTasks(),
        users=users,
        reads_other_jobs=reads_other_jobs,
        liveness=AirflowTaskLiveness(),
        dags=AirflowDags(),
        observer=airflow_metrics(),
        runs=AirflowRuns(),
        maintenance_dags=maintenance_dags,
        open_storage=open_storage,
        read_state_settings=StateServingSettings.read,
    )


def _engine() -> Engine:
    from airflow import settings

    engine: Engine = settings.get_engine()
    return engine


def settle_ended_run(dag_run: Any, status: JobStatus) -> tuple[int, ...]:
    """
    End the checkpoints that the retention of a job does not retain after the end of its run.

    Runs in the transaction that ends the run. If that is rolled back, the run continues with all its checkpoints. Only
    rows change; the next garbage collection deletes the files, and also settles runs whose end was not reported.

    :param status: How the run ended.
    :return: The ids of the ended checkpoints.
    """
    from sqlalchemy.orm import object_session

    session = object_session(dag_run)
    if session is None:
        return ()
    connection = session.connection()
    # After a failure here, the scheduler must still be able to commit its transaction.
    with connection.begin_nested():
        return _settle(connection, dag_run, status)


def _settle(connection: Connection, dag_run: Any, status: JobStatus) -> tuple[int, ...]:
    from airflow_provider_statecheck.metadata.sql_store import JoinedSqlJobStore
    from airflow_provider_statecheck.metadata.token_store import SqlTokenStore

    # A session on a connection inside a savepoint commits only its own nested savepoint.
    engine = cast("Engine", connection)
    ended = EndedRun(dag_run.dag_id, dag_run.run_id, status)
    maintenance = JobMaintenance(JoinedSqlJobStore(connection), ended, SqlTokenStore(engine), SystemClock())
    key = run_key(dag_run.logical_date, dag_run.partition_key, dag_run.run_id)
    try:
        return maintenance.settle_run(job_id_of(f"{dag_run.dag_id}/{key}"))
    except CheckpointNotFoundError:
        return ()  # most runs have no checkpoints


class EndedRun:
    """
    A ``RunDirectory`` with a single ended run.

    :param status: How the run ended.
    """

    def __init__(self, dag_id: str, run_id: str, status: JobStatus) -> None:
        self._run = (dag_id, run_id)
        self._status = status

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        run = None if owner.task is None else (owner.task.dag_id, owner.task.run_id)
        return self._status if run == self._run else None


class AirflowTasks:
    """
    Task instances in Airflow's database; needs access to the ORM.

    :param challenges: Challenges of running tasks, by default in the place that this version of Airflow has.
    """

    def __init__(self, challenges: Challenges | None = None) -> None:
        self._challenges = challenges or announced_challenges()

    def prove(self, ti_id: str, secret: str) -> Caller:
        from airflow.utils.session import create_session

        # In a new session, the lock is the first statement of the transaction.
        with executing(), create_session(scoped=False) as session:
            _lock_if_sqlite(session)
            ti = _running_task(session, ti_id)
            self._challenges.consume(session, ti, secret)
            return Caller(
                dag_id=ti.dag_id, run_id=ti.run_id, task_id=ti.task_id, map_index=ti.map_index, ti_id=str(ti.id)
            )

    def running(self, caller: Caller) -> Caller:
        ti_id = _of_task(caller, "id", _is_in("running"))
        if ti_id is None:
            raise AccessDeniedError(
                f"Expected a running instance of task {caller.task_id!r} in run {caller.run_id!r} of Dag "
                f"{caller.dag_id!r}, found none; only a running task gets a token."
            )
        return replace(caller, ti_id=str(ti_id))

    def is_waiting(self, caller: Caller) -> bool:
        ti_id = _of_task(caller, "id", _is_in("running", "deferred"))
        return ti_id is not None and caller.ti_id in ("", str(ti_id))

    def is_dag(self, dag_id: str) -> bool:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session

        with executing(), create_session() as session:
            return session.get(DagModel, dag_id) is not None

    def has_teams(self) -> bool:
        from airflow.configuration import conf

        return conf.getboolean("core", "multi_team", fallback=False)

    def of_team(self, dag_id: str, others: Collection[str]) -> frozenset[str]:
        from airflow.models.dag import DagModel
        from airflow.utils.session import create_session
        from sqlalchemy import select

        with executing(), create_session() as session:
            teams = DagModel.get_dag_id_to_team_name_mapping([dag_id, *others], session=session)
            known = session.scalars(select(DagModel.dag_id).where(DagModel.dag_id.in_(others))).all()
        return frozenset(other for other in known if teams.get(other) == teams.get(dag_id))


class OwnTasks(AirflowTasks):
    """Tasks of a test run, whose process issues their tokens and ends with them; Airflow may not know that they run."""

    @override
    def is_waiting(self, caller: Caller) -> bool:
        return True


class AirflowTaskLiveness:
    """Liveness of tasks by the rows of their task instances; needs access to the ORM."""

    def is_running(self, owner: AttemptOwner) -> bool:
        return owner.task is not None and task_state(Caller.of(owner.task)) == "running"

    def is_last_try(self, owner: AttemptOwner) -> bool:
        from airflow.models.taskinstance import TaskInstance

        if owner.task is None or owner.try_number is None:
            return False
        # A clear changes these states, and the try that follows it has another number.
        is_begun = TaskInstance.state.in_(("running", "deferred", "success", "failed"))
        return task_state(Caller.of(owner.task), TaskInstance.try_number == owner.try_number, is_begun) is not None

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        from airflow.utils.session import create_session

        if owner.task is None:
            return None
        with executing(), create_session() as session:
            run_id: str | None = session.scalar(_earlier_runs(Caller.of(owner.task)))
        return run_id


class AirflowRuns:
    """Ends of Dag runs by the rows of the runs; needs access to the ORM."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        from airflow.models.dagrun import DagRun
        from airflow.utils.session import create_session
        from sqlalchemy import select

        task = owner.task
        if task is None:
            return None
        query = select(DagRun.state).where(DagRun.dag_id == task.dag_id, DagRun.run_id == task.run_id)
        with executing(), create_session() as session:
            # The row does not show whether a user marked the run as failed; a failed run retains more than a cancelled
            # one.
            status = job_status_of(session.scalar(query))
        return status if status.is_globally_terminal else None


def _earlier_runs(task: Caller) -> Select[Any]:
    """Return the query for the runs before that of a task in which its instance runs or starts, the earliest first."""
    from airflow.models.dagrun import DagRun
    from airflow.models.taskinstance import TaskInstance
    from sqlalchemy import and_, func, or_, select, tuple_
    from sqlalchemy.orm import aliased

    own, since = aliased(DagRun), datetime.now(UTC) - _START_TIMEOUT
    place, own_place = (
        tuple_(func.coalesce(run.logical_date, run.partition_date, run.run_after), run.id) for run in (DagRun, own)
    )
    is_active = or_(
        TaskInstance.state == "running", and_(TaskInstance.state == "queued", TaskInstance.queued_dttm > since)
    )
    return (
        select(TaskInstance.run_id)
        .join(DagRun, and_(DagRun.dag_id == TaskInstance.dag_id, DagRun.run_id == TaskInstance.run_id))
        .join(own, and_(own.dag_id == task.dag_id, own.run_id == task.run_id))
        .where(TaskInstance.dag_id == task.dag_id, TaskInstance.task_id == task.task_id)
        .where(TaskInstance.map_index == task.map_index, is_active, place < own_place)
        .order_by(func.coalesce(DagRun.logical_date, DagRun.partition_date, DagRun.run_after), DagRun.id)
        .limit(1)
    )


def task_state(task: Caller, *conditions: ColumnElement[bool]) -> str | None:
    """Return the state of a task instance, or ``None`` if it does not exist or does not meet the conditions."""
    state: str | None = _of_task(task, "state", *conditions)
    return state


def _is_in(*states: str) -> ColumnElement[bool]:
    from airflow.models.taskinstance import TaskInstance

    return TaskInstance.state.in_(states)


def _of_task(task: Caller, name: str, *conditions: ColumnElement[bool]) -> Any:
    from airflow.models.taskinstance import TaskInstance
    from airflow.utils.session import create_session
    from sqlalchemy import select

    query = select(getattr(TaskInstance, name)).where(
        TaskInstance.dag_id == task.dag_id,
        TaskInstance.run_id == task.run_id,
        TaskInstance.task_id == task.task_id,
        TaskInstance.map_index == task.map_index,
        *conditions,
    )
    with executing(), create_session() as session:
        return session.scalar(query)


def _lock_if_sqlite(session: Session) -> None:
    # SQLite has no row locks: two concurrent exchanges could both read the secret before one of them deletes it.
    from sqlalchemy import text

    if session.get_bind().dialect.name == "sqlite":
        session.execute(text("BEGIN IMMEDIATE"))


def _running_task(session: Session, ti_id: str) -> TaskInstance:
    from airflow.models.taskinstance import TaskInstance

    # The lock serialises exchanges of one secret: only the first one finds it.
    ti = session.get(TaskInstance, _uuid(ti_id), with_for_update={"of": TaskInstance})
    if ti is None or ti.state != "running":
        raise AccessDeniedError(
            f"Expected a running task instance {ti_id}, found {'none' if ti is None else ti.state}; only a running "
            "task can get a token."
        )
    return ti


def _uuid(ti_id: str) -> UUID:
    try:
        return UUID(ti_id)
    except ValueError:
        raise AccessDeniedError(
            "Expected the id of a task instance, which is a UUID, found another text; send the id of the running task."
        ) from None
