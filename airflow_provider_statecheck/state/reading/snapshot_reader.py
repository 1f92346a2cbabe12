"""
Reading of DataFrame snapshots without Spark, as batches.

The manifest of a snapshot has the schema in Spark's JSON format, and the files have columns named by position. The
types are those of ``DataFrame.toArrow``; a year-month interval, which Arrow's columns do not have, is a number of
months, and a type that Spark derives from others is the type it is stored as.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import DATA_DIRECTORY
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.progress import NamedSnapshot, describe, describe_scope, named_snapshots
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, SnapshotHandle
from airflow_provider_statecheck.storage.snapshot_manifest import (
    SnapshotManifest,
    column_name,
    read_batches,
    read_verified_manifest,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, parse

_LISTED = 20
"""Number of snapshots that an error lists."""
# Spark marks files whose old dates or timestamps are in the Julian calendar.
_OTHER_CALENDAR = {b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96"}
_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TEXT = re.compile(r"string( collate \w+)?|(var)?char\(\d+\)")
_TIME = re.compile(r"time\(\d+\)")
_DAYS = re.compile(r"interval (day|hour|minute|second)( to \w+)?")
_MONTHS = re.compile(r"interval (year|month)( to \w+)?")
_DATED = re.compile(r'"(date|timestamp)')
_VARIANT = ("value", "metadata")


def read_snapshot(
    pointer: str,
    name: str,
    *,
    scope: str | None = None,
    uid: str | None = None,
    columns: Sequence[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    allowed_locations: Sequence[str] = (),
) -> Any:
    """
    Return a named DataFrame snapshot of a checkpoint as a ``pyarrow.RecordBatchReader``, which reads lazily.

    The files are verified as for a restore before the first row is read, and their pages while they are read. The order
    of rows is that of the files.

    :param pointer: Directory of a checkpoint or savepoint, or its metadata file.
    :param scope: Items of the loops around the snapshot, such as ``days[2026-01-01]``, or ``""`` for none; required if
        the checkpoint has the name in several scopes.
    :param uid: Uid of the stage, required for a savepoint of the whole job.
    :param columns: Names of the columns to read, by default all.
    :param storage_options: Options of the filesystem.
    :param allowed_locations: URIs of further locations that checkpoints may reference, such as ``s3://archive``.
    :raises CheckpointNotFoundError: if the checkpoint or a file of the snapshot is missing.
    :raises UnknownStateError: if the checkpoint has no such snapshot or stage; the message lists those that it has.
    :raises InvalidConfigurationError: if several scopes have the name, for an unknown column, or for several stages and
        no uid.
    :raises UnsupportedStateError: for a column that only Spark reads, also while reading.
    :raises CorruptStateError: if a file of the snapshot was changed, also while reading.
    :raises StorageError: if the storage fails, also while reading.
    """
    states = CheckpointStates.load(pointer, storage_options, allowed_locations).of_stage(uid)
    return SnapshotReader(states.storage, find_snapshot(states.document, name, scope), columns).record_batches()


def find_snapshot(document: CheckpointDocument, name: str, scope: str | None = None) -> NamedSnapshot:
    """
    Return a snapshot of a checkpoint.

    :param scope: Items of the loops around it, or ``""`` for none; by default any.
    :raises UnknownStateError: if there is none; the message lists the snapshots. Also if parts of it are missing.
    :raises InvalidConfigurationError: if several scopes have the name; the message lists them.
    """
    named = [each for each in named_snapshots(document.snapshots) if each.name == name]
    found = [each for each in named if scope in (None, describe_scope(each.scope))]
    if not found:
        raise _unknown(document, name, scope)
    if len(found) > 1:
        scopes = listed_names([repr(describe_scope(each.scope)) for each in found])
        raise InvalidConfigurationError(
            f"Expected the snapshot {name!r} in one scope, found it in {scopes}; set one as the scope."
        )
    if not found[0].is_complete:
        raise UnknownStateError(
            f"Expected all parts of the snapshot {name!r} in checkpoint {document.checkpoint_id} of job "
            f"{document.job_name!r}, found {found[0].parts} of them, because the step was not finished; read it from a "
            "later checkpoint."
        )
    return found[0]


class SnapshotReader:
    """
    Reads the rows of a snapshot.

    Its members raise ``CorruptStateError`` if the snapshot was changed, ``CheckpointNotFoundError`` if its manifest or
    a file is missing, and ``StorageError`` if the storage fails.

    :param columns: Names of the columns to read, by default all.
    """

    def __init__(
        self, storage: CheckpointStorage, snapshot: NamedSnapshot, columns: Sequence[str] | None = None
    ) -> None:
        self.storage = storage
        self._snapshot = snapshot
        self._names = columns

    @cached_property
    def columns(self) -> tuple[DataFrameColumn, ...]:
        """
        The columns that are read; several columns of a DataFrame may have one name.

        :raises InvalidConfigurationError: for an unknown name.
        """
        known = dataframe_columns(next(iter(self._manifests.values())).schema_json)
        if self._names is None:
            return known
        names = [each.name for each in known]
        for name in self._names:
            if name not in names:
                raise InvalidConfigurationError(
                    f"Expected columns of the snapshot {self._snapshot.name!r}, found {name!r}; give some of "
                    f"{', '.join(map(repr, names))}."
                )
        return tuple(each for name in dict.fromkeys(self._names) for each in known if each.name == name)

    @cached_property
    def schema(self) -> Any:
        """
        The Arrow schema of the rows.

        :raises UnsupportedStateError: for a column that only Spark reads.
        """
        return pa.schema([(each.name, each.arrow_type) for each in self.columns])

    def batches(self, wanted: int | None = None) -> Iterator[Any]:
        """
        Yield the rows as record batches.

        :param wanted: Number of rows that the caller is going to read, by default all.
        :raises UnsupportedStateError: if a file has a column that only Spark reads.
        """
        stored = [each.name_in_file for each in self.columns]
        for handle, manifest in self._manifests.items():
            for file in manifest.files:
                uri = f"{handle.uri}/{DATA_DIRECTORY}/{file.name}"
                batches = read_batches(self.storage, uri, file, stored, wanted)
                for batch in _only_arrow(batches, self._snapshot.name):
                    yield self._shown(batch)

    def record_batches(self) -> Any:
        """Return the rows as a ``pyarrow.RecordBatchReader``; raises as :meth:`batches`, also while reading."""
        return pa.RecordBatchReader.from_batches(self.schema, self.batches())

    def _shown(self, batch: Any) -> Any:
        is_of_other_calendar = _OTHER_CALENDAR & set(batch.schema.metadata or ())
        for column in self.columns if is_of_other_calendar else ():
            if column.has_times:
                raise _only_spark_reads(column)
        arrays = [_as_written(batch.column(each.name_in_file), each) for each in self.columns]
        return pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    @cached_property
    def _manifests(self) -> dict[SnapshotHandle, SnapshotManifest]:
        return {handle: read_verified_manifest(self.storage, handle) for handle in self._snapshot.handles}


def _only_arrow(batches: Iterator[Any], name: str) -> Iterator[Any]:
    try:
        yield from batches
    except NotImplementedError as error:
        raise UnsupportedStateError(
            f"Expected types in the snapshot {name!r} that Arrow reads, found another: {error}; read it with "
            f"airflow_provider_statecheck.spark.state_dataframes.read_snapshot."
        ) from error


def _unknown(document: CheckpointDocument, name: str, scope: str | None) -> UnknownStateError:
    inside = f" in the scope {scope!r}" if scope is not None else ""
    found = [describe((each.scope, each.name)) for each in named_snapshots(document.snapshots)]
    return UnknownStateError(
        f"Expected a snapshot {name!r}{inside} in checkpoint {document.checkpoint_id} of job {document.job_name!r}, "
        f"found {listed_names(found) or 'no snapshot'}."
    )


def listed_names(names: Sequence[str]) -> str:
    """Return the first of several names as a text, and how many others there are."""
    more = len(names) - _LISTED
    return ", ".join([*names[:_LISTED], *([f"{more} more"] if more > 0 else [])])


@dataclass(frozen=True, slots=True)
class DataFrameColumn:
    """Column of a DataFrame that a snapshot contains."""

    name: str
    position: int
    type: Any
    """Type in Spark's JSON format."""

    @property
    def name_in_file(self) -> str:
        """The name of the column in the files."""
        return column_name(self.position)

    @property
    def arrow_type(self) -> Any:
        """
        The Arrow type of the column.

        :raises UnsupportedStateError: for a type that only Spark reads.
        """
        found = _arrow_type(self.type)
        if found is None:
            raise _only_spark_reads(self)
        return found

    @property
    def type_name(self) -> str:
        """The Arrow type as text, or Spark's name of a type that only Spark reads."""
        return str(_arrow_type(self.type) or json.dumps(self.type))

    @property
    def has_times(self) -> bool:
        """Whether a part of the column is a date or a timestamp."""
        return _DATED.search(json.dumps(self.type)) is not None


def dataframe_columns(schema_json: str) -> tuple[DataFrameColumn, ...]:
    """
    Return the columns of a schema in Spark's JSON format.

    :raises CorruptStateError: if it is not a schema.
    """
    try:
        fields = parse(schema_json)["fields"]
        return tuple(DataFrameColumn(str(each["name"]), i, each["type"]) for i, each in enumerate(fields))
    except UNDECODABLE as error:
        raise CorruptStateError(
            f"Expected the schema of a snapshot, found {schema_json[:80]!r}; read another checkpoint."
        ) from error


def _as_written(stored: Any, column: DataFrameColumn) -> Any:
    """Return an array that was read from a file in the Arrow type of its column, without a copy."""
    wanted = column.arrow_type
    # A shredded variant has another layout, for example.
    if not _is_stored_as(stored.type, wanted):
        raise _only_spark_reads(column)
    return stored if stored.type == wanted else stored.view(wanted)


def _only_spark_reads(column: DataFrameColumn) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected a column that is readable without Spark, found {column.type_name} in column {column.name!r}; read "
        "the snapshot with airflow_provider_statecheck.spark.state_dataframes.read_snapshot, or other columns of it.",
        column=column.name,
    )


def _arrow_type(kind: Any) -> Any:
    try:
        return _type_of(kind)
    except NotImplementedError:
        return None
    except UNDECODABLE as error:
        raise CorruptStateError(f"Expected a type in Spark's JSON format, found {kind!r:.200}.") from error


def _named_type(name: str) -> Any:
    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    parametric = {_TEXT: pa.string(), _TIME: pa.time64("us"), _DAYS: pa.duration("us"), _MONTHS: pa.int32()}
    plain = {
        "boolean": pa.bool_(),
        "byte": pa.int8(),
        "short": pa.int16(),
        "integer": pa.int32(),
        "long": pa.int64(),
        "float": pa.float32(),
        "double": pa.float64(),
        "decimal": pa.decimal128(10, 0),
        "binary": pa.binary(),
        "date": pa.date32(),
        "timestamp": pa.timestamp("us", "UTC"),
        "timestamp_ntz": pa.timestamp("us"),
        "void": pa.null(),
        "variant": pa.struct([pa.field(name, pa.binary(), nullable=False) for name in _VARIANT]),
    }
    found = next((found for pattern, found in parametric.items() if pattern.fullmatch(name)), plain.get(name))
    if found is None:
        raise NotImplementedError(name)
    return found


def _type_of(kind: Any) -> Any:
    if isinstance(kind, str):
        return _named_type(kind)
    if kind["type"] == "udt":
        return _type_of(kind["sqlType"])
    if kind["type"] == "array":
        return pa.list_(pa.field("element", _type_of(kind["elementType"])))
    if kind["type"] == "struct":
        return pa.struct([pa.field(str(each["name"]), _type_of(each["type"])) for each in kind["fields"]])
    key, value = _type_of(kind["keyType"]), _type_of(kind["valueType"])
    if key == pa.null():
        # The keys of an Arrow map are not null, so their type is not the null type.
        raise NotImplementedError(str(kind))
    return pa.map_(key, value)


def _is_stored_as(stored: Any, wanted: Any) -> bool:
    if pa.types.is_struct(stored) and pa.types.is_struct(wanted):
        return stored.num_fields == wanted.num_fields and all(map(_is_field_as, count(), stored, wanted))
    if pa.types.is_map(stored) and pa.types.is_map(wanted):
        keys = _is_stored_as(stored.key_type, wanted.key_type)
        return keys and _is_stored_as(stored.item_type, wanted.item_type)
    if pa.types.is_list(stored) and pa.types.is_list(wanted):
        return _is_stored_as(stored.value_type, wanted.value_type)
    # Spark's default timestamps and its intervals have no type of their own in Parquet.
    reinterpreted = {pa.timestamp("us", "UTC"): pa.timestamp("us"), pa.duration("us"): pa.int64()}
    return bool(stored == wanted or stored == reinterpreted.get(wanted))


def _is_field_as(position: int, stored: Any, wanted: Any) -> bool:
    # Fields are named by position where their names collide.
    is_named = stored.name in (wanted.name, column_name(position))
    return is_named and _is_stored_as(stored.type, wanted.type)
