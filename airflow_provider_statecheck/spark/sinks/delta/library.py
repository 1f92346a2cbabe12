"""The package that speaks the protocol of Delta tables, and what it must be told."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError
from airflow_provider_statecheck.storage.uris import scheme_of

_UNSAFE_RENAME = "aws_s3_allow_unsafe_rename"
_OF_S3 = {
    "key": "AWS_ACCESS_KEY_ID",
    "secret": "AWS_SECRET_ACCESS_KEY",
    "token": "AWS_SESSION_TOKEN",
    "endpoint_url": "AWS_ENDPOINT_URL",
    "region_name": "AWS_REGION",
}
_OF_GCS = {"token": "GOOGLE_SERVICE_ACCOUNT"}
_OF_AZURE = {
    "account_name": "AZURE_STORAGE_ACCOUNT_NAME",
    "account_key": "AZURE_STORAGE_ACCOUNT_KEY",
    "sas_token": "AZURE_STORAGE_SAS_TOKEN",
    "client_id": "AZURE_STORAGE_CLIENT_ID",
    "client_secret": "AZURE_STORAGE_CLIENT_SECRET",
    "tenant_id": "AZURE_STORAGE_TENANT_ID",
}
_NAMES = {"s3": _OF_S3, "s3a": _OF_S3, "gs": _OF_GCS, "gcs": _OF_GCS} | dict.fromkeys(
    ("abfs", "abfss", "az"), _OF_AZURE
)


def deltalake() -> Any:
    """
    Return the package.

    :raises EnvironmentNotReadyError: if it is not installed.
    """
    try:
        import deltalake
    except ImportError as error:
        raise EnvironmentNotReadyError(
            "Expected the package deltalake for Delta tables, found none; install it where the driver of Spark runs: "
            "pip install 'airflow-provider-statecheck[delta]'."
        ) from error
    return deltalake


def library_options(uri: str, options: Mapping[str, Any]) -> dict[str, str]:
    """
    Return the options of a filesystem as deltalake names them.

    What it has no name for is left out: it finds credentials in the environment by itself.
    """
    names = _NAMES.get(scheme_of(uri), {})
    flat = (
        {**options, **options.get("client_kwargs", {})} if isinstance(options.get("client_kwargs"), dict) else options
    )
    found = {names[name]: str(value) for name, value in flat.items() if name in names and isinstance(value, str)}
    if found.get("AWS_ENDPOINT_URL", "").startswith("http://"):
        found["AWS_ALLOW_HTTP"] = "true"
    if options.get("anon") is True and names is _OF_S3:
        found["AWS_SKIP_SIGNATURE"] = "true"
    return found


def require_safe_commits(options: Mapping[str, Any]) -> None:
    """
    Refuse a setting by which two writers may both believe that they made the same version of a table.

    :raises InvalidConfigurationError: if it is set.
    """
    values = {name.lower(): value for name, value in (*os.environ.items(), *options.items())}
    found = values.get(_UNSAFE_RENAME, values.get(_UNSAFE_RENAME.removeprefix("aws_s3_"), "false"))
    if str(found).lower() in ("true", "1", "yes", "on", "y", "t"):
        raise InvalidConfigurationError(
            f"Expected commits that only one writer can win, found {_UNSAFE_RENAME.upper()}, with which two writers overwrite "
            "each other's; remove it."
        )
