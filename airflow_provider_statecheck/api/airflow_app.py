"""The app as Airflow's api-server serves it: on Airflow's database, with Airflow's tasks and users."""

from __future__ import annotations

from fastapi import FastAPI

from airflow_provider_statecheck.api import login_routes, page_routes
from airflow_provider_statecheck.api.airflow_services import airflow_services
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.gateway.paths import VERSION_PATH


def create_airflow_app() -> FastAPI:
    """Make the app; Airflow's database is opened by the first request."""
    app = create_app(airflow_services())
    app.include_router(login_routes.router, prefix=VERSION_PATH)
    app.include_router(page_routes.router)
    return app
