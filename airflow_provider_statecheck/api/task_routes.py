"""Routes for tasks and drivers: tokens, attempts and jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Body, Path, Query

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import (
    ServicesDep,
    TakesTestJobsDep,
    TokenDep,
    owner_of,
    require_attempt,
    require_registration,
    require_task,
)
from airflow_provider_statecheck.api.job_access import JobGrantDep, require_job
from airflow_provider_statecheck.api.requests import MessageRoute
from airflow_provider_statecheck.api.services import IssuedToken
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
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
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, JobRecord, RowsVersion
from airflow_provider_statecheck.checkpoint.store import (
    LARGEST_PAGE,
    RECENT,
    CheckpointPage,
    JobView,
    LatestCheckpoints,
)
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.storage.uris import normalise_pointer

token_router = APIRouter(prefix="/token", tags=["tokens"], route_class=MessageRoute)


@dataclass(frozen=True, slots=True, kw_only=True)
class Challenge:
    """A running task instance and the secret whose hash is in its task state store."""

    ti_id: str
    secret: str

    def __repr__(self) -> str:
        return f"Challenge({self.ti_id}, ***)"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRequest:
    """The job that a read token is requested for."""

    job_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renewal:
    """Expiry of a renewed token."""

    expires_at: datetime


@token_router.post("")
def exchange(
    challenge: Annotated[Challenge, Body(openapi_examples=examples.CHALLENGE)], services: ServicesDep
) -> IssuedToken:
    """Issue a token to a running task that knows its secret; each secret is valid once."""
    return services.tokens.issue(services.tasks.prove(challenge.ti_id, challenge.secret))


@token_router.post("/read")
def reader(
    request: Annotated[ReadRequest, Body(openapi_examples=examples.READ)], services: ServicesDep, token: TokenDep
) -> IssuedToken:
    """Issue a token that can only read one job, for code that cannot request tokens itself."""
    require_task(token)
    return services.tokens.issue_reader(token.task, JobId(request.job_id))


@token_router.post("/renew")
def renew(services: ServicesDep, token: TokenDep) -> Renewal:
    """Extend a read token while its task runs or is deferred."""
    if not services.tasks.is_waiting(token.task):
        raise AccessDeniedError(
            "Expected a task that runs or is deferred, found that the task of this token has ended; a token of an ended "
            "task cannot be renewed."
        )
    return Renewal(expires_at=services.tokens.renew_reader(token))


attempt_router = APIRouter(prefix="/attempts", tags=["attempts"], route_class=MessageRoute)


@attempt_router.post("/register")
def register(
    message: Annotated[RegisterAttempt, Body(openapi_examples=examples.REGISTER)],
    services: ServicesDep,
    token: TokenDep,
    takes_test_jobs: TakesTestJobsDep,
) -> AttemptGrant:
    """Register an attempt, bind the token to it, fence all earlier attempts, and return the candidates for a restore."""
    request = require_registration(token, message, services.tasks, takes_test_jobs=takes_test_jobs)
    services.tokens.claim(token, request.attempt_key)
    grant = services.coordinator.register(request)
    services.tokens.bind(token, grant.attempt, request.attempt_key)
    return grant


@attempt_router.post("/adopt")
def adopt(
    message: Annotated[AdoptAttempt, Body(openapi_examples=examples.ADOPT)], services: ServicesDep, token: TokenDep
) -> None:
    """Bind the token of a later try to an attempt that still runs; its driver keeps its own token."""
    if token.attempt != message.attempt:
        require_task(token)
    services.coordinator.adopt(AdoptAttempt(attempt=message.attempt, owner=owner_of(token.task, message.owner)))
    services.tokens.bind(token, message.attempt, None)


@attempt_router.post("/confirm-restore")
def confirm_restore(
    message: Annotated[ConfirmRestore, Body(openapi_examples=examples.CONFIRM_RESTORE)],
    services: ServicesDep,
    token: TokenDep,
) -> None:
    """Record the restored checkpoint and the candidates that could not be restored."""
    require_attempt(token, message.attempt)
    services.coordinator.confirm_restore(message)


@attempt_router.post("/trigger")
def trigger(
    message: Annotated[TriggerCheckpoint, Body(openapi_examples=examples.TRIGGER)],
    services: ServicesDep,
    token: TokenDep,
) -> PendingCheckpoint:
    """Allocate the id of a new checkpoint."""
    require_attempt(token, message.attempt)
    directory = message.savepoint_dir
    normalised = None if directory is None else normalise_pointer(directory)
    return services.coordinator.trigger(replace(message, savepoint_dir=normalised))


@attempt_router.post("/acknowledge")
def acknowledge(
    message: Annotated[AcknowledgeCheckpoint, Body(openapi_examples=examples.ACKNOWLEDGE)],
    services: ServicesDep,
    token: TokenDep,
) -> AcknowledgeReply:
    """Complete a checkpoint whose files are all on storage."""
    require_attempt(token, message.attempt)
    return services.coordinator.acknowledge(message)


@attempt_router.post("/decline")
def decline(
    message: Annotated[DeclineCheckpoint, Body(openapi_examples=examples.DECLINE)],
    services: ServicesDep,
    token: TokenDep,
) -> OpenEffects:
    """Abort a pending checkpoint."""
    require_attempt(token, message.attempt)
    return services.coordinator.decline(message)


@attempt_router.post("/confirm-discards")
def confirm_discards(
    message: Annotated[ConfirmDiscards, Body(openapi_examples=examples.CONFIRM_DISCARDS)],
    services: ServicesDep,
    token: TokenDep,
) -> None:
    """Record that the files of ended checkpoints were deleted."""
    require_attempt(token, message.attempt)
    require_job(token, message.job_id)
    services.coordinator.confirm_discards(message)


@attempt_router.post("/confirm-commits")
def confirm_commits(
    message: Annotated[ConfirmCommits, Body(openapi_examples=examples.CONFIRM_COMMITS)],
    services: ServicesDep,
    token: TokenDep,
) -> OpenEffects:
    """Record that a sink committed the output of checkpoints and of all earlier ones."""
    require_attempt(token, message.attempt)
    return services.coordinator.confirm_commits(message)


@attempt_router.post("/finish")
def finish(
    message: Annotated[FinishAttempt, Body(openapi_examples=examples.FINISH)], services: ServicesDep, token: TokenDep
) -> OpenEffects:
    """Close the attempt and release its pins."""
    require_attempt(token, message.attempt)
    return services.coordinator.finish(message)


job_router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=MessageRoute)

JobPath = Annotated[str, Path(openapi_examples=examples.JOB_ID)]
CheckpointPath = Annotated[int, Path(ge=1, le=2**63 - 1, openapi_examples=examples.CHECKPOINT_ID)]
OperatorPath = Annotated[str, Path(openapi_examples=examples.OPERATOR_ID)]


@job_router.get("")
def jobs(services: ServicesDep, token: TokenDep) -> tuple[JobRecord, ...]:
    """Return all jobs, most recently active first."""
    require_task(token)
    return services.coordinator.jobs()


@job_router.get("/{job_id}")
def describe(job_id: JobPath, services: ServicesDep, grant: JobGrantDep) -> JobView:
    """Return a job with its newest checkpoints and all checkpoints whose files may still exist."""
    return services.coordinator.describe(JobId(job_id))


@job_router.get("/{job_id}/latest")
def latest_checkpoints(
    job_id: JobPath,
    services: ServicesDep,
    grant: JobGrantDep,
    known_version: Annotated[
        int | None,
        Query(description="The version of the job in an earlier reply", openapi_examples=examples.KNOWN_VERSION),
    ] = None,
    seen_at: Annotated[
        datetime | None,
        Query(description="The seen_at of the job in the same reply", openapi_examples=examples.SEEN_AT),
    ] = None,
) -> LatestCheckpoints | None:
    """Return the newest readable checkpoint of each operator, or null if the job is as in an earlier reply."""
    known = None if known_version is None or seen_at is None else RowsVersion(known_version, seen_at)
    return services.coordinator.latest_checkpoints(JobId(job_id), known)


@job_router.get("/{job_id}/checkpoints")
def checkpoints(
    job_id: JobPath,
    services: ServicesDep,
    grant: JobGrantDep,
    before: Annotated[int | None, Query(description="Only checkpoints with a lower id")] = None,
    limit: Annotated[int, Query(description=f"Maximum number of checkpoints, up to {LARGEST_PAGE}")] = RECENT,
    operator_id: Annotated[str | None, Query(description="Only checkpoints of this operator")] = None,
    status: Annotated[CheckpointStatus | None, Query(description="Only checkpoints with this status")] = None,
) -> tuple[CheckpointRecord, ...]:
    """Return a page of the checkpoints of a job, newest first; pass its last id as ``before`` to get the next page."""
    operator = None if operator_id is None else OperatorId(operator_id)
    page = CheckpointPage(before=before, limit=limit, operator_id=operator, status=status)
    return services.coordinator.checkpoints(JobId(job_id), page)


@job_router.get("/{job_id}/checkpoints/{checkpoint_id}")
def checkpoint(
    job_id: JobPath, checkpoint_id: CheckpointPath, services: ServicesDep, grant: JobGrantDep
) -> CheckpointRecord | None:
    """Return a checkpoint of a job, or null if it has no row."""
    return services.coordinator.checkpoint(JobId(job_id), checkpoint_id)


@job_router.get("/{job_id}/operators/{operator_id}/latest")
def latest(
    job_id: JobPath, operator_id: OperatorPath, services: ServicesDep, grant: JobGrantDep
) -> CheckpointRecord | None:
    """Return the newest completed checkpoint of an operator, or null if there is none."""
    return services.coordinator.latest(JobId(job_id), OperatorId(operator_id))
