"""Airflow connection to the coordinator's API."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

import httpx

from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.http_client import HttpClient

DEFAULT_CONN_ID = "statecheck_default"
CONN_TYPE = "statecheck"
DEFAULT_TIMEOUT_SECONDS = 30.0
_CONNECT_TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoordinatorAddress:
    """URL of the coordinator's server and the optional login."""

    url: str
    login: str | None = None
    password: str | None = field(default=None, repr=False)
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS

    def open(self) -> HttpClient:
        """Return a client for the server."""
        return HttpClient(self.url, self.open_pool())

    def open_pool(self) -> httpx.Client:
        """Return the connections of a client, which trust the certificates of Airflow's configuration."""
        return httpx.Client(timeout=self._timeout(), verify=_ssl_context())

    def open_async(self) -> httpx.AsyncClient:
        """Return an asynchronous client; this call reads the certificates, so run it outside of the event loop."""
        return httpx.AsyncClient(timeout=self._timeout(), verify=_ssl_context())

    def _timeout(self) -> httpx.Timeout:
        return httpx.Timeout(self.timeout_seconds, connect=_CONNECT_TIMEOUT_SECONDS)


def coordinator_address(conn_id: str = DEFAULT_CONN_ID) -> CoordinatorAddress:
    """
    Return the coordinator's address from the connection, ``[statecheck] api_url`` or Airflow's api-server, in this order.

    :param conn_id: Connection id; the default connection may be missing.
    :raises InvalidConfigurationError: The connection is missing or its fields are not a valid address.
    """
    connection = _connection(conn_id)
    if connection is None:
        return CoordinatorAddress(url=_configured_url())
    return CoordinatorAddress(
        url=_url_of(connection) or _configured_url(),
        login=connection.login or None,
        password=connection.password or None,
        timeout_seconds=_timeout_of(connection),
    )


def _connection(conn_id: str) -> Any:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        if conn_id == DEFAULT_CONN_ID:
            return None
        raise InvalidConfigurationError(
            f"Expected a connection {conn_id!r} of the type {CONN_TYPE!r}, found none; create it, or omit it to use "
            f"Airflow's api-server."
        ) from error


def _url_of(connection: Any) -> str | None:
    host = connection.host or ""
    if not host or "://" in host:
        return host or None
    scheme = connection.schema or "http"
    return f"{scheme}://{host}" + (f":{connection.port}" if connection.port else "")


def _timeout_of(connection: Any) -> float:
    value = connection.extra_dejson.get("timeout") or DEFAULT_TIMEOUT_SECONDS
    try:
        timeout = float(value)
    except (TypeError, ValueError):
        timeout = 0.0
    if timeout <= 0:
        raise InvalidConfigurationError(
            f"Expected the timeout of connection {connection.conn_id!r} to be a positive number of seconds, found "
            f"{value!r}."
        )
    return timeout


def _configured_url() -> str:
    from airflow.sdk.configuration import conf

    url = conf.get("statecheck", "api_url", fallback=None)
    return str(url).rstrip("/") if url else _execution_api_url().removesuffix("/execution")


def _execution_api_url() -> str:
    from airflow.sdk.configuration import conf

    base = conf.get("api", "base_url", fallback="/") or "/"
    root = f"http://localhost:8080{base}" if base.startswith("/") else base
    default = f"{root.rstrip('/')}/execution/"
    return str(conf.get("core", "execution_api_server_url", fallback=default) or default).rstrip("/")


def _ssl_context() -> ssl.SSLContext | bool:
    from airflow.sdk.configuration import conf

    ca_file = conf.get("api", "ssl_ca_file", fallback=None) or conf.get("api", "ssl_cert", fallback=None)
    if not ca_file:
        return True
    context = ssl.create_default_context()
    context.load_verify_locations(ca_file)
    return context


def check_address(address: CoordinatorAddress) -> str:
    """
    Connect to the coordinator's API, log in if a user is configured, and return a summary.

    :raises StateCheckError: The connection or the login failed.
    """
    client = address.open()
    summary = f"Connected to the coordinator at {client.base_url}, version {_coordinator_version(client)}."
    if address.login is None:
        return summary
    client.log_in(address.login, address.password or "")
    return f"{summary} Logged in to Airflow as {address.login!r}."


def _coordinator_version(client: HttpClient) -> str:
    try:
        health = client.get("health")
    except CoordinatorError as error:
        if error.retryable or isinstance(error, AccessDeniedError):
            raise
        raise _not_a_coordinator(client) from error
    if not _is_health(health):
        raise _not_a_coordinator(client)
    return str(health["version"])


def _is_health(data: Any) -> bool:
    return isinstance(data, dict) and data.get("status") == "ok" and "version" in data


def _not_a_coordinator(client: HttpClient) -> StateCheckError:
    # An api-server without this provider returns an HTML page for every path, so only its version identifies it.
    airflow = client.airflow_version()
    if airflow is None:
        return InvalidConfigurationError(
            f"Expected Airflow's api-server at {client.base_url}, found another server; correct the URL, which must "
            f"include the path of [api] base_url."
        )
    return EnvironmentNotReadyError(
        f"Expected airflow-provider-statecheck on the api-server at {client.base_url}, found Airflow {airflow} without it; "
        f"install it there and restart the api-server with core among its --apps."
    )
