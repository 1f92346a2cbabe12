"""Opens checkpoint storage with the credentials of an Airflow connection."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import secrets_in
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, normalise_base, scheme_of

OPTIONS_KEY = "storage_options"
"""The key of a connection's extra that holds the options of the filesystem, as a JSON object."""

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
    Open a checkpoint directory.

    :param checkpoint_dir: A path or any fsspec URI.
    :param conn_id: Connection with the credentials. Without it the filesystem finds its own, as its package says; files
        of this machine need none.
    :raises InvalidConfigurationError: if the connection is missing, or has no options that another process could use.
    """
    base = normalise_base(checkpoint_dir)
    if conn_id is None or scheme_of(base) in LOCAL_SCHEMES:
        return CheckpointStorage.open(base)
    options = _options_of(conn_id, scheme_of(base))
    _mask(options)
    return CheckpointStorage.open(base, **options)


def _options_of(conn_id: str, scheme: str) -> dict[str, Any]:
    given = _connection(conn_id).extra_dejson.get(OPTIONS_KEY)
    if given is None:
        return _options_of_airflow(conn_id, scheme)
    if not isinstance(given, Mapping):
        raise InvalidConfigurationError(
            f"Expected {OPTIONS_KEY} in the extra of connection {conn_id!r} to be a JSON object such as "
            f'{{"key": "…", "secret": "…"}}, found a {type(given).__name__}.'
        )
    return dict(given)


def _connection(conn_id: str) -> Any:
    from airflow.sdk import BaseHook
    from airflow.sdk.exceptions import AirflowNotFoundException

    try:
        return BaseHook.get_connection(conn_id)
    except AirflowNotFoundException as error:
        raise InvalidConfigurationError(
            f"Expected a connection {conn_id!r} with the credentials of the checkpoint storage, found none; create it."
        ) from error


def _options_of_airflow(conn_id: str, scheme: str) -> dict[str, Any]:
    from airflow.sdk.io import get_fs, has_fs

    known = _SCHEME_OF_PROVIDER.get(scheme, scheme)
    if not has_fs(known):
        raise InvalidConfigurationError(_no_provider(conn_id, scheme))
    filesystem = get_fs(known, conn_id)
    return _portable(filesystem, conn_id)


def _no_provider(conn_id: str, scheme: str) -> str:
    provider = _PROVIDERS.get(scheme)
    install = f"install {provider}, or " if provider else ""
    return (
        f"Expected Airflow to make a filesystem for {scheme}:// out of connection {conn_id!r}, found no provider that does; "
        f"{install}put {OPTIONS_KEY} into the connection's extra."
    )


def _portable(filesystem: Any, conn_id: str) -> dict[str, Any]:
    # Only named ones: what the provider gives by position is for its own class.
    options = {name: value for name, value in filesystem.storage_options.items() if value is not None}
    session = options.pop("session", None)
    if session is not None:
        options |= _credentials_of(filesystem, session)
    for name, value in options.items():
        if not _is_plain(value):
            raise InvalidConfigurationError(
                f"Expected options that another process can use too, found a {type(value).__name__} as {name!r} in the "
                f"filesystem of connection {conn_id!r}; put {OPTIONS_KEY} into the connection's extra."
            )
    return options


def _credentials_of(filesystem: Any, session: Any) -> dict[str, Any]:
    from fsspec.asyn import sync

    found = sync(filesystem.loop, _frozen_credentials, session)
    region = session.get_config_variable("region")
    options = {"client_kwargs": {"region_name": region}} if region else {}
    if found is None:
        return options
    if found.token:
        log.warning(
            "The credentials of the checkpoint storage are temporary; when they end, no checkpoint succeeds any more. For "
            "stages that outlast them let the machines have a role of their own, and give no storage_conn_id."
        )
    named = {"key": found.access_key, "secret": found.secret_key, "token": found.token}
    return options | {name: value for name, value in named.items() if value}


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
