"""
Columns of states and of DataFrame snapshots as shown to users.

The manifest of a DataFrame snapshot has the schema in Spark's JSON format, and the files have columns named by position. The types are those of
``DataFrame.toArrow``; a year-month interval, which Arrow's columns do not have, is a number of months, and a type that
Spark derives from others is the type it is stored as.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, NAMESPACE, USER_KEY, VALUE, StateLayout, single
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import unexpired
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements
from airflow_provider_statecheck.storage.snapshot_manifest import column_name

MAP_KEY, MAP_VALUE = "map_key", "map_value"
LAST_ACCESS, EXPIRES_AT = "last_access", "expires_at"
CHANGE, BEFORE, AFTER = "change", "before", "after"
_RESERVED = frozenset({KEY_GROUP, EXPIRES_AT, NAMESPACE, MAP_KEY, MAP_VALUE, VALUE, LAST_ACCESS, CHANGE, BEFORE, AFTER})


@dataclass(frozen=True)
class StateColumns:
    """
    User-facing columns of a state, named like the columns of its key.

    :param keys: Serializer of the keys.
    :param state: State with its serializers.
    :param with_times: Adds the column ``last_access`` to a state that expires.
    :param namespaces: Includes rows of all namespaces and adds the column ``namespace``.
    """

    keys: KeySerializer
    state: RegisteredState
    with_times: bool = False
    namespaces: bool = False

    @cached_property
    def key_names(self) -> tuple[str, ...]:
        """Return the names of the key columns."""
        return key_column_names([field.name for field in self.keys.fields])

    @property
    def value_name(self) -> str:
        """Return the name of the value column."""
        return MAP_VALUE if self.state.is_map else VALUE

    @cached_property
    def layout(self) -> StateLayout:
        """Return the column layout of the state backend."""
        user_keys = self.state.key_serializer
        return StateLayout.of(
            self.keys, self.state.cell_serializer.arrow_type, None if user_keys is None else user_keys.arrow_type
        )

    @cached_property
    def schema(self) -> Any:
        """Return the Arrow schema of the columns."""
        import pyarrow as pa

        fields = [*zip(self.key_names, self.keys.arrow_types, strict=True)]
        fields += [(NAMESPACE, pa.string())] if self.namespaces else []
        if self.state.key_serializer is not None:
            fields.append((MAP_KEY, self.state.key_serializer.arrow_type))
        return pa.schema([*fields, (self.value_name, self._value_type), *self._time_field()])

    def shown(self, table: Any, now_ms: int) -> Any:
        """
        Convert rows of the state backend to these columns, without expired rows.

        :param table: Rows in the layout of the backend.
        :param now_ms: Time in milliseconds since the epoch by which expiry is decided.
        :raises UnsupportedStateError: if a row has a namespace and ``namespaces`` is false.
        """
        if not self.namespaces:
            _require_no_namespace(table, self.state.name)
        return self.named(self._unexpired(table, now_ms))

    def named(self, table: Any) -> Any:
        """Return rows of the state backend in these columns."""
        import pyarrow as pa

        found = [single(table.column(name)) for name in self.layout.key_names]
        found += [_namespaces_of(table)] if self.namespaces else []
        found += [single(table.column(USER_KEY))] if self.state.is_map else []
        return pa.Table.from_arrays([*found, *self._cells(single(table.column(VALUE)))], schema=self.schema)

    @property
    def _value_type(self) -> Any:
        import pyarrow as pa

        value = self.state.serializer.arrow_type
        return pa.list_(value) if self.state.kind is StateKind.LIST else value

    def _time_field(self) -> list[tuple[str, Any]]:
        import pyarrow as pa

        if not self.with_times or self.state.ttl is None:
            return []
        time = pa.timestamp("us", "UTC")
        return [(LAST_ACCESS, pa.list_(time) if self.state.kind is StateKind.LIST else time)]

    def _unexpired(self, table: Any, now_ms: int) -> Any:
        if self.state.ttl is None:
            return table
        cells, kept = unexpired(self.state, single(table.column(VALUE)), now_ms)
        return table.set_column(table.schema.get_field_index(VALUE), VALUE, cells).filter(kept)

    def _cells(self, cells: Any) -> list[Any]:
        """Return the value column, and the time column if requested."""
        import pyarrow.compute as pc

        if self.state.ttl is None:
            return [cells]
        if self.state.kind is not StateKind.LIST:
            return [pc.struct_field(cells, "value"), *self._times(pc.struct_field(cells, "last_access_ms"))]
        elements = cells.flatten()
        times = self._times(pc.struct_field(elements, "last_access_ms"))
        columns = [pc.struct_field(elements, "value"), *times]
        return [with_elements(cells, column) for column in columns]

    def _times(self, milliseconds: Any) -> list[Any]:
        import pyarrow as pa

        if not self.with_times:
            return []
        return [milliseconds.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC"))]


def key_column_names(names: list[str]) -> tuple[str, ...]:
    """Return the names of the key columns, with the prefix ``key_`` on reserved names."""
    # Spark and DuckDB do not distinguish names by case.
    taken, found = _RESERVED | {name.lower() for name in names}, []
    for name in names:
        shown = name
        while shown.lower() in _RESERVED or (shown != name and shown.lower() in taken):
            shown = f"key_{shown}"
        found.append(shown)
        taken |= {shown.lower()}
    return tuple(found)


def _namespaces_of(table: Any) -> Any:
    import pyarrow as pa

    if NAMESPACE in table.schema.names:
        return single(table.column(NAMESPACE))
    return pa.repeat(pa.scalar("", pa.string()), table.num_rows)


def _require_no_namespace(table: Any, name: str) -> None:
    import pyarrow.compute as pc

    if NAMESPACE not in table.schema.names or not table.num_rows:
        return
    if pc.any(pc.not_equal(table.column(NAMESPACE), "")).as_py():
        raise UnsupportedStateError(
            f"Expected all rows of state {name!r} to have no namespace, found rows with one; set namespaces=True to read them "
            f"with a column 'namespace'."
        )


_DECIMAL = re.compile(r"decimal\((\d+),\s*(-?\d+)\)")
_TEXT = re.compile(r"string( collate \w+)?|(var)?char\(\d+\)")
_TIME = re.compile(r"time\(\d+\)")
_DAYS = re.compile(r"interval (day|hour|minute|second)( to \w+)?")
_MONTHS = re.compile(r"interval (year|month)( to \w+)?")
_DATED = re.compile(r'"(date|timestamp)')
_VARIANT = ("value", "metadata")


@dataclass(frozen=True, slots=True)
class DataFrameColumn:
    """Column of a DataFrame that a snapshot contains."""

    name: str
    position: int
    type: Any
    """Type in Spark's JSON format."""

    @property
    def name_in_file(self) -> str:
        """Return the name of the column in the files."""
        return column_name(self.position)

    @property
    def arrow_type(self) -> Any:
        """
        Return the Arrow type of the column.

        :raises UnsupportedStateError: for a type that only Spark reads.
        """
        found = _arrow_type(self.type)
        if found is None:
            raise only_spark_reads(self)
        return found

    @property
    def type_name(self) -> str:
        """Return the Arrow type as text, or Spark's name of a type that only Spark reads."""
        return str(_arrow_type(self.type) or json.dumps(self.type))

    @property
    def has_times(self) -> bool:
        """Return whether a part of the column is a date or a timestamp."""
        return _DATED.search(json.dumps(self.type)) is not None


def dataframe_columns(schema_json: str) -> tuple[DataFrameColumn, ...]:
    """
    Return the columns of a schema in Spark's JSON format.

    :raises CorruptStateError: if it is not a schema.
    """
    try:
        fields = json.loads(schema_json)["fields"]
        return tuple(DataFrameColumn(str(each["name"]), i, each["type"]) for i, each in enumerate(fields))
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptStateError(
            f"Expected the schema of a snapshot, found {schema_json[:80]!r}; read another checkpoint."
        ) from error


def as_written(stored: Any, column: DataFrameColumn) -> Any:
    """
    Return a column of a file in its Arrow type, without a copy.

    :param stored: Arrow array that was read from the file.
    :raises UnsupportedStateError: if the file has another layout, such as that of a shredded variant.
    """
    wanted = column.arrow_type
    if not _is_stored_as(stored.type, wanted):
        raise only_spark_reads(column)
    return stored if stored.type == wanted else stored.view(wanted)


def only_spark_reads(column: DataFrameColumn) -> UnsupportedStateError:
    """Return the error for a column that cannot be read without Spark."""
    return UnsupportedStateError(
        f"Expected a column that is readable without Spark, found {column.type_name} in column {column.name!r}; read the "
        f"snapshot with airflow_provider_statecheck.spark.state_dataframes.read_snapshot, or other columns of it.",
        column=column.name,
    )


def _arrow_type(kind: Any) -> Any:
    try:
        return _named_type(kind) if isinstance(kind, str) else _nested_type(kind)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise CorruptStateError(f"Expected a type in Spark's JSON format, found {kind!r:.200}.") from error


def _named_type(name: str) -> Any:
    import pyarrow as pa

    decimal = _DECIMAL.fullmatch(name)
    if decimal:
        return pa.decimal128(int(decimal.group(1)), int(decimal.group(2)))
    matching = (make for pattern, make in _parametric_types() if pattern.fullmatch(name))
    return next(matching, _plain_types().get(name))


def _parametric_types() -> Iterator[tuple[re.Pattern[str], Any]]:
    import pyarrow as pa

    yield _TEXT, pa.string()
    yield _TIME, pa.time64("us")
    yield _DAYS, pa.duration("us")
    yield _MONTHS, pa.int32()


def _plain_types() -> Mapping[str, Any]:
    import pyarrow as pa

    return {
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


def _nested_type(kind: Mapping[str, Any]) -> Any:

    makers: dict[str, Callable[[], Any]] = {
        "udt": lambda: _arrow_type(kind["sqlType"]),
        "array": lambda: _list_of(_arrow_type(kind["elementType"])),
        "map": lambda: _map_of(_arrow_type(kind["keyType"]), _arrow_type(kind["valueType"])),
        "struct": lambda: _struct_of([(str(each["name"]), _arrow_type(each["type"])) for each in kind["fields"]]),
    }
    return makers[kind["type"]]()


def _list_of(element: Any) -> Any:
    import pyarrow as pa

    return None if element is None else pa.list_(pa.field("element", element))


def _map_of(key: Any, value: Any) -> Any:
    import pyarrow as pa

    # The keys of an Arrow map are not null, so their type is not the null type.
    return None if key in (None, pa.null()) or value is None else pa.map_(key, value)


def _struct_of(fields: list[tuple[str, Any]]) -> Any:
    import pyarrow as pa

    return None if any(kind is None for _, kind in fields) else pa.struct([pa.field(*each) for each in fields])


def _is_stored_as(stored: Any, wanted: Any) -> bool:
    import pyarrow as pa
    from pyarrow import types

    if types.is_struct(stored) and types.is_struct(wanted):
        return stored.num_fields == wanted.num_fields and all(map(_is_field_as, count(), stored, wanted))
    if types.is_map(stored) and types.is_map(wanted):
        keys = _is_stored_as(stored.key_type, wanted.key_type)
        return keys and _is_stored_as(stored.item_type, wanted.item_type)
    if types.is_list(stored) and types.is_list(wanted):
        return _is_stored_as(stored.value_type, wanted.value_type)
    # Spark's default timestamps and its intervals have no type of their own in Parquet.
    reinterpreted = {pa.timestamp("us", "UTC"): pa.timestamp("us"), pa.duration("us"): pa.int64()}
    return bool(stored == wanted or stored == reinterpreted.get(wanted))


def _is_field_as(position: int, stored: Any, wanted: Any) -> bool:
    # Fields are named by position where their names collide.
    is_named = stored.name in (wanted.name, column_name(position))
    return is_named and _is_stored_as(stored.type, wanted.type)
