"""What the routes work with on Airflow's own database."""

from __future__ import annotations

from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.airflow_liveness import AirflowTaskLiveness
from airflow_provider_statecheck.api.airflow_runs import AirflowRuns
from airflow_provider_statecheck.api.airflow_tasks import AirflowTasks
from airflow_provider_statecheck.api.metrics import airflow_metrics
from airflow_provider_statecheck.api.services import Services


def airflow_services() -> Services:
    """Return them; the database is opened by the first request."""
    return Services(
        _engine,
        AirflowTasks(),
        liveness=AirflowTaskLiveness(),
        observer=airflow_metrics(),
        runs=AirflowRuns(),
        maintenance_dags=_maintenance_dags,
    )


def _maintenance_dags() -> frozenset[str]:
    from airflow.configuration import conf

    names = conf.get("statecheck", "maintenance_dags", fallback="statecheck_maintenance")
    return frozenset(name.strip() for name in names.split(",") if name.strip())


def _engine() -> Engine:
    from airflow import settings

    engine: Engine = settings.get_engine()
    return engine
