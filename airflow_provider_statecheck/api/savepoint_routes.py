"""What a task of a maintenance Dag says about savepoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, TokenDep, require_maintenance
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.checkpoint.messages import (
    BeginSavepoint,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.checkpoint.requests import SnapshotRequest
from airflow_provider_statecheck.storage.uris import normalise_pointer

router = APIRouter(prefix="/savepoints", tags=["savepoints"], route_class=MessageRoute)


@router.post("/request")
def request_savepoint(
    message: Annotated[RequestSavepoint, Body(openapi_examples=examples.REQUEST_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> SnapshotRequest:
    """Ask for a savepoint of an operator, whether a stage runs or not."""
    require_maintenance(token, services)
    target = None if message.target is None else normalise_pointer(message.target)
    return services.savepoints.request(replace(message, target=target))


@router.post("/begin")
def begin_savepoint(
    message: Annotated[BeginSavepoint, Body(openapi_examples=examples.BEGIN_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> CheckpointRecord:
    """Draw the id of a savepoint that is copied from the newest checkpoint of an operator that does not run."""
    require_maintenance(token, services)
    return services.savepoints.begin(replace(message, savepoint_dir=normalise_pointer(message.savepoint_dir)))


@router.post("/end")
def end_savepoint(
    message: Annotated[EndSavepoint, Body(openapi_examples=examples.END_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> CheckpointRecord:
    """Say that such a savepoint is written, or why it cannot be."""
    require_maintenance(token, services)
    return services.savepoints.end(message)


@router.post("/dispose")
def dispose_savepoint(
    message: Annotated[DisposeSavepoint, Body(openapi_examples=examples.DISPOSE_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> DisposedSavepoint:
    """Give a savepoint up; its bytes may go."""
    require_maintenance(token, services)
    return services.savepoints.dispose(message)
