"""What of a table's properties its storage needs: tasks get these, and nothing of the catalog."""

from __future__ import annotations

from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.executor_files import HiddenOptions

_PREFIXES = ("s3.", "adls.", "gcs.", "hdfs.", "hf.", "client.")
_NAMES = frozenset({"py-io-impl", "buffer-size", "DEFAULT_SCHEME", "DEFAULT_NETLOC"})
_SIGNER = "s3.signer"


def storage_properties_of(table: Any, shown: str) -> HiddenOptions:
    """
    Return how tasks reach the storage of a table that was loaded.

    :raises UnsupportedStateError: if each request has to be signed by the catalog, which tasks do not know.
    """
    found = table.io.properties
    # PyArrow's filesystems pass over a signer.
    if found.get(_SIGNER) and type(table.io).__name__ != "PyArrowFileIO":
        raise UnsupportedStateError(
            f"Expected credentials for the storage of the Iceberg table {shown}, found a catalog that signs each request "
            "(s3.signer), and tasks do not know the catalog; let it lend credentials (the property "
            "header.X-Iceberg-Access-Delegation = vended-credentials), or give those of the storage as properties."
        )
    return HiddenOptions({name: value for name, value in found.items() if _is_of_storage(name)})


def _is_of_storage(name: str) -> bool:
    return name in _NAMES or (name.startswith(_PREFIXES) and not name.startswith(_SIGNER))
