"""
Data files of a Delta table at a version and since, and the types of its columns.

The rows of a supported table are exactly those of its Parquet files; :class:`PlainTable` rejects other tables.
The name of a file as an item includes the partition values, because log entries may be deleted before the item is read.
"""

from __future__ import annotations

import datetime
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import unquote

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa, pc
from airflow_provider_statecheck.spark.connectors.delta.table import (
    Action,
    DeltaLog,
    DeltaSnapshot,
    LogEntry,
    deltalake,
)
from airflow_provider_statecheck.spark.tables.column_types import spark_name
from airflow_provider_statecheck.spark.tables.partition_directories import (
    PartitionValues,
    partition_path,
    partition_values,
)
from airflow_provider_statecheck.state.source_items import Item
from airflow_provider_statecheck.storage.file_operations import in_parallel
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.stored_json import decoding
from airflow_provider_statecheck.storage.uris import redact

_READER_FEATURES = frozenset(
    {
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "vacuumProtocolCheck",
        "variantType",
        "variantType-preview",
    }
)
"""Table features that a reader of plain files supports, or whose use is checked separately."""

_ZONE = re.compile(r"(Z|[+-]\d{2}:\d{2})$")

# Number of log entries that are read, and held in memory, at a time.
VERSIONS_PER_READ = 64


@dataclass(frozen=True, slots=True)
class Position:
    """Version of a table up to which its files were listed, with the schema at that version."""

    version: int
    table_id: str
    schema: str
    """Schema as JSON, in the format of Spark and of the Delta log."""
    partition_by: tuple[str, ...]

    def encode(self) -> dict[str, Any]:
        """Return the position as plain values."""
        return dict(encode(self))

    @classmethod
    def decode(cls, document: Mapping[str, Any]) -> Position:
        """
        Decode a position.

        :raises CorruptStateError: if the values are invalid.
        """
        with decoding("the position in a Delta table"):
            return decode(cls, document)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a Delta table."""

    path: str
    """Path relative to the table."""
    size_bytes: int
    values: PartitionValues
    """Values of the partition columns, in the order of the columns."""

    @property
    def item(self) -> Item:
        """The file as an item, whose name contains the path and the partition values."""
        return Item.of(f"{self.path}#{partition_path(self.values)}", self.size_bytes, "")

    @classmethod
    def of(cls, item: Item) -> DataFile:
        """Create a file from its item."""
        path, _, encoded = item.name.rpartition("#")
        return cls(path, item.size_bytes, partition_values("", f"{encoded}/"))


@dataclass(slots=True)
class Additions:
    """Files that a range of table versions added."""

    files: dict[str, DataFile] = field(default_factory=dict)
    changing: list[int] = field(default_factory=list)
    """Versions that changed or removed earlier rows; their files are not included."""
    missing: int | None = None
    """First version whose log entry has been deleted."""


class PlainTable:
    """
    A Delta table whose rows are exactly those of its Parquet files.

    :raises UnsupportedStateError: if the table uses a feature such as deletion vectors or column mapping.
    """

    def __init__(self, storage: CheckpointStorage, snapshot: DeltaSnapshot) -> None:
        self._log = DeltaLog(storage)
        self._snapshot = snapshot
        self.shown = redact(storage.base_uri)
        unsupported = list(_unsupported_features(snapshot))
        if unsupported:
            raise self._not_plain(", ".join(unsupported))

    def position(self) -> Position:
        """Return the position at the version of the snapshot."""
        found = self._snapshot
        return Position(found.version, found.table_id, str(found.handle.schema().to_json()), found.partition_by)

    def files(self) -> tuple[DataFile, ...]:
        """Return all files, oldest first."""
        actions = pa.table(self._snapshot.handle.get_add_actions())
        columns = self._snapshot.partition_by
        values = _partition_texts(actions.column("partition"), columns) if columns else [{}] * actions.num_rows
        paths = [self._relative_path(unquote(path)) for path in actions.column("path").to_pylist()]
        sizes, times = actions.column("size_bytes").to_pylist(), actions.column("modification_time").to_pylist()
        found = [DataFile(*each) for each in zip(paths, sizes, values, strict=True)]
        # File names are random; users expect increments in the order in which the rows were written.
        oldest_first = sorted(zip(times, found, strict=True), key=lambda pair: (pair[0], pair[1].path))
        return tuple(file for _, file in oldest_first if file.size_bytes)

    def additions(self, first: int) -> Additions:
        """
        Return the files that versions from ``first`` on have added.

        :raises UnsupportedStateError: if a version has added deletion vectors, or files of another table.
        """
        found = Additions()
        last, columns = self._snapshot.version, _partition_columns(self._snapshot)
        for start in range(first, last + 1, VERSIONS_PER_READ):
            versions = range(start, min(start + VERSIONS_PER_READ, last + 1))
            entries = in_parallel(self._log.entry, versions, is_local=self._log.storage.is_local)
            for version, entry in zip(versions, entries, strict=True):
                if entry is None:
                    found.missing = version
                    return found
                self._add_entry(found, entry, columns)
        return found

    def _add_entry(self, found: Additions, entry: LogEntry, columns: Mapping[str, bool]) -> None:
        added = {path: action for path, action in entry.added.items() if action.get("dataChange", True)}
        removed = {path for path, action in entry.removed.items() if action.get("dataChange", True)}
        if removed - set(found.files):
            found.changing.append(entry.version)
            return
        for path in removed:
            del found.files[path]
        found.files.update(sorted(self._data_files(added, columns)))

    def _data_files(self, added: Mapping[str, Action], columns: Mapping[str, bool]) -> Iterator[tuple[str, DataFile]]:
        for path, action in added.items():
            if action.get("deletionVector"):
                raise self._not_plain("deletion vectors")
            texts = action["partitionValues"]
            values = {
                name: _with_zone(texts.get(name) or None, is_instant=instant) for name, instant in columns.items()
            }
            if int(action["size"]):
                yield path, DataFile(self._relative_path(path), int(action["size"]), values)

    def _relative_path(self, path: str) -> str:
        if "://" in path or path.startswith("/"):
            raise self._not_plain(f"a file of another table, {redact(path)}, as shallow clones have")
        return path

    def _not_plain(self, found: str) -> UnsupportedStateError:
        return UnsupportedStateError(
            f"Expected the rows of the Delta table {self.shown} to be exactly those of its Parquet files, found "
            f"{found}; rewrite the table without it (REORG TABLE ... APPLY (PURGE) removes deletion vectors), or read "
            "a copy of the table."
        )


def _unsupported_features(snapshot: DeltaSnapshot) -> Iterator[str]:
    features = snapshot.handle.protocol().reader_features or ()
    yield from (f"the table feature {name}" for name in features if name not in _READER_FEATURES)
    if snapshot.handle.metadata().configuration.get("delta.columnMapping.mode", "none") != "none":
        yield "column mapping"
    schema = snapshot.handle.schema().to_json()
    yield from (f"columns of type {kind}" for kind in ("variant", "void") if f'"{kind}"' in schema)
    if "deletionVectors" in features and _has_deletion_vectors(snapshot):
        yield "deletion vectors"


def _partition_columns(snapshot: DeltaSnapshot) -> dict[str, bool]:
    """Return the partition columns, each with whether its values are instants."""
    kinds = {name: snapshot.schema.field(name).type for name in snapshot.partition_by}
    return {name: bool(pa.types.is_timestamp(kind) and kind.tz) for name, kind in kinds.items()}


def _with_zone(text: str | None, *, is_instant: bool) -> str | None:
    # The first run gets its values from deltalake, which uses UTC; Spark would use the time zone of the session.
    return f"{text}Z" if text and is_instant and not _ZONE.search(text) else text


def _has_deletion_vectors(snapshot: DeltaSnapshot) -> bool:
    try:
        return bool(pa.table(snapshot.handle.deletion_vectors()).num_rows)
    except deltalake().exceptions.DeltaError:
        # The vectors themselves are read, and one of them is missing or damaged.
        return True


def _partition_texts(partitions: Any, columns: tuple[str, ...]) -> list[dict[str, str | None]]:
    texts = {name: pc.struct_field(partitions, [name]).cast(pa.string()).to_pylist() for name in columns}
    return [dict(zip(columns, values, strict=True)) for values in zip(*texts.values(), strict=True)]


_UTC = frozenset({"UTC", "Etc/UTC", "+00:00", "Z"})
_BOUNDED = frozenset({"INT", "STRING", "DATE"})
"""Logical types of Parquet whose columns have bounds in the log."""
# The length of string statistics that other Delta writers use.
_MAX_STRING_LENGTH = 32


def file_schema(schema: Any) -> Any:
    """
    Return the Arrow schema of data files for an output schema, with types that Delta supports.

    :raises UnsupportedStateError: if a column has an unsupported type, or names are duplicate.
    """
    lower = [name.lower() for name in schema.names]
    repeated = sorted({name for name in schema.names if lower.count(name.lower()) > 1})
    if repeated or not lower:
        raise UnsupportedStateError(
            f"Expected columns with different names for a Delta table, regardless of case, found {repeated or 'none'}; "
            "rename them."
        )
    return pa.schema([pa.field(field.name, _delta_type(field.name, field.type), field.nullable) for field in schema])


def stored_schema(schema: Any) -> Any:
    """Return an Arrow schema as a Delta table returns it after storing it."""
    return pa.schema(deltalake().Schema.from_arrow(file_schema(schema)).to_arrow())


def new_columns(table: Any, ours: Any) -> list[str]:
    """Return the columns that the table lacks."""
    return [name for name in ours.names if table.get_field_index(name) < 0]


def zoneless_maps(columns: Any, features: Collection[str]) -> list[str]:
    """
    Return the columns that no reader of the table could read if deltalake added them.

    deltalake declares the feature for times without a time zone, which readers require, except for times in maps.

    :param columns: Arrow schema of the columns to add.
    :param features: Table features that the table declares.
    """
    in_maps = {field.name: _zoneless(field.type) for field in columns}
    if "timestampNtz" in features or False in {each for found in in_maps.values() for each in found}:
        return []
    return [name for name, found in in_maps.items() if found]


def _zoneless(kind: Any, *, is_in_map: bool = False) -> set[bool]:
    """Return for the times without a time zone in a type whether they are in maps."""
    if pa.types.is_timestamp(kind):
        return set() if kind.tz else {is_in_map}
    if not pa.types.is_nested(kind):
        return set()
    parts = (kind.field(position).type for position in range(kind.num_fields))
    return {each for part in parts for each in _zoneless(part, is_in_map=is_in_map or pa.types.is_map(kind))}


def statistics_of(metadata: Any) -> str:
    """
    Return the statistics of a Parquet file in the format of the transaction log.

    Only integers, strings and dates have bounds; readers differ in the order of other types.

    :param metadata: Result of ``pyarrow.parquet.read_metadata``.
    """
    columns = [_column_statistics(metadata, index) for index in range(metadata.num_columns)]
    plain = [column for column in columns if column is not None]
    return json.dumps(
        {
            "numRecords": metadata.num_rows,
            "minValues": {name: low for name, low, _, _ in plain if low is not None},
            "maxValues": {name: high for name, _, high, _ in plain if high is not None},
            "nullCount": {name: nulls for name, _, _, nulls in plain},
        },
        ensure_ascii=False,
    )


def _column_statistics(metadata: Any, index: int) -> tuple[str, Any, Any, int] | None:
    column = metadata.schema.column(index)
    groups = [metadata.row_group(number).column(index).statistics for number in range(metadata.num_row_groups)]
    # Writers count the values of nested columns differently.
    if (
        column.path != column.name
        or column.max_repetition_level
        or any(s is None or not s.has_null_count for s in groups)
    ):
        return None
    nulls = sum(statistics.null_count for statistics in groups)
    filled = [statistics for statistics in groups if statistics.num_values]
    if not _has_bounds(column) or any(not statistics.has_min_max for statistics in filled):
        return column.name, None, None, nulls
    lowest = min((s.min for s in filled), default=None)
    highest = max((s.max for s in filled), default=None)
    return column.name, _bound(lowest), _bound(highest, is_upper=True), nulls


def _has_bounds(column: Any) -> bool:
    # Bounds of other types are not decoded: Python has no times of all years that Spark has.
    kind = column.logical_type.type
    return kind in _BOUNDED or (kind == "NONE" and column.physical_type in ("INT32", "INT64"))


def _bound(value: Any, *, is_upper: bool = False) -> Any:
    if isinstance(value, str):
        shown = value[:_MAX_STRING_LENGTH]
        # A truncated string would be less than the maximum.
        return None if is_upper and shown != value else shown
    return value.isoformat() if isinstance(value, datetime.date) else value


def _delta_type(name: str, kind: Any) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _delta_type(name, kind.value_type)
    if types.is_large_string(kind) or types.is_string_view(kind) or types.is_string(kind):
        return pa.string()
    if types.is_binary(kind) or types.is_large_binary(kind) or types.is_binary_view(kind):
        return pa.binary()
    if types.is_timestamp(kind):
        return _timestamp_type(name, kind)
    if types.is_nested(kind):
        return _nested_type(name, kind)
    plain = (types.is_signed_integer, types.is_float32, types.is_float64, types.is_boolean, types.is_date32)
    if any(test(kind) for test in plain) or types.is_decimal128(kind):
        return kind
    raise _unsupported_error(name, kind)


def _timestamp_type(name: str, kind: Any) -> Any:
    if kind.unit == "ns" or kind.tz not in (None, *_UTC):
        raise _unsupported_error(name, kind)
    return pa.timestamp("us", "UTC" if kind.tz else None)


def _nested_type(name: str, kind: Any) -> Any:
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(f.name, _delta_type(f"{name}.{f.name}", f.type), f.nullable) for f in kind])
    if pa.types.is_map(kind):
        item = pa.field("value", _delta_type(f"{name}.value", kind.item_type), kind.item_field.nullable)
        return pa.map_(pa.field("key", _delta_type(f"{name}.key", kind.key_type), nullable=False), item)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = kind.value_field
        return pa.list_(pa.field("element", _delta_type(f"{name}.element", element.type), element.nullable))
    raise _unsupported_error(name, kind)


def _unsupported_error(name: str, kind: Any) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Expected a type of Delta tables for the column {name!r}, found {spark_name(kind)}; convert it in the stage "
        "to an integer, a float, a decimal, a string, binary, a boolean, a date, a timestamp in microseconds, or a "
        "list, a map or a struct of these."
    )
