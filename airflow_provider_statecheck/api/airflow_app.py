"""The app as Airflow's api-server serves it: on Airflow's database, with Airflow's tasks and users."""

from __future__ import annotations

from fastapi import FastAPI
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api import login_routes, page_routes
from airflow_provider_statecheck.api.airflow_liveness import AirflowTaskLiveness
from airflow_provider_statecheck.api.airflow_tasks import AirflowTasks
from airflow_provider_statecheck.api.app import create_app
from airflow_provider_statecheck.api.metrics import airflow_metrics
from airflow_provider_statecheck.api.services import Services
from airflow_provider_statecheck.gateway.paths import VERSION_PATH


def create_airflow_app() -> FastAPI:
    """Make the app; Airflow's database is opened by the first request."""
    app = create_app(Services(_engine, AirflowTasks(), liveness=AirflowTaskLiveness(), observer=airflow_metrics()))
    app.include_router(login_routes.router, prefix=VERSION_PATH)
    app.include_router(page_routes.router)
    return app


def _engine() -> Engine:
    from airflow import settings

    engine: Engine = settings.get_engine()
    return engine
