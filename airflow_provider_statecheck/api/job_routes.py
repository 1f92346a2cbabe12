"""What is kept of the jobs, to be read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path, Query

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, TokenDep, require_job, require_task
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_view import LARGEST_PAGE, RECENT, CheckpointPage, JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, JobRecord

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=MessageRoute)

JobPath = Annotated[str, Path(openapi_examples=examples.JOB_ID)]
CheckpointPath = Annotated[int, Path(ge=1, le=2**63 - 1, openapi_examples=examples.CHECKPOINT_ID)]
OperatorPath = Annotated[str, Path(openapi_examples=examples.OPERATOR_ID)]


@router.get("")
def jobs(services: ServicesDep, token: TokenDep) -> tuple[JobRecord, ...]:
    """Return all jobs, the most recently active first."""
    require_task(token)
    return services.coordinator.jobs()


@router.get("/{job_id}")
def describe(job_id: JobPath, services: ServicesDep, token: TokenDep) -> JobView:
    """Return a job as it stands: its newest checkpoints, and of the others those whose bytes may exist."""
    require_job(token, JobId(job_id))
    return services.coordinator.describe(JobId(job_id))


@router.get("/{job_id}/checkpoints")
def checkpoints(
    job_id: JobPath,
    services: ServicesDep,
    token: TokenDep,
    before: Annotated[int | None, Query(description="Only those with a lower id")] = None,
    limit: Annotated[int, Query(description=f"How many at most, up to {LARGEST_PAGE}")] = RECENT,
    operator_id: Annotated[str | None, Query(description="Only those of this operator")] = None,
    status: Annotated[CheckpointStatus | None, Query(description="Only those of this status")] = None,
) -> tuple[CheckpointRecord, ...]:
    """Return a page of the checkpoints of a job, newest first; the last id of a page leads to the next one."""
    require_job(token, JobId(job_id))
    operator = None if operator_id is None else OperatorId(operator_id)
    page = CheckpointPage(before=before, limit=limit, operator_id=operator, status=status)
    return services.coordinator.checkpoints(JobId(job_id), page)


@router.get("/{job_id}/checkpoints/{checkpoint_id}")
def checkpoint(
    job_id: JobPath, checkpoint_id: CheckpointPath, services: ServicesDep, token: TokenDep
) -> CheckpointRecord | None:
    """Return a checkpoint of a job, null if it has no row."""
    require_job(token, JobId(job_id))
    return services.coordinator.checkpoint(JobId(job_id), checkpoint_id)


@router.get("/{job_id}/operators/{operator_id}/latest")
def latest(
    job_id: JobPath, operator_id: OperatorPath, services: ServicesDep, token: TokenDep
) -> CheckpointRecord | None:
    """Return the newest completed checkpoint of an operator."""
    require_job(token, JobId(job_id))
    return services.coordinator.latest(JobId(job_id), OperatorId(operator_id))
