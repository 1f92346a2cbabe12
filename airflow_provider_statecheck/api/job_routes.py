"""What is kept of the jobs, to be read."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Path

from airflow_provider_statecheck.api import examples
from airflow_provider_statecheck.api.access import ServicesDep, TokenDep, require_job, require_task
from airflow_provider_statecheck.api.bodies import MessageRoute
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, JobRecord

router = APIRouter(prefix="/jobs", tags=["jobs"], route_class=MessageRoute)

JobPath = Annotated[str, Path(openapi_examples=examples.JOB_ID)]
OperatorPath = Annotated[str, Path(openapi_examples=examples.OPERATOR_ID)]


@router.get("")
def jobs(services: ServicesDep, token: TokenDep) -> tuple[JobRecord, ...]:
    """Return all jobs, the most recently active first."""
    require_task(token)
    return services.coordinator.jobs()


@router.get("/{job_id}")
def describe(job_id: JobPath, services: ServicesDep, token: TokenDep) -> JobView:
    """Return all that is kept of a job."""
    require_job(token, JobId(job_id))
    return services.coordinator.describe(JobId(job_id))


@router.get("/{job_id}/operators/{operator_id}/latest")
def latest(
    job_id: JobPath, operator_id: OperatorPath, services: ServicesDep, token: TokenDep
) -> CheckpointRecord | None:
    """Return the newest completed checkpoint of an operator."""
    require_job(token, JobId(job_id))
    return services.coordinator.latest(JobId(job_id), OperatorId(operator_id))
