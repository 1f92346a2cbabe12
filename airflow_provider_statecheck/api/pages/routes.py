"""
Routes of the pages.

A user sees a job if they may read the task instances of every Dag that works on it. The pages do not show whether any
other job exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated, Any

from airflow.api_fastapi.auth.managers.models.base_user import BaseUser
from airflow.api_fastapi.core_api.security import GetUserDep
from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from pydantic import BeforeValidator

from airflow_provider_statecheck.api.access import ServicesDep
from airflow_provider_statecheck.api.action_routes import WantedDep, preview_of, require_permitted
from airflow_provider_statecheck.api.airflow_access import JobsDep, UserJobs
from airflow_provider_statecheck.api.airflow_services import task_state
from airflow_provider_statecheck.api.forks import forking_task, may_fork
from airflow_provider_statecheck.api.pages.job_figures import RETRY_DELAY, OperatorsQuery, ShownJob, rows_of, shown_job
from airflow_provider_statecheck.api.pages.rendering import PageRoute, render
from airflow_provider_statecheck.api.requests import public_text
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.task_routes import CheckpointPath, JobPath, OperatorPath
from airflow_provider_statecheck.checkpoint.fencing import SILENCE
from airflow_provider_statecheck.checkpoint.ids import OperatorId, new_key
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobOverview, JobSort, JobsPage, ListedStatus
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, TaskCoordinates
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CorruptRowError, StateCheckError
from airflow_provider_statecheck.gateway.verbs import JOB_PAGES
from airflow_provider_statecheck.maintenance.rewind import fork_point
from airflow_provider_statecheck.metadata.tables import Caller

CHECKPOINTS_ON_PAGE = 50
LARGEST_SECTIONS = 20
"""Number of operators up to which the page of a job has a section for each, and above which it has a table."""
_OR_NONE = BeforeValidator(lambda text: text or None)
"""A form sends an empty text for a choice that the user has not made."""
_LIVE_STATES = frozenset({"scheduled", "queued", "running", "restarting", "up_for_retry", "deferred"})
"""States of a task instance in which an attempt may register or is running."""

router = APIRouter(tags=["pages"], route_class=PageRoute)
description_router = APIRouter(tags=["pages"])


def shown_in_path(job_id: JobPath, jobs: JobsDep) -> ShownJob:
    """Return the job in the path, if the user may read it."""
    view = jobs.view(job_id)
    return shown_job(view, is_editable=jobs.editable.permits_all(view))


ShownDep = Annotated[ShownJob, Depends(shown_in_path)]


@description_router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, user: GetUserDep) -> JSONResponse:
    """Return the OpenAPI description to an Airflow user."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


@dataclass(frozen=True, slots=True, kw_only=True)
class JobsQuery:
    """Filter, order and position of a list of jobs in the address of its page."""

    name: Annotated[str, Query(description="Only jobs whose names contain this text")] = ""
    status: Annotated[ListedStatus | None, _OR_NONE, Query(description="Only jobs with this status")] = None
    sort: Annotated[JobSort, Query(description="Order of the jobs")] = JobSort.STATUS
    descending: Annotated[bool, Query(description="Whether the order is reversed")] = False
    after: Annotated[str | None, _OR_NONE, Query(description="Position after which the page begins")] = None

    def page(self, dag_id: str | None) -> JobsPage:
        """
        Return the page of the list.

        :raises InvalidConfigurationError: if the position belongs to another order.
        """
        return JobsPage(
            after=self.after,
            sort=self.sort,
            descending=self.descending,
            name=self.name or None,
            status=self.status,
            dag_id=dag_id,
        )


JobsQueryDep = Annotated[JobsQuery, Depends()]
OperatorsQueryDep = Annotated[OperatorsQuery, Depends()]


@router.get(JOB_PAGES)
def jobs_page(
    request: Request,
    jobs: JobsDep,
    services: ServicesDep,
    query: JobsQueryDep,
    dag_id: Annotated[str, Query(description="Only jobs with attempts of this Dag")] = "",
) -> Response:
    """Return a page of the list of jobs."""
    page = query.page(dag_id or None)
    return render(request, "jobs.html", dag_id=dag_id, **_listed(jobs.overviews(page), page, services))


def _listed(jobs: JobList, page: JobsPage, services: Services) -> dict[str, Any]:
    now = services.clock.now()
    running = {job.job_id for job in jobs.jobs if job.status is ListedStatus.RUNNING}
    # No attempt of such a job has called, so each is silent as ``gc`` finds it; the list does not wait for them.
    silent = {job.job_id for job in jobs.jobs if job.job_id in running and now - job.seen_at > SILENCE}
    refreshes = bool(running - silent) or any(_awaits_retry(job, now) for job in jobs.jobs)
    return {"jobs": jobs, "page": page, "now": now, "silent": silent, "refreshes": refreshes}


def _awaits_retry(job: JobOverview, now: datetime) -> bool:
    return job.status is ListedStatus.FAILED and job.failed_at is not None and now - job.failed_at < RETRY_DELAY


@router.get(f"{JOB_PAGES}/{{job_id}}")
def job_page(request: Request, job: ShownDep, query: OperatorsQueryDep) -> Response:
    """Return the page of a job, with a section for each operator, or with a table of many operators."""
    shown: dict[str, Any] = {"job": job, "refreshes": job.is_changing}
    if len(job.rows) > LARGEST_SECTIONS:
        return render(request, "operators.html", table=query.table(job.rows), **shown)
    return render(request, "job.html", sections=job.sections(), **shown)


@router.get(f"{JOB_PAGES}/{{job_id}}/operators/{{operator_id}}")
def operator_page(request: Request, shown: ShownDep, operator_id: OperatorPath) -> Response:
    """Return the page of an operator."""
    job = shown.of_operator(operator_id)
    (section,) = job.sections()
    return render(request, "operator_page.html", job=job, section=section, refreshes=job.is_changing)


@router.get(f"{JOB_PAGES}/{{job_id}}/checkpoints")
def checkpoints_page(
    request: Request,
    job: ShownDep,
    services: ServicesDep,
    operator_id: Annotated[str, Query(description="Only checkpoints of this operator")] = "",
    status: Annotated[CheckpointStatus | None, _OR_NONE, Query(description="Only checkpoints with this status")] = None,
    before: Annotated[int | None, Query(description="Only checkpoints with a lower id")] = None,
) -> Response:
    """Return a page of the history of a job, newest checkpoints first."""
    page = CheckpointPage(
        before=before, limit=CHECKPOINTS_ON_PAGE, operator_id=OperatorId(operator_id) or None, status=status
    )
    rows = rows_of(job.view, services.coordinator.checkpoints(job.view.job.job_id, page))
    refreshes = job.is_changing and before is None
    statuses = tuple(CheckpointStatus)
    return render(request, "history.html", job=job, page=page, rows=rows, statuses=statuses, refreshes=refreshes)


@router.get(f"{JOB_PAGES}/{{job_id}}/checkpoints/{{checkpoint_id}}")
def checkpoint_page(
    request: Request,
    job: ShownDep,
    checkpoint_id: CheckpointPath,
    services: ServicesDep,
    user: GetUserDep,
) -> Response:
    """Return the page of a checkpoint."""
    job_id = job.view.job.job_id
    record = services.coordinator.checkpoint(job_id, checkpoint_id)
    if record is None:
        raise CheckpointNotFoundError(f"Expected checkpoint {checkpoint_id} in job {job_id}, found none.")
    (row,) = rows_of(job.view, (record,))
    uid = next((o.uid for o in job.view.operators if o.operator_id == record.operator_id), record.operator_id)
    restored_by = [a for a in job.view.attempts if a.restored_from == checkpoint_id]
    values: dict[str, Any] = {"job": job, "row": row, "uid": uid, "restored_by": restored_by}
    fork = _fork(job, record, user)
    return render(request, "checkpoint.html", fork=fork, refreshes=row.duration is None, **values)


def _fork(job: ShownJob, checkpoint: CheckpointRecord, user: BaseUser) -> dict[str, str | None] | None:
    """Return the task of a fork and the param that names the checkpoint; ``None`` if the user cannot fork from it."""
    point = fork_point(job.view, checkpoint) if job.is_editable else None
    if point is None or not may_fork(point, user):
        return None
    task = forking_task(point.dag_id, point.task_id)
    return None if task is None else {"dag_id": point.dag_id, "task_id": point.task_id, "param": task.param}


@router.get(f"{JOB_PAGES}/{{job_id}}/actions/{{action}}")
def action_page(request: Request, wanted: WantedDep, jobs: JobsDep, job: ShownDep, services: ServicesDep) -> Response:
    """Return the preview of an action on a job, with its confirmation."""
    preview, refusal = None, ""
    require_permitted(jobs, job.view, wanted)
    try:
        preview = preview_of(services, wanted)
    except StateCheckError as error:
        refusal = public_text(error)
    # The key belongs to this confirmation, so that sending it twice is one request.
    names = ("operator_id", "checkpoint_id", "run_key")
    message = {name: getattr(wanted, name) for name in names if getattr(wanted, name)} | {"request_key": new_key()}
    return render(request, "action.html", job=job, wanted=wanted, preview=preview, refusal=refusal, message=message)


@router.get("/dags/{dag_id}")
def dag_page(request: Request, dag_id: str, jobs: JobsDep, services: ServicesDep, query: JobsQueryDep) -> Response:
    """Return the page of the jobs of a Dag."""
    jobs.readable.require(dag_id)
    page = query.page(dag_id)
    return render(request, "dag.html", dag_id=dag_id, **_listed(jobs.overviews(page), page, services))


# The id of a run may contain a slash.
@router.get("/dags/{dag_id}/runs/{run_id:path}/tasks/{task_id}")
def task_page(
    request: Request,
    dag_id: str,
    run_id: str,
    task_id: str,
    jobs: JobsDep,
    services: ServicesDep,
    map_index: Annotated[str, Query(description="Index of a mapped task instance")] = "",
) -> Response:
    """Return the page of a task instance, which Airflow's UI shows for every task, with or without checkpoints."""
    jobs.readable.require(dag_id)
    # The UI leaves its placeholder in the address of a task that is not mapped.
    index = int(map_index) if map_index.isdecimal() else -1
    task = Caller(dag_id=dag_id, run_id=run_id, task_id=task_id, map_index=index)
    (shown, unreadable), state = _of_run(jobs, task.coordinates), task_state(task)
    refreshes = state in _LIVE_STATES or any(job.is_changing for job in shown)
    name = f"{dag_id}.{task_id}" + (f" [{index}]" if index >= 0 else "")
    more: dict[str, Any] = {"jobs": shown, "unreadable": unreadable, "refreshes": refreshes}
    more |= {"refused": [] if shown else jobs.refusals(task.coordinates), "now": services.clock.now()}
    return render(request, "task.html", task=task, name=name, state=state, **more)


@router.get("/dags/{dag_id}/runs/{run_id:path}")
def run_page(
    request: Request, dag_id: str, run_id: str, jobs: JobsDep, services: ServicesDep, query: OperatorsQueryDep
) -> Response:
    """Return the page of a Dag run."""
    jobs.readable.require(dag_id)
    shown, unreadable = _of_run(jobs, (dag_id, run_id))
    refreshes = any(job.is_changing for job in shown)
    table, now = query.table(row for job in shown for row in job.rows), services.clock.now()
    more: dict[str, Any] = {"table": table, "unreadable": unreadable, "now": now, "refreshes": refreshes}
    return render(request, "run.html", dag_id=dag_id, run_id=run_id, **more)


def _of_run(jobs: UserJobs, task: TaskCoordinates | tuple[str, str]) -> tuple[list[ShownJob], list[CorruptRowError]]:
    """Return the jobs of a task, or of a run of a Dag."""
    views, unreadable = jobs.of_run(task[0], task[1])
    found = (shown_job(view, task, is_editable=jobs.editable.permits_all(view)) for view in views)
    return [each for each in found if each.rows], unreadable
