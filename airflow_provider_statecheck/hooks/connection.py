"""Airflow connections: to the coordinator's API, and to the checkpoint storage."""

from __future__ import annotations

import logging
import math
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import httpx

from airflow_provider_statecheck.configuration import SECTION, configured_locations, guarded_locations
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.guarded_places import GuardedPlaces
from airflow_provider_statecheck.storage.locations import AllowedLocations
from airflow_provider_statecheck.storage.patience import PATIENCE, HostPatience
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, scheme_of, secrets_in

log = logging.getLogger(__name__)

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
    Return the coordinator's address: from the connection, ``[statecheck] api_url`` or Airflow's api-server.

    :param conn_id: Connection id; the default connection may be missing.
    :raises InvalidConfigurationError: if the connection is missing or its fields are not a valid address.
    """
    connection = _connection(conn_id)
    if connection is None and conn_id == DEFAULT_CONN_ID:
        return CoordinatorAddress(url=_configured_url())
    if connection is None:
        raise InvalidConfigurationError(
            f"Expected a connection {conn_id!r} of the type {CONN_TYPE!r}, found none; create it, or omit it to use "
            f"Airflow's api-server."
        )
    return CoordinatorAddress(
        url=_url_of(connection) or _configured_url(),
        login=connection.login or None,
        password=connection.password or None,
        timeout_seconds=_timeout_of(connection),
    )


def _connection(conn_id: str) -> Any:
    """Return a connection, or ``None`` if there is none."""
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException:
        return None


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
    if not 0 < timeout < math.inf:
        raise InvalidConfigurationError(
            f"Expected the timeout of connection {connection.conn_id!r} to be a positive number of seconds, found "
            f"{value!r}."
        )
    return timeout


def _configured_url() -> str:
    from airflow_provider_statecheck.configuration import api_url

    url = api_url()
    return url.rstrip("/") if url else _execution_api_url().removesuffix("/execution")


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

    :raises StateCheckError: if the connection or the login failed.
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
    if not isinstance(health, dict) or health.get("status") != "ok" or "version" not in health:
        raise _not_a_coordinator(client)
    return str(health["version"])


def _not_a_coordinator(client: HttpClient) -> StateCheckError:
    # An api-server without this provider returns an HTML page for every path, so only its version identifies it.
    airflow = client.airflow_version()
    if airflow is None:
        return InvalidConfigurationError(
            f"Expected Airflow's api-server at {client.base_url}, found another server; correct the URL, which must "
            f"include the path of [api] base_url."
        )
    return EnvironmentNotReadyError(
        f"Expected airflow-provider-statecheck on the api-server at {client.base_url}, found Airflow {airflow} without "
        "it; install it there and restart the api-server with core among its --apps."
    )


OPTIONS_KEY = "storage_options"
"""Key in a connection's extra with the filesystem options, as a JSON object."""

_PROVIDERS = {
    "s3": "apache-airflow-providers-amazon[s3fs]",
    "s3a": "apache-airflow-providers-amazon[s3fs]",
    "gs": "apache-airflow-providers-google",
    "gcs": "apache-airflow-providers-google",
    "abfs": "apache-airflow-providers-microsoft-azure",
    "abfss": "apache-airflow-providers-microsoft-azure",
    "az": "apache-airflow-providers-microsoft-azure",
}
_SCHEME_OF_PROVIDER = {"az": "abfs"}


def open_storage(checkpoint_dir: str, conn_id: str | None = None) -> CheckpointStorage:
    """
    Open the storage of a checkpoint directory.

    :param checkpoint_dir: Local path or fsspec URI.
    :param conn_id: Connection with the credentials, ignored for local paths. By default the filesystem uses the
        credentials of its environment.
    :raises InvalidConfigurationError: if the connection is missing, or its options cannot be passed to another process.
    """
    base = normalise_base(checkpoint_dir)
    if conn_id is None or scheme_of(base) in LOCAL_SCHEMES:
        return CheckpointStorage.open(base)
    options = _options_of(conn_id, scheme_of(base))
    _mask(options)
    return CheckpointStorage.open(base, **options)


def storage_opener(conn_id: str | None = None) -> Callable[[str], CheckpointStorage]:
    """
    Return a function that opens the storage of a checkpoint directory.

    :param conn_id: Connection with the credentials, by default ``[statecheck] storage_conn_id``.
    """
    from airflow.sdk.configuration import conf

    storage_conn_id = conn_id or conf.get(SECTION, "storage_conn_id", fallback=None)
    locations = configured_locations()

    def open_within_locations(base_uri: str) -> CheckpointStorage:
        storage = open_storage(base_uri, storage_conn_id)
        return storage.within(storage.allowed | locations)

    return open_within_locations


def guarded_storage_opener(conn_id: str | None = None, *given: str | None) -> Callable[[str], CheckpointStorage]:
    """
    Return a function that opens storage for a server or for maintenance, which serve all jobs.

    It opens only ``checkpoint_dir``, ``savepoint_dir`` and ``allowed_locations`` of the configuration, whatever tasks
    have registered, and gives up hosts that do not answer.

    :param conn_id: Connection with the credentials, by default ``[statecheck] storage_conn_id``.
    :param given: Further directories or pointers, from the user who runs a command; ``None`` is ignored.
    """
    allowed = guarded_locations(*(normalise_base(each) for each in given if each is not None))
    return _guarded_opener(conn_id, allowed, PATIENCE)


def pointer_storage_opener(conn_id: str | None, *given: str) -> Callable[[str], CheckpointStorage]:
    """
    Return a function that opens storage for a command on a checkpoint or savepoint that its user names.

    The files may be where those of other checkpoints may be, see :func:`configured_locations`, and hosts that do not
    answer are given up; a long call to one that does goes on.

    :param conn_id: Connection with the credentials, by default ``[statecheck] storage_conn_id``.
    :param given: Directories and pointers of the command.
    """
    patience = replace(PATIENCE, is_of_user=True)
    return _guarded_opener(conn_id, configured_locations().around(*map(normalise_base, given)), patience)


def _guarded_opener(
    conn_id: str | None, allowed: AllowedLocations, patience: HostPatience
) -> Callable[[str], CheckpointStorage]:
    from airflow.sdk.configuration import conf

    storage_conn_id = conn_id or conf.get(SECTION, "storage_conn_id", fallback=None)

    def open_guarded(base_uri: str) -> CheckpointStorage:
        # Dots in a local path are resolved, wherever it leads.
        base = patience.call("the directory of the job", partial(normalise_base, base_uri), probe=_no_host)
        places = GuardedPlaces(allowed, patience)
        places.require(base)
        # The clients of some stores connect when they are created.
        storage = places.ask(base, lambda: open_storage(base, storage_conn_id)).guarded(allowed, patience)
        storage.require_answer()
        return storage

    return open_guarded


def _no_host() -> None:
    """Answer for paths that share no host, so that one of them makes none of the others silent."""


def _options_of(conn_id: str, scheme: str) -> dict[str, Any]:
    connection = _connection(conn_id)
    if connection is None:
        raise InvalidConfigurationError(
            f"Expected a connection {conn_id!r} with the credentials of the checkpoint storage, found none; create it."
        )
    options = connection.extra_dejson.get(OPTIONS_KEY)
    if options is None:
        return _provider_options(conn_id, scheme)
    if not isinstance(options, Mapping):
        raise InvalidConfigurationError(
            f"Expected {OPTIONS_KEY} in the extra of connection {conn_id!r} to be a JSON object such as "
            f'{{"key": "…", "secret": "…"}}, found a {type(options).__name__}.'
        )
    return dict(options)


def _provider_options(conn_id: str, scheme: str) -> dict[str, Any]:
    from airflow.sdk.io import get_fs, has_fs

    provider_scheme = _SCHEME_OF_PROVIDER.get(scheme, scheme)
    if not has_fs(provider_scheme):
        raise InvalidConfigurationError(_missing_provider(conn_id, scheme))
    filesystem = get_fs(provider_scheme, conn_id)
    return _portable_options(filesystem, conn_id)


def _missing_provider(conn_id: str, scheme: str) -> str:
    provider = _PROVIDERS.get(scheme)
    install = f"install {provider}, or " if provider else ""
    return (
        f"Expected an Airflow provider that creates a {scheme}:// filesystem from connection {conn_id!r}, found none; "
        f"{install}set {OPTIONS_KEY} in the connection's extra."
    )


def _portable_options(filesystem: Any, conn_id: str) -> dict[str, Any]:
    # Positional arguments are specific to the provider's filesystem class; only keyword options are portable.
    options = {name: value for name, value in filesystem.storage_options.items() if value is not None}
    session = options.pop("session", None)
    if session is not None:
        options |= _credentials_of(filesystem, session)
    for name, value in options.items():
        if not _is_plain(value):
            raise InvalidConfigurationError(
                f"Expected options that can be passed to another process, found a {type(value).__name__} as {name!r} "
                f"in the filesystem of connection {conn_id!r}; set {OPTIONS_KEY} in the connection's extra."
            )
    return options


def _credentials_of(filesystem: Any, session: Any) -> dict[str, Any]:
    from fsspec.asyn import sync

    credentials = sync(filesystem.loop, _frozen_credentials, session)
    region = session.get_config_variable("region")
    options = {"client_kwargs": {"region_name": region}} if region else {}
    if credentials is None:
        return options
    if credentials.token:
        log.warning(
            "The credentials of the checkpoint storage are temporary; checkpoints fail after they expire. For longer "
            "stages, give the machines a role and remove storage_conn_id."
        )
    keys = {"key": credentials.access_key, "secret": credentials.secret_key, "token": credentials.token}
    return options | {name: value for name, value in keys.items() if value}


async def _frozen_credentials(session: Any) -> Any:
    credentials = await session.get_credentials()
    return None if credentials is None else await credentials.get_frozen_credentials()


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(name, str) and _is_plain(item) for name, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, str | int | float | bool)


def _mask(options: Mapping[str, Any]) -> None:
    from airflow.sdk.log import mask_secret

    for secret in secrets_in(options):
        mask_secret(secret)
