"""The app itself, which knows no Airflow: who runs the tasks is told to it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import version

from fastapi import APIRouter, Depends, FastAPI

from airflow_provider_statecheck.api import maintenance_routes, task_routes
from airflow_provider_statecheck.api.access import ServicesDep
from airflow_provider_statecheck.api.requests import (
    BodyLimit,
    SecurityHeaders,
    install_error_replies,
    refuse_unstorable,
)
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.gateway.protocol import MOUNT_PATH, VERSION_PATH

_DISTRIBUTION = "airflow-provider-statecheck"


@dataclass(frozen=True, slots=True, kw_only=True)
class Health:
    """That the API answers, and that its tables are there."""

    status: str
    version: str


health_router = APIRouter(tags=["health"])


@health_router.get("/health")
def health(services: ServicesDep) -> Health:
    """Tell whether the coordinator works; answers 503 where its tables are missing."""
    services.tokens.require_tables()
    return Health(status="ok", version=version(_DISTRIBUTION))


def create_app(services: Services, *, takes_test_jobs: bool = False) -> FastAPI:
    """
    Make the app.

    :param services: What the routes work with.
    :param takes_test_jobs: Whether it serves a test run, so that the jobs of such may be registered.
    """
    app = FastAPI(
        title="statecheck",
        summary="The checkpoint coordinator of Airflow's Spark tasks.",
        version=version(_DISTRIBUTION),
        dependencies=[Depends(refuse_unstorable)],
        # Airflow's users get the description from a page route; the pages that show it load scripts from elsewhere.
        openapi_url=None,
    )
    app.add_middleware(BodyLimit)
    app.add_middleware(SecurityHeaders)
    app.state.services = services
    app.state.takes_test_jobs = takes_test_jobs
    install_error_replies(app)
    for router in (
        health_router,
        task_routes.token_router,
        task_routes.attempt_router,
        task_routes.job_router,
        maintenance_routes.router,
        maintenance_routes.savepoint_router,
    ):
        app.include_router(router, prefix=VERSION_PATH)
    return app


def create_server_app(services: Services) -> FastAPI:
    """
    Make the app for the server of a test run, under the path that it has on Airflow's api-server.

    :param services: What the routes work with.
    """
    root = FastAPI(openapi_url=None)
    root.mount(MOUNT_PATH, create_app(services, takes_test_jobs=True))
    return root
