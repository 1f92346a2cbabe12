"""What the button *Test* on the form of a connection finds out."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.http_client import HttpClient
from airflow_provider_statecheck.hooks.address import CoordinatorAddress


def check_address(address: CoordinatorAddress) -> str:
    """
    Reach the coordinator's API, log in where a user is given, and say what was found.

    :raises StateCheckError: saying what is not as it should be.
    """
    client = address.open()
    found = f"The coordinator at {client.base_url} answers; it is of version {_coordinator_version(client)}."
    if address.login is None:
        return found
    client.log_in(address.login, address.password or "")
    return f"{found} Airflow knows the user {address.login!r}."


def _coordinator_version(client: HttpClient) -> str:
    try:
        health = client.get("health")
    except CoordinatorError as error:
        if error.retryable or isinstance(error, AccessDeniedError):
            raise
        raise _something_else(client) from error
    if not _is_health(health):
        raise _something_else(client)
    return str(health["version"])


def _is_health(data: Any) -> bool:
    return isinstance(data, dict) and data.get("status") == "ok" and "version" in data


def _something_else(client: HttpClient) -> StateCheckError:
    # An api-server without this provider answers any path with a page of its own, so it is asked who it is.
    airflow = client.airflow_version()
    if airflow is None:
        return InvalidConfigurationError(
            f"Expected Airflow's api-server at {client.base_url}, found another server; correct the URL, which ends with "
            f"the path of [api] base_url where that has one."
        )
    return EnvironmentNotReadyError(
        f"Expected airflow-provider-statecheck on the api-server at {client.base_url}, found Airflow {airflow} without it; "
        f"install it there, restart the api-server, and let it run with core among its --apps."
    )
