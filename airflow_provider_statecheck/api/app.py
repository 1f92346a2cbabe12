"""
FastAPI app of the coordinator, independent of Airflow, and its metrics.

The process that commits a transition sends its metrics, each once::

    statecheck.checkpoint.triggered       counter
    statecheck.checkpoint.completed       counter
    statecheck.checkpoint.failed          counter; aborted checkpoints, except those whose attempt ended
    statecheck.checkpoint.expired         counter; aborted checkpoints that exceeded their timeout
    statecheck.checkpoint.duration        timing; milliseconds from trigger to completion, without the increment
    statecheck.checkpoint.size_bytes      gauge; bytes that a restore reads
    statecheck.restore.count              counter; attempts that start from a checkpoint
    statecheck.restore.fresh              counter; attempts that start from the beginning
    statecheck.restore.failed             counter; checkpoints that a restore could not use
    statecheck.attempt.fenced             counter; attempts that a newer one replaced while they ran
    statecheck.job.last_completed_age     gauge; seconds since the last completed checkpoint, at the next trigger

Tags are ``dag_id`` and ``task_id``.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from typing import Any

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from airflow_provider_statecheck.api import content_routes, state_routes, task_routes
from airflow_provider_statecheck.api.access import ServicesDep, TokenAccess
from airflow_provider_statecheck.api.checked_rows import JobAccess, RememberedAccess
from airflow_provider_statecheck.api.requests import checked_app, reject_unstorable_parameters
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.state_reads import ProxyReads, RequestRate
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
)
from airflow_provider_statecheck.gateway.in_process import AttemptChange, Change, CheckpointChange
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH, VERSION_PATH

log = logging.getLogger(__name__)

_DISTRIBUTION = "airflow-provider-statecheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """State of the API."""

    status: str
    version: str


def healthy() -> Health:
    """Return the state of an API that works."""
    return Health(status="ok", version=version(_DISTRIBUTION))


health_router = APIRouter(tags=["health"])


@health_router.get("/health")
def health(services: ServicesDep) -> Health:
    """Check the API and its database; the reply is 503 if tables are missing or the database does not respond."""
    services.tokens.require_tables()
    return healthy()


def create_app(services: Services, *, access: JobAccess | None = None, takes_test_jobs: bool = False) -> FastAPI:
    """
    Create the app.

    :param access: Decides who may read a job, by default by the tokens of this API.
    :param takes_test_jobs: Accept registrations of jobs of test runs.
    """
    app = checked_app(
        title="statecheck",
        summary="Checkpoint coordinator for Spark tasks of Airflow.",
        version=version(_DISTRIBUTION),
    )
    app.state.services = services
    app.state.job_access = RememberedAccess(access or TokenAccess(services), services.clock)
    rate = RequestRate(lambda: services.state_settings.state_requests_per_second, services.clock)
    app.state.admit = rate.admit
    app.state.takes_test_jobs = takes_test_jobs
    app.state.state_reads = ProxyReads(lambda: services.state_proxy, lambda job_id: services.state_rows.check(job_id))
    app.state.job_contents = lambda: services.job_contents
    app.router.routes.extend(_routes())
    return app


@cache
def _routes() -> tuple[BaseRoute, ...]:
    # Routes have no state, and building the models of their messages takes half a second.
    versioned = APIRouter(prefix=VERSION_PATH, dependencies=[Depends(reject_unstorable_parameters)])
    for router in (
        state_routes.router,
        health_router,
        task_routes.token_router,
        task_routes.router,
        content_routes.router,
    ):
        versioned.include_router(router)
    return tuple(versioned.routes)


def create_server_app(services: Services) -> FastAPI:
    """Create the app for the server of a test run, with the same path as on Airflow's api-server."""
    root = FastAPI(openapi_url=None)
    root.mount(MOUNT_PATH, create_app(services, takes_test_jobs=True))
    return root


class AirflowMetrics:
    """
    Observer that sends metrics through Airflow's ``Stats``.

    :param stats: Airflow's ``Stats`` interface of this process: ``incr``, ``gauge`` and ``timing``.
    """

    def __init__(self, stats: Any) -> None:
        self._stats = stats

    def changed(self, job: JobRecord, change: Change) -> None:
        """Send the metrics of a committed change."""
        try:
            if isinstance(change, AttemptChange):
                self._attempt(change)
            elif isinstance(change, CheckpointChange):
                self._checkpoint(change)
        except Exception as error:
            # The change is already committed; an unavailable metrics backend must not fail the call.
            log.warning("Metrics of job %s could not be sent: %s", job.name, error)

    def _attempt(self, change: AttemptChange) -> None:
        attempt, tags = change.attempt, _tags(change.attempt)
        if change.before is None:
            self._stats.incr(f"statecheck.restore.{'fresh' if attempt.restored_from is None else 'count'}", tags=tags)
        elif attempt.status is AttemptStatus.FENCED:
            self._stats.incr("statecheck.attempt.fenced", tags=tags)

    def _checkpoint(self, change: CheckpointChange) -> None:
        checkpoint, tags = change.checkpoint, _tags(change.attempt)
        if change.before is None:
            self._triggered(change, tags)
        elif change.before is CheckpointStatus.PENDING and checkpoint.status is CheckpointStatus.COMPLETED:
            self._completed(checkpoint, tags)
        elif change.before is CheckpointStatus.PENDING:
            self._failed(checkpoint, tags)
        elif checkpoint.status is CheckpointStatus.COMPLETED and checkpoint.unusable_reason is not None:
            self._stats.incr("statecheck.restore.failed", tags=tags)

    def _triggered(self, change: CheckpointChange, tags: dict[str, str]) -> None:
        self._stats.incr("statecheck.checkpoint.triggered", tags=tags)
        if change.last_completed_at is not None:
            age = change.checkpoint.triggered_at - change.last_completed_at
            self._stats.gauge("statecheck.job.last_completed_age", age.total_seconds(), tags=tags)

    def _completed(self, checkpoint: CheckpointRecord, tags: dict[str, str]) -> None:
        self._stats.incr("statecheck.checkpoint.completed", tags=tags)
        self._stats.gauge("statecheck.checkpoint.size_bytes", checkpoint.full_size_bytes, tags=tags)
        if checkpoint.completed_at is not None:
            milliseconds = (checkpoint.completed_at - checkpoint.triggered_at).total_seconds() * 1000
            self._stats.timing("statecheck.checkpoint.duration", milliseconds, tags=tags)

    def _failed(self, checkpoint: CheckpointRecord, tags: dict[str, str]) -> None:
        if checkpoint.failure_reason == CheckpointFailureReason.ATTEMPT_ENDED.value:
            return
        self._stats.incr("statecheck.checkpoint.failed", tags=tags)
        if checkpoint.failure_reason == CheckpointFailureReason.CHECKPOINT_EXPIRED.value:
            self._stats.incr("statecheck.checkpoint.expired", tags=tags)


def airflow_metrics() -> AirflowMetrics:
    """Return the observer with the ``Stats`` of this process."""
    from airflow.observability import stats

    return AirflowMetrics(stats)


def _tags(attempt: AttemptRecord | None) -> dict[str, str]:
    task = None if attempt is None else attempt.owner.task
    return {} if task is None else {"dag_id": task.dag_id, "task_id": task.task_id}
