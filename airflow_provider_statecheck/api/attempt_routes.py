"""What an attempt says to the coordinator."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

from fastapi import APIRouter, Body

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import (
    ServicesDep,
    TakesTestJobsDep,
    TokenDep,
    owner_of,
    require_attempt,
    require_job,
    require_registration,
    require_task,
)
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeCheckpoint,
    AcknowledgeReply,
    AdoptAttempt,
    AttemptGrant,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RegisterAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.storage.uris import normalise_pointer

router = APIRouter(prefix="/attempts", tags=["attempts"], route_class=MessageRoute)


@router.post("/register")
def register(
    message: Annotated[RegisterAttempt, Body(openapi_examples=examples.REGISTER)],
    services: ServicesDep,
    token: TokenDep,
    takes_test_jobs: TakesTestJobsDep,
) -> AttemptGrant:
    """Fence all earlier attempts of the operator and say what to restore; the token becomes that of the attempt."""
    request = require_registration(token, message, services.tasks, takes_test_jobs=takes_test_jobs)
    services.tokens.claim(token, request.attempt_key)
    grant = services.coordinator.register(request)
    services.tokens.bind(token, grant.attempt, request.attempt_key)
    return grant


@router.post("/adopt")
def adopt(
    message: Annotated[AdoptAttempt, Body(openapi_examples=examples.ADOPT)], services: ServicesDep, token: TokenDep
) -> None:
    """Speak for an attempt that still runs; its driver keeps the token it has."""
    if token.attempt != message.attempt:
        require_task(token)
    services.coordinator.adopt(AdoptAttempt(attempt=message.attempt, owner=owner_of(token.caller, message.owner)))
    services.tokens.bind(token, message.attempt, None)


@router.post("/confirm-restore")
def confirm_restore(
    message: Annotated[ConfirmRestore, Body(openapi_examples=examples.CONFIRM_RESTORE)],
    services: ServicesDep,
    token: TokenDep,
) -> None:
    """Record what was restored and which candidates could not be."""
    require_attempt(token, message.attempt)
    services.coordinator.confirm_restore(message)


@router.post("/trigger")
def trigger(
    message: Annotated[TriggerCheckpoint, Body(openapi_examples=examples.TRIGGER)],
    services: ServicesDep,
    token: TokenDep,
) -> PendingCheckpoint:
    """Draw the id of a new checkpoint."""
    require_attempt(token, message.attempt)
    directory = message.savepoint_dir
    normalised = None if directory is None else normalise_pointer(directory)
    return services.coordinator.trigger(replace(message, savepoint_dir=normalised))


@router.post("/acknowledge")
def acknowledge(
    message: Annotated[AcknowledgeCheckpoint, Body(openapi_examples=examples.ACKNOWLEDGE)],
    services: ServicesDep,
    token: TokenDep,
) -> AcknowledgeReply:
    """Complete a checkpoint whose bytes are all on storage."""
    require_attempt(token, message.attempt)
    return services.coordinator.acknowledge(message)


@router.post("/decline")
def decline(
    message: Annotated[DeclineCheckpoint, Body(openapi_examples=examples.DECLINE)],
    services: ServicesDep,
    token: TokenDep,
) -> OpenEffects:
    """Abort a checkpoint that will not be completed."""
    require_attempt(token, message.attempt)
    return services.coordinator.decline(message)


@router.post("/confirm-discards")
def confirm_discards(
    message: Annotated[ConfirmDiscards, Body(openapi_examples=examples.CONFIRM_DISCARDS)],
    services: ServicesDep,
    token: TokenDep,
) -> None:
    """Record that bytes are gone."""
    require_attempt(token, message.attempt)
    require_job(token, message.job_id)
    services.coordinator.confirm_discards(message)


@router.post("/confirm-commits")
def confirm_commits(
    message: Annotated[ConfirmCommits, Body(openapi_examples=examples.CONFIRM_COMMITS)],
    services: ServicesDep,
    token: TokenDep,
) -> OpenEffects:
    """Record that a sink committed what checkpoints hold, those before them too."""
    require_attempt(token, message.attempt)
    return services.coordinator.confirm_commits(message)


@router.post("/finish")
def finish(
    message: Annotated[FinishAttempt, Body(openapi_examples=examples.FINISH)], services: ServicesDep, token: TokenDep
) -> OpenEffects:
    """Close the attempt; its pins end."""
    require_attempt(token, message.attempt)
    return services.coordinator.finish(message)
