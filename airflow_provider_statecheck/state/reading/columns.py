"""Columns of states as shown to users."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, NAMESPACE, USER_KEY, VALUE, StateLayout, single
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import unexpired
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements

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
