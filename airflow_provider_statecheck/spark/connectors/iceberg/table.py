"""Iceberg tables in catalogs, with errors that contain no credentials, and data files as JSON."""

from __future__ import annotations

import base64
import copy
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Self
from uuid import UUID

from airflow_provider_statecheck.exceptions import (
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StateCheckError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import HiddenOptions
from airflow_provider_statecheck.storage.failures import advice, disk_failure
from airflow_provider_statecheck.storage.uris import LOCAL_SCHEMES, conceal, harmless, redact

_ABSOLUTE_LOCATION = re.compile(r"/|[A-Za-z][A-Za-z0-9+.-]*:")
_DATA_PATH = "write.data.path"
_STORAGE_PREFIXES = ("s3.", "adls.", "gcs.", "hdfs.", "hf.", "client.")
_STORAGE_PROPERTIES = frozenset({"py-io-impl", "buffer-size", "DEFAULT_SCHEME", "DEFAULT_NETLOC"})
_SIGNER = "s3.signer"
_NEWEST_VERSION = 2
_COUNTS = ("column_sizes", "value_counts", "null_value_counts", "nan_value_counts")
_BOUNDS = ("lower_bounds", "upper_bounds")
_DECODERS: Mapping[str, Callable[[str], Any]] = {
    "bytes": base64.b64decode,
    "decimal": Decimal,
    "float": float,
    "uuid": UUID,
}


class OpenTable:
    """A table that is loaded repeatedly through one catalog client."""

    def __init__(self, address: TableAddress) -> None:
        self._address = address
        self._catalog: Any = None
        self.latest: Any = None
        """Most recently loaded table."""

    @property
    def name(self) -> str:
        """Identifier of the table for error messages."""
        return self._address.table

    def load(self) -> Any:
        """
        Return the current version of the table.

        :raises EnvironmentNotReadyError: if the table or pyiceberg is missing.
        :raises StorageError: if the catalog fails.
        """
        with self.redacted_failures():
            if self._catalog is None:
                self._catalog = _load_catalog(self._address)
            self.latest = self._catalog.load_table(self._address.table)
            self._require_known_version(self.latest.metadata.format_version)
        return self.latest

    def _require_known_version(self, found: int) -> None:
        # PyIceberg loads tables of version 3, but neither writes them nor knows all their features.
        if found > _NEWEST_VERSION:
            raise UnsupportedStateError(
                f"Expected the Iceberg table {self.name} in format version {_NEWEST_VERSION} at most, found {found}, "
                "whose deletion vectors, default values, row lineage, encryption and types PyIceberg does not "
                f"support; use a table of version {_NEWEST_VERSION}, such as a copy of it."
            )

    def close(self) -> None:
        """Close the connections of the catalog."""
        catalog, self._catalog = self._catalog, None
        if catalog is not None:
            catalog.close()

    def storage_error(self, error: Exception) -> StorageError:
        """Return an error as a :class:`StorageError` without credentials."""
        # PyIceberg's own error about a file that it could not write hides that of the disk, which does not name the
        # file.
        of_disk = disk_failure(error)
        found = of_disk or error
        where = f" at {redact(self.latest.metadata.location)}" if of_disk and self.latest is not None else ""
        reason = conceal(str(found), self._address.properties.reveal()).rstrip(".")
        return StorageError(
            f"The Iceberg table {self.name}{where} failed: {type(found).__name__}: {reason}.{advice(found)}"
        )

    @contextmanager
    def redacted_failures(self) -> Iterator[None]:
        """
        Translate errors of the catalog and its storage to errors of this package.

        :raises EnvironmentNotReadyError: if the table or a package is missing.
        :raises UnsupportedStateError: if the table has a feature that PyIceberg does not know.
        :raises StorageError: for any other error.
        """
        try:
            yield
        except StateCheckError:
            raise
        except ImportError as error:
            raise EnvironmentNotReadyError(
                f"Expected the packages for the Iceberg table {self.name}, found one missing ({error}); pip install "
                "'airflow-provider-statecheck[iceberg]' on the driver and on the executors, and the pyiceberg extra "
                "of the catalog, such as 'pyiceberg[sql-postgres]'."
            ) from error
        except Exception as error:
            if type(error).__name__ in ("NoSuchTableError", "NoSuchNamespaceError"):
                raise EnvironmentNotReadyError(
                    f"Expected the Iceberg table {self.name} in its catalog, found none; create it with its schema and "
                    "partitions, or correct its name."
                ) from error
            if type(error).__name__ == "ValidationError":
                # Pydantic's text goes on with the input and a link.
                reason = " ".join(
                    conceal(str(error), self._address.properties.reveal()).partition(" [type=")[0].split()
                )
                raise UnsupportedStateError(
                    f"Expected an Iceberg table {self.name} whose metadata PyIceberg reads, found: {reason}. "
                    "Install a newer version of pyiceberg, or use a copy of the table without this feature."
                ) from harmless(error, self._address.properties.reveal())
            raise self.storage_error(error) from harmless(error, self._address.properties.reveal())


class TableAddress:
    """
    Address of a table in a catalog.

    :param table: Identifier of the table, such as ``sales.orders``.
    :param catalog: Name of the catalog, ``None`` for the default catalog of pyiceberg.
    :param properties: Properties in addition to the pyiceberg configuration of this machine; may contain credentials.
    :raises InvalidConfigurationError: if the identifier has no namespace.
    """

    def __init__(self, table: str, catalog: str | None, properties: Mapping[str, Any] | None) -> None:
        if "." not in table.strip("."):
            raise InvalidConfigurationError(
                f"Expected an Iceberg table with its namespace, such as 'sales.orders', found {table!r}; add the "
                "namespace."
            )
        self.table = table
        self.catalog = catalog
        self.properties = HiddenOptions(properties or {})

    def __repr__(self) -> str:
        return f"TableAddress({self.table!r})"

    @property
    def shown_catalog(self) -> str:
        """Name and URI of the catalog as far as they are given, without credentials."""
        uri = redact(str(self.properties.reveal().get("uri", "")))
        return " at ".join(filter(None, (self.catalog, uri)))

    def of_table(self, table: str) -> TableAddress:
        """Return the address of another table of the catalog."""
        return TableAddress(table, self.catalog, self.properties.reveal())


@dataclass(frozen=True, slots=True)
class TaskTable:
    """Properties of a table that a Spark task needs to read or write its files."""

    shown: str
    metadata: str
    """Table metadata as JSON, with absolute locations and without history."""
    io: HiddenOptions
    """Properties of the table's storage; may contain credentials."""

    @classmethod
    def of(cls, table: Any, shown: str) -> Self:
        """
        Return the properties of a loaded table.

        :raises UnsupportedStateError: if the catalog must sign each request, which tasks cannot do.
        """
        return cls(shown, _portable_metadata(table), _storage_properties_of(table, shown))

    def open(self) -> tuple[Any, Any]:
        """Return the metadata and the file IO of the table."""
        from pyiceberg.io import load_file_io
        from pyiceberg.table.metadata import TableMetadataUtil

        metadata = TableMetadataUtil.parse_raw(self.metadata)
        return metadata, load_file_io(self.io.reveal(), metadata.location)


def _portable_metadata(table: Any) -> str:
    history: dict[str, Any] = {"snapshots": [], "refs": {}, "snapshot_log": [], "metadata_log": []}
    properties = dict(table.metadata.properties)
    if _DATA_PATH in properties:
        properties[_DATA_PATH] = _absolute_location(properties[_DATA_PATH])
    locations = {"location": _absolute_location(table.metadata.location), "properties": properties}
    return str(
        table.metadata.model_copy(update={**history, **locations, "current_snapshot_id": None}).model_dump_json()
    )


def _storage_properties_of(table: Any, shown: str) -> HiddenOptions:
    found = table.io.properties
    # PyArrow's filesystems ignore a signer.
    if found.get(_SIGNER) and type(table.io).__name__ != "PyArrowFileIO":
        raise UnsupportedStateError(
            f"Expected credentials for the storage of the Iceberg table {shown}, found a catalog that signs each "
            "request (s3.signer), which tasks cannot use; configure vended credentials (the property "
            "header.X-Iceberg-Access-Delegation = vended-credentials), or set the credentials of the storage as "
            "properties."
        )
    return HiddenOptions({name: value for name, value in found.items() if _is_storage_property(name)})


def _absolute_location(location: str) -> str:
    # Spark tasks would resolve a relative path in their own working directory.
    return location if _ABSOLUTE_LOCATION.match(location) else str(Path(location).absolute())


@contextmanager
def files_of_success(table: Any) -> Iterator[Any]:
    """
    Give a copy of a table, and delete the files that were begun with it if the block fails.

    :param table: Loaded table.
    """
    begun: list[str] = []
    copied = copy.copy(table)
    copied.io = copy.copy(table.io)

    def new_output(location: str) -> Any:
        begun.append(location)
        return table.io.new_output(location)

    copied.io.new_output = new_output
    try:
        yield copied
    except BaseException:
        delete_files(table, begun)
        raise


def delete_files(table: Any, locations: Iterable[str]) -> None:
    """Delete files of a table that no snapshot needs, as far as its storage allows it."""
    for location in locations:
        with suppress(Exception):  # an orphan file
            table.io.delete(location)


def _load_catalog(address: TableAddress) -> Any:
    from pyiceberg.catalog import load_catalog

    return load_catalog(address.catalog, **address.properties.reveal())


def _is_storage_property(name: str) -> bool:
    return name in _STORAGE_PROPERTIES or (name.startswith(_STORAGE_PREFIXES) and not name.startswith(_SIGNER))


def data_location(metadata: Any) -> str:
    """Return the location of the data files of a table."""
    return str(metadata.properties.get(_DATA_PATH) or metadata.location)


def is_local_location(path: str) -> bool:
    """Return whether a location of a table is on a local disk."""
    scheme, separator, _ = path.partition("://")
    return not separator or scheme in LOCAL_SCHEMES


def required_fields(schema: Any) -> tuple[str, ...]:
    """Return the columns of an Iceberg schema that cannot be null."""
    return tuple(field.name for field in schema.fields if field.required)


def encode_data_file(file: Any, *, with_metrics: bool = True) -> dict[str, Any]:
    """
    Return a data file, or a position delete file, as JSON.

    :param with_metrics: Whether to include the column metrics that queries use to skip files.
    """
    document: dict[str, Any] = {
        "content": int(file.content),
        "path": file.file_path,
        "format": file.file_format.value,
        "rows": file.record_count,
        "bytes": file.file_size_in_bytes,
        "spec": file.spec_id,
        "partition": [_encode_value(file.partition[i]) for i in range(len(file.partition))],
    }
    if with_metrics:
        document |= {name: _encode_pairs(getattr(file, name)) for name in _COUNTS}
        document |= {name: _encode_pairs(getattr(file, name), _encode_bytes) for name in _BOUNDS}
        document["split_offsets"] = file.split_offsets
    return document


def decode_data_file(document: Mapping[str, Any]) -> Any:
    """Return the data file that :func:`encode_data_file` encoded."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    metrics: dict[str, Any] = {name: _decode_pairs(document.get(name)) for name in _COUNTS}
    metrics |= {name: _decode_pairs(document.get(name), base64.b64decode) for name in _BOUNDS}
    found = DataFile.from_args(
        content=DataFileContent(document["content"]),
        file_path=str(document["path"]),
        file_format=FileFormat(document["format"]),
        partition=Record(*(_decode_value(value) for value in document["partition"])),
        record_count=int(document["rows"]),
        file_size_in_bytes=int(document["bytes"]),
        key_metadata=None,
        split_offsets=document.get("split_offsets"),
        equality_ids=None,
        sort_order_id=None,
        **metrics,
    )
    found.spec_id = int(document["spec"])
    return found


def _encode_pairs(values: Mapping[int, Any] | None, encode: Any = int) -> list[list[Any]] | None:
    return None if values is None else [[int(key), encode(value)] for key, value in sorted(values.items())]


def _decode_pairs(pairs: Any, decode: Any = int) -> dict[int, Any] | None:
    return None if pairs is None else {int(key): decode(value) for key, value in pairs}


def _encode_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return {"bytes": _encode_bytes(value)}
    if isinstance(value, Decimal):
        return {"decimal": str(value)}
    if isinstance(value, float) and not math.isfinite(value):
        return {"float": str(value)}  # JSON has no such numbers
    if isinstance(value, UUID):
        return {"uuid": str(value)}
    return value


def _decode_value(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, text),) = value.items()
    return _DECODERS[kind](text)


def _encode_bytes(value: bytes) -> str:
    return base64.b64encode(value).decode()
