"""The API as mounted by Airflow's api-server, with tokens and pages for Airflow users."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import APIRouter, Body, FastAPI

from airflow_provider_statecheck.api import examples, pages
from airflow_provider_statecheck.api.access import ServicesDep
from airflow_provider_statecheck.api.airflow_services import airflow_services
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.services import IssuedToken
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.gateway.protocol import VERSION_PATH
from airflow_provider_statecheck.metadata.token_store import Caller

router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)


@router.post("/login")
def login(
    task: Annotated[Caller, Body(openapi_examples=examples.LOGIN)], services: ServicesDep, user: GetUserDep
) -> IssuedToken:
    """Issue the token of a task to an Airflow user who may edit task instances of its Dag."""
    dag = DagDetails(id=task.dag_id, team_name=DagModel.get_team_name(task.dag_id))
    may_edit = get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=dag, user=user
    )
    if not may_edit:
        raise AccessDeniedError(
            f"Expected a user who may edit task instances of Dag {task.dag_id!r}, found one without this permission; "
            f"grant it or use another user."
        )
    return services.tokens.issue(task)


def create_airflow_app() -> FastAPI:
    """Create the app; the first request opens Airflow's database."""
    app = create_app(airflow_services())
    app.include_router(router, prefix=VERSION_PATH)
    app.include_router(pages.router)
    return app
