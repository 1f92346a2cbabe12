"""Routes for tasks of a maintenance Dag: garbage collection, pruning and savepoints."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, TokenDep, require_maintenance
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    BeginSavepoint,
    ConfirmDiscards,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
)
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, SnapshotRequest
from airflow_provider_statecheck.checkpoint.retention import ForgettableRows
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.maintenance.job_maintenance import (
    CloseAbandoned,
    DropTokens,
    ForgetRows,
    Removal,
    RetireJob,
    SettleRun,
)
from airflow_provider_statecheck.storage.uris import normalise_pointer

router = APIRouter(prefix="/maintenance", tags=["maintenance"], route_class=MessageRoute)

Retirement = Annotated[RetireJob, Body(openapi_examples=examples.RETIRE)]


@router.post("/confirm-discards")
def confirm_discards(
    message: Annotated[ConfirmDiscards, Body(openapi_examples=examples.COLLECTED)],
    services: ServicesDep,
    token: TokenDep,
) -> None:
    """Record that the files of ended checkpoints were deleted; ids of other checkpoints are ignored."""
    require_maintenance(token, services)
    services.maintenance.confirm_discards(message)


@router.post("/close-abandoned")
def close_abandoned(
    message: Annotated[CloseAbandoned, Body(openapi_examples=examples.CLOSE_ABANDONED)],
    services: ServicesDep,
    token: TokenDep,
) -> tuple[AttemptRef, ...]:
    """End the attempts whose drivers were lost, and return them."""
    require_maintenance(token, services)
    return services.maintenance.close_abandoned(message.job_id)


@router.post("/settle-run")
def settle_run(
    message: Annotated[SettleRun, Body(openapi_examples=examples.SETTLE_RUN)], services: ServicesDep, token: TokenDep
) -> tuple[int, ...]:
    """End the checkpoints that are not retained after the end of their run, and return their ids."""
    require_maintenance(token, services)
    return services.maintenance.settle_run(message.job_id)


@router.post("/forget")
def forget(
    message: Annotated[ForgetRows, Body(openapi_examples=examples.FORGET)], services: ServicesDep, token: TokenDep
) -> ForgettableRows:
    """Remove the rows of checkpoints and attempts that ended before the given age, and return their ids."""
    require_maintenance(token, services)
    return services.maintenance.forget(message)


@router.post("/refusal")
def refusal(message: Retirement, services: ServicesDep, token: TokenDep) -> Removal:
    """Return whether a job can be retired, without changing anything."""
    require_maintenance(token, services)
    return services.maintenance.refusal(_reject_named(message))


@router.post("/retire")
def retire(message: Retirement, services: ServicesDep, token: TokenDep) -> Removal:
    """End all checkpoints of a job of a test run, of a job whose Dag run is over, or of one whose removal a user requested."""
    require_maintenance(token, services)
    return services.maintenance.retire(_reject_named(message))


@router.post("/remove")
def remove(message: Retirement, services: ServicesDep, token: TokenDep) -> Removal:
    """Remove the rows of a retired job whose files were deleted."""
    require_maintenance(token, services)
    return services.maintenance.remove(_reject_named(message))


@router.post("/drop-tokens")
def drop_tokens(
    message: Annotated[DropTokens, Body(openapi_examples=examples.DROP_TOKENS)], services: ServicesDep, token: TokenDep
) -> int:
    """Remove the tokens that expired, or whose attempt ended, before the given age, and return their number."""
    require_maintenance(token, services)
    return services.maintenance.drop_tokens(message)


def _reject_named(message: RetireJob) -> RetireJob:
    # The permission of the user was checked at the request that request_key names; a bare name has no such check.
    if message.is_named:
        raise AccessDeniedError(
            "Expected a job to remove because of its age or on the request of a user, found one to remove by name; remove it "
            "on its page, or use 'airflow statecheck prune JOB'."
        )
    return message


savepoint_router = APIRouter(prefix="/savepoints", tags=["savepoints"], route_class=MessageRoute)


@savepoint_router.post("/request")
def request_savepoint(
    message: Annotated[RequestSavepoint, Body(openapi_examples=examples.REQUEST_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> SnapshotRequest:
    """Request a savepoint of an operator, running or not."""
    require_maintenance(token, services)
    target = None if message.target is None else normalise_pointer(message.target)
    return services.savepoints.request(replace(message, target=target))


@savepoint_router.post("/begin")
def begin_savepoint(
    message: Annotated[BeginSavepoint, Body(openapi_examples=examples.BEGIN_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> CheckpointRecord:
    """Allocate the id of a savepoint that is copied from the newest checkpoint of an idle operator."""
    require_maintenance(token, services)
    return services.savepoints.begin(replace(message, savepoint_dir=normalise_pointer(message.savepoint_dir)))


@savepoint_router.post("/end")
def end_savepoint(
    message: Annotated[EndSavepoint, Body(openapi_examples=examples.END_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> CheckpointRecord:
    """Complete a copied savepoint, or report the reason of its failure."""
    require_maintenance(token, services)
    return services.savepoints.end(message)


@savepoint_router.post("/dispose")
def dispose_savepoint(
    message: Annotated[DisposeSavepoint, Body(openapi_examples=examples.DISPOSE_SAVEPOINT)],
    services: ServicesDep,
    token: TokenDep,
) -> DisposedSavepoint:
    """Dispose of a savepoint; the caller may then delete its files."""
    require_maintenance(token, services)
    return services.savepoints.dispose(message)
