"""FastAPI app of the coordinator, independent of Airflow."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI
from starlette.routing import BaseRoute

from airflow_provider_statecheck.api import content_routes, state_routes, task_routes
from airflow_provider_statecheck.api.access import ServicesDep, TokenAccess
from airflow_provider_statecheck.api.checked_rows import JobAccess, RememberedAccess
from airflow_provider_statecheck.api.requests import checked_app, reject_unstorable_parameters
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.api.state_reads import ProxyReads, RequestRate
from airflow_provider_statecheck.gateway.verbs import MOUNT_PATH, VERSION_PATH

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
