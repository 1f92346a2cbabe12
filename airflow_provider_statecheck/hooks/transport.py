"""Which way leads from this process to the coordinator."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway

_BLOCKED = "airflow-db-not-allowed"


def is_orm_open() -> bool:
    """Tell whether this process may use Airflow's database: tests and commands may, a task under a scheduler may not."""
    return not os.environ.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "").startswith(_BLOCKED)


def airflow_gateway() -> CheckpointCoordinatorGateway:
    """
    Reach the coordinator whose rows are in Airflow's database.

    :raises EnvironmentNotReadyError: in a task under a scheduler, where the database is blocked.
    """
    if not is_orm_open():
        raise EnvironmentNotReadyError(
            "Expected a process that may use Airflow's database, such as 'airflow tasks test', 'airflow dags test' or "
            "dag.test(), found a task under a scheduler, where Airflow blocks it; this version reaches the coordinator "
            "in process only."
        )
    from airflow import settings

    from airflow_provider_statecheck.gateway.in_process import gateway_on_engine
    from airflow_provider_statecheck.hooks.liveness import AirflowTaskLiveness

    return gateway_on_engine(settings.get_engine(), AirflowTaskLiveness())
