"""Which way leads from this process to the coordinator."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.hooks.address import DEFAULT_CONN_ID, coordinator_address

if TYPE_CHECKING:
    from airflow_provider_statecheck.gateway.credentials import Credentials
    from airflow_provider_statecheck.gateway.http import HttpGateway
    from airflow_provider_statecheck.gateway.http_client import HttpClient
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway
    from airflow_provider_statecheck.hooks.address import CoordinatorAddress

Reply = TypeVar("Reply")

_BLOCKED = "airflow-db-not-allowed"

# An api-server that is restarted is back within these; Airflow itself gives a task up soon after.
_PAUSES_SECONDS = (0.1, 0.5, 2.0, 5.0, 10.0, 20.0, 30.0, 60.0)


def is_orm_open() -> bool:
    """Tell whether this process may use Airflow's database: tests and commands may, a task under a scheduler may not."""
    return not os.environ.get("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "").startswith(_BLOCKED)


def airflow_gateway(conn_id: str = DEFAULT_CONN_ID) -> RetryingGateway:
    """
    Reach the coordinator of this Airflow: in process where its database is open, else over HTTP.

    :param conn_id: Connection that names the server, for the way over HTTP.
    :raises EnvironmentNotReadyError: where the database is blocked and no task is running.
    """
    return _in_process() if is_orm_open() else over_http(task_gateway(conn_id))


def over_http(gateway: HttpGateway) -> RetryingGateway:
    """Repeat calls that fail while the api-server is down for a moment."""
    from airflow_provider_statecheck.gateway.retrying import RetryingGateway

    return RetryingGateway(gateway, _PAUSES_SECONDS)


def patiently(call: Callable[[], Reply]) -> Reply:
    """
    Make a call over HTTP, again and again while the api-server is down for a moment.

    :param call: What may be repeated.
    """
    from airflow_provider_statecheck.gateway.retrying import repeat

    return repeat(call, _PAUSES_SECONDS)


def task_gateway(conn_id: str = DEFAULT_CONN_ID) -> HttpGateway:
    """
    Reach the coordinator's API as the task that runs in this process.

    :param conn_id: Connection that names the server.
    :raises EnvironmentNotReadyError: if none does.
    """
    from airflow_provider_statecheck.gateway.http import HttpGateway

    address = coordinator_address(conn_id)
    client = address.open()
    return HttpGateway(client, task_credentials(client, address))


def task_credentials(client: HttpClient, address: CoordinatorAddress) -> Credentials:
    """
    Return what the task that runs in this process proves itself with.

    :raises EnvironmentNotReadyError: where no task is running.
    """
    from airflow_provider_statecheck.hooks.credentials import LoginCredentials, TaskCredentials

    ti = _running_task()
    if address.login is None:
        return TaskCredentials(client, ti.id)
    task = {"dag_id": ti.dag_id, "run_id": ti.run_id, "task_id": ti.task_id, "map_index": ti.map_index}
    return LoginCredentials(client, task, address.login, address.password or "")


def _running_task() -> Any:
    from airflow.sdk import get_current_context

    try:
        return get_current_context()["ti"]
    except RuntimeError as error:
        raise EnvironmentNotReadyError(
            "Expected a running task, or a process that may use Airflow's database, found neither; ask the coordinator "
            "from inside a task or from a command."
        ) from error


def _in_process() -> RetryingGateway:
    from airflow import settings

    from airflow_provider_statecheck.api.airflow_liveness import AirflowTaskLiveness
    from airflow_provider_statecheck.api.metrics import airflow_metrics
    from airflow_provider_statecheck.gateway.in_process import gateway_on_engine

    return gateway_on_engine(settings.get_engine(), AirflowTaskLiveness(), airflow_metrics())
