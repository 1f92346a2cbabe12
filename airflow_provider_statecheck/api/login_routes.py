"""Getting a token as a user of Airflow, where a task cannot prove itself."""

from __future__ import annotations

from typing import Annotated

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagAccessEntity, DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep
from airflow.models.dag import DagModel
from fastapi import APIRouter, Body

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.api.tokens import IssuedToken
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.token_store import Caller

router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)


@router.post("/login")
def login(
    task: Annotated[Caller, Body(openapi_examples=examples.LOGIN)], services: ServicesDep, user: GetUserDep
) -> IssuedToken:
    """Give a task's token to a user of Airflow who may edit instances of that task."""
    dag = DagDetails(id=task.dag_id, team_name=DagModel.get_team_name(task.dag_id))
    may_edit = get_auth_manager().is_authorized_dag(
        method="PUT", access_entity=DagAccessEntity.TASK_INSTANCE, details=dag, user=user
    )
    if not may_edit:
        raise AccessDeniedError(f"Expected a user who may edit task instances of Dag {task.dag_id!r}, found another.")
    return services.tokens.issue(task)
