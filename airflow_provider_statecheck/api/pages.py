"""HTML pages for Airflow users."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse
from jinja2 import Environment, PackageLoader, StrictUndefined, Template

from airflow_provider_statecheck.api.access import ServicesDep, dags_of
from airflow_provider_statecheck.api.requests import page_policy
from airflow_provider_statecheck.api.task_routes import JobPath
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.statistics_snapshot import (
    CheckpointStatsSnapshot,
    Custody,
    custody_of,
    snapshot_of,
)
from airflow_provider_statecheck.checkpoint.store import RECENT, JobView
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.protocol import JOB_PAGES

router = APIRouter(tags=["pages"])


@router.get(f"{JOB_PAGES}/{{job_id}}", response_class=HTMLResponse)
def job_page(job_id: JobPath, services: ServicesDep, user: GetUserDep) -> HTMLResponse:
    """Return the page of a job to a user who may read the task instances of every Dag that works on it."""
    view = services.coordinator.describe(JobId(job_id))
    for dag_id in sorted(dags_of(view)):
        _require_readable(dag_id, user)
    page = render_job(view)
    return HTMLResponse(page, headers={"Content-Security-Policy": page_policy(page)})


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, user: GetUserDep) -> JSONResponse:
    """Return the OpenAPI description to an Airflow user."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


def render_job(view: JobView) -> str:
    """
    Return the page of a job.

    The template escapes all values, because names, reasons and messages come from users.
    """
    return _template().render(job=view.job, operators=[_operator_section(view, each) for each in view.operators])


@dataclass(frozen=True, slots=True, kw_only=True)
class _OperatorSection:
    """Section of an operator on the page; attempts and checkpoints are in descending order."""

    uid: str
    statistics: CheckpointStatsSnapshot
    attempts: tuple[AttemptRecord, ...]
    checkpoints: tuple[tuple[CheckpointRecord, Custody], ...]


def _operator_section(view: JobView, operator: OperatorRecord) -> _OperatorSection:
    attempts = [a for a in view.attempts if a.operator_id == operator.operator_id]
    checkpoints = view.of_operator(operator.operator_id)
    return _OperatorSection(
        uid=operator.uid,
        statistics=snapshot_of(view, operator),
        attempts=tuple(reversed(attempts[-RECENT:])),
        checkpoints=tuple((c, custody_of(view, c)) for c in reversed(checkpoints)),
    )


@cache
def _template() -> Template:
    environment = Environment(
        loader=PackageLoader("airflow_provider_statecheck.api"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["size"] = readable_size
    environment.filters["seconds"] = _readable_seconds
    return environment.get_template("job.html")


def _readable_seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1000:.1f} s"


def _require_readable(dag_id: str, user: GetUserDep) -> None:
    dag = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    may_read = get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=dag, user=user
    )
    if not may_read:
        raise AccessDeniedError(
            f"Expected a user who may read task instances of Dag {dag_id!r}, found one without this permission; grant it "
            f"or use another user."
        )
