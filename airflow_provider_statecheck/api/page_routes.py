"""Pages for people: what is kept of a job, as the button on a task's page shows it."""

from __future__ import annotations

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import HTMLResponse, JSONResponse

from airflow_provider_statecheck.api.access import ServicesDep, dags_of
from airflow_provider_statecheck.api.headers import page_policy
from airflow_provider_statecheck.api.job_page import render_job
from airflow_provider_statecheck.api.job_routes import JobPath
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.paths import JOB_PAGES

router = APIRouter(tags=["pages"])


@router.get(f"{JOB_PAGES}/{{job_id}}", response_class=HTMLResponse)
def job_page(job_id: JobPath, services: ServicesDep, user: GetUserDep) -> HTMLResponse:
    """Show a job to a user who may read the task instances of every Dag that works on it."""
    view = services.coordinator.describe(JobId(job_id))
    for dag_id in sorted(dags_of(view)):
        _require_readable(dag_id, user)
    page = render_job(view)
    return HTMLResponse(page, headers={"Content-Security-Policy": page_policy(page)})


@router.get("/openapi.json", include_in_schema=False)
def openapi(request: Request, user: GetUserDep) -> JSONResponse:
    """Return the description of every call to a user of Airflow."""
    app: FastAPI = request.app
    return JSONResponse(app.openapi())


def _require_readable(dag_id: str, user: GetUserDep) -> None:
    dag = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    may_read = get_auth_manager().is_authorized_dag(
        method="GET", access_entity=DagAccessEntity.TASK_INSTANCE, details=dag, user=user
    )
    if not may_read:
        raise AccessDeniedError(f"Expected a user who may read task instances of Dag {dag_id!r}, found another.")
