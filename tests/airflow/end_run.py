"""
Ends a run of a Dag of the tests as the scheduler does, after its task completed a checkpoint.

Prints what became of that.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import Any

import pendulum
from airflow import settings
from airflow.dag_processing.bundles.manager import DagBundlesManager
from airflow.dag_processing.dagbag import DagBag, sync_bag_to_db
from airflow.models.dagrun import DagRun
from airflow.models.serialized_dag import SerializedDagModel
from airflow.timetables.base import DataInterval
from airflow.utils.session import create_session
from airflow.utils.state import DagRunState, TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType, DagRunType
from sqlalchemy import select, text
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import executing
from tests.messages import complete_checkpoint, make_owner, make_registration

dag_id, day, end = sys.argv[1:]
DATE = datetime.fromisoformat(day).replace(tzinfo=UTC)
RUN_ID = f"scheduled__{DATE.isoformat()}"
describe = SqlJobStore.describe
JOB = f"{dag_id}/{DATE.isoformat()}"


def create_run(session: Any) -> Any:
    serialized: Any = SerializedDagModel.get_dag(dag_id, session=session)
    return serialized.create_dagrun(
        run_id=RUN_ID,
        logical_date=DATE,
        data_interval=DataInterval.exact(pendulum.instance(DATE)),
        run_after=DATE,
        run_type=DagRunType.SCHEDULED,
        triggered_by=DagRunTriggeredByType.TEST if end == "test" else DagRunTriggeredByType.TIMETABLE,
        state=DagRunState.RUNNING,
        session=session,
    )


def take_checkpoint(store: SqlJobStore, status: AttemptStatus) -> None:
    coordinator = AttemptCoordinator(store)
    airflow = (("dag_id", dag_id), ("run_id", RUN_ID), ("task_id", "work"), ("map_index", "-1"))
    owner = make_owner(run_key=DATE.isoformat(), run_id=RUN_ID, airflow=airflow)
    attempt = coordinator.register(make_registration(job_name=JOB, uid="work", owner=owner)).attempt
    complete_checkpoint(coordinator, attempt)
    coordinator.finish(FinishAttempt(attempt=attempt, status=status))


def update_run(session: Any) -> None:
    """Do what the scheduler does in each of its loops, with a write of its own before."""
    run = create_run(session)
    run.dag = SerializedDagModel.get_dag(dag_id, session=session)
    for instance in run.get_task_instances(session=session):
        instance.state = TaskInstanceState.FAILED if end == "failed" else TaskInstanceState.SUCCESS
    session.flush()
    if end == "broken":
        SqlJobStore.describe = refused  # type: ignore[method-assign]
    run.update_state(session=session)
    if end == "rolled back":
        raise RuntimeError("the scheduler's own trouble")


def refused(self: SqlJobStore, job_id: JobId) -> JobView:
    with executing(), Session(self.engine) as session:
        session.execute(text("SELECT nothing FROM nowhere"))
    raise AssertionError(job_id)


DagBundlesManager().sync_bundles_to_db()
sync_bag_to_db(DagBag(), "dags-folder", None)
store = SqlJobStore(settings.get_engine())
take_checkpoint(store, AttemptStatus.FAILED if end == "failed" else AttemptStatus.FINISHED)
try:
    with create_session() as session:
        update_run(session)
except RuntimeError as error:
    sys.stdout.write(f"{error}\n")
with create_session() as session:
    found = session.scalar(select(DagRun.state).where(DagRun.dag_id == dag_id, DagRun.run_id == RUN_ID))
[checkpoint] = describe(store, job_id_of(JOB)).checkpoints
sys.stdout.write(f"RUN {found} CHECKPOINT {checkpoint.status.value}\n")
