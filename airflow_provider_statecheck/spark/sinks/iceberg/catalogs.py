"""Iceberg tables and their catalogs, with credentials hidden."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.schemes import conceal, harmless

_ABSOLUTE = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_DATA_PATH = "write.data.path"


class TableAddress:
    """
    Where a table is.

    :param table: Its name with that of its namespace, such as ``sales.orders``.
    :param catalog: The name of the catalog, ``None`` for the default one of this machine.
    :param properties: What the catalog needs beside what this machine's configuration says; they may be credentials.
    :raises InvalidConfigurationError: if the name has no namespace.
    """

    def __init__(self, table: str, catalog: str | None, properties: Mapping[str, Any] | None) -> None:
        if "." not in table.strip("."):
            raise InvalidConfigurationError(
                f"Expected an Iceberg table with its namespace, such as 'sales.orders', found {table!r}."
            )
        self.table = table
        self.catalog = catalog
        self.properties = HiddenOptions(properties or {})

    def __repr__(self) -> str:
        return f"TableAddress({self.table!r})"


class OpenTable:
    """
    A table that is read from its catalog again and again.

    :param address: Where it is.
    """

    def __init__(self, address: TableAddress) -> None:
        self._address = address
        self._catalog: Any = None
        self.latest: Any = None
        """As it was last read."""

    @property
    def name(self) -> str:
        """The table, fit to be shown."""
        return self._address.table

    def load(self) -> Any:
        """
        Return the table as it is now.

        :raises EnvironmentNotReadyError: if there is none, or pyiceberg is missing.
        :raises StorageError: if the catalog does not answer.
        """
        with self.redacted_failures():
            if self._catalog is None:
                self._catalog = _load_catalog(self._address)
            self.latest = self._catalog.load_table(self._address.table)
        return self.latest

    def close(self) -> None:
        """Let go of the catalog's connections."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def told(self, error: Exception) -> StorageError:
        """Return what a failure was, without credentials."""
        said = conceal(str(error), self._address.properties.reveal()).rstrip(".")
        return StorageError(f"The Iceberg table {self.name} failed: {type(error).__name__}: {said}.")

    @contextmanager
    def redacted_failures(self) -> Iterator[None]:
        """
        Tell failures of a catalog or of its storage as errors of this package.

        :raises EnvironmentNotReadyError: if something is missing.
        :raises StorageError: for all others.
        """
        try:
            yield
        except StateCheckError:
            raise
        except ImportError as error:
            raise _not_installed(self.name, error) from error
        except Exception as error:
            if type(error).__name__ in ("NoSuchTableError", "NoSuchNamespaceError"):
                raise _no_table(self.name) from error
            raise self.told(error) from harmless(error, self._address.properties.reveal())


def portable_metadata(table: Any) -> str:
    """Return as JSON what tasks need to know of a table: its places absolute, and without its history."""
    history: dict[str, Any] = {"snapshots": [], "refs": {}, "snapshot_log": [], "metadata_log": []}
    properties = dict(table.metadata.properties)
    if _DATA_PATH in properties:
        properties[_DATA_PATH] = _absolute(properties[_DATA_PATH])
    places = {"location": _absolute(table.metadata.location), "properties": properties}
    return str(table.metadata.model_copy(update={**history, **places, "current_snapshot_id": None}).model_dump_json())


def _absolute(place: str) -> str:
    # Tasks of Spark, which run elsewhere, would take a relative path for one of their own directories.
    return place if _ABSOLUTE.match(place) else str(Path(place).absolute())


def _load_catalog(address: TableAddress) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(address.catalog, **address.properties.reveal())


def _not_installed(name: str, error: ImportError) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"The Iceberg table {name} needs a package that is not installed ({error}): "
        "pip install 'airflow-provider-statecheck[iceberg]', on the driver and on the executors, and what pyiceberg needs "
        "for the catalog, such as 'pyiceberg[sql-postgres]'."
    )


def _no_table(name: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected the Iceberg table {name} in its catalog, found none; create it with its schema and partitions, or "
        "correct its name."
    )


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
