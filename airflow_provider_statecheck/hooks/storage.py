"""Checkpoint storage with the credentials of an Airflow connection."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from airflow_provider_statecheck.configuration import SECTION, configured_locations
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import secrets_in
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, scheme_of

OPTIONS_KEY = "storage_options"
"""Key in a connection's extra with the filesystem options, as a JSON object."""

log = logging.getLogger(__name__)

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
    :raises InvalidConfigurationError: The connection is missing, or its options cannot be passed to another process.
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


def _options_of(conn_id: str, scheme: str) -> dict[str, Any]:
    options = _connection(conn_id).extra_dejson.get(OPTIONS_KEY)
    if options is None:
        return _provider_options(conn_id, scheme)
    if not isinstance(options, Mapping):
        raise InvalidConfigurationError(
            f"Expected {OPTIONS_KEY} in the extra of connection {conn_id!r} to be a JSON object such as "
            f'{{"key": "…", "secret": "…"}}, found a {type(options).__name__}.'
        )
    return dict(options)


def _connection(conn_id: str) -> Any:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidConfigurationError(
            f"Expected a connection {conn_id!r} with the credentials of the checkpoint storage, found none; create it."
        ) from error


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
                f"Expected options that can be passed to another process, found a {type(value).__name__} as {name!r} in "
                f"the filesystem of connection {conn_id!r}; set {OPTIONS_KEY} in the connection's extra."
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
