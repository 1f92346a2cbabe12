"""User-supplied tables checked and sorted as rows of state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import timed_cells
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState, require_no_nan
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.columns import LAST_ACCESS, StateColumns
from airflow_provider_statecheck.state.serializers.nested_columns import (
    conformed,
    entries_of_array,
    is_optional,
    offsets_of_array,
    value_of,
    with_elements,
)
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot, decode_snapshot


@dataclass(frozen=True, slots=True)
class NewRows:
    """
    Conversion of user-supplied tables to rows of one state.

    :param state: State with its serializers.
    :param keys: Serializer of the keys.
    :param max_parallelism: Number of key groups.
    """

    state: RegisteredState
    keys: KeySerializer
    max_parallelism: int

    @property
    def layout(self) -> StateLayout:
        """Return the column layout of the state backend."""
        return self._columns(namespaces=False).layout

    def of(self, data: Any) -> Any:
        """
        Return the rows of a table in the order of their positions.

        :param data: Arrow table with the columns that a read of the state returns.
        :raises InvalidConfigurationError: if the columns differ, or if a key is missing or duplicate.
        :raises UnsupportedStateError: if a value does not fit its type.
        """
        import numpy as np
        import pyarrow as pa

        columns = self._columns(namespaces=NAMESPACE in data.schema.names)
        _require_columns(columns, data)
        schema = self.layout.schema(namespace=columns.namespaces, deleted=False)
        arrays = self._arrays(columns, data)
        rows = pa.table([arrays[name] for name in schema.names], schema=schema)
        codes = order_codes(position_columns(rows))
        order = np.argsort(codes, kind="stable")
        self._require_unique(rows, codes[order], order)
        return rows.take(pa.array(order))

    def _columns(self, *, namespaces: bool) -> StateColumns:
        return StateColumns(self.keys, self.state, self.state.ttl is not None, namespaces)

    def _arrays(self, columns: StateColumns, data: Any) -> dict[str, Any]:
        import pyarrow as pa

        keys = self.keys.normalized_columns([single(data.column(name)) for name in columns.key_names])
        arrays: dict[str, Any] = dict(zip(self.layout.key_names, keys, strict=True))
        arrays[KEY_GROUP] = pa.array(self.keys.key_groups_of(keys, self.max_parallelism))
        if columns.namespaces:
            arrays[NAMESPACE] = conformed(single(data.column(NAMESPACE)), pa.string(), NAMESPACE)
        if self.state.key_serializer is not None:
            snapshot = self.state.key_serializer.snapshot()
            user_keys = conformed(single(data.column("map_key")), self.state.key_serializer.arrow_type, "map_key")
            require_values(snapshot, user_keys, "map_key")
            require_no_nan(self.state.key_serializer, user_keys)
            arrays[USER_KEY] = user_keys
        return arrays | {VALUE: self._cells(columns, data)}

    def _cells(self, columns: StateColumns, data: Any) -> Any:
        name = columns.value_name
        values = conformed(single(data.column(name)), columns.schema.field(name).type, name)
        self._require_values(values, name)
        if self.state.ttl is None:
            return values
        times = _milliseconds(single(data.column(LAST_ACCESS)), columns.schema.field(LAST_ACCESS).type)
        if self.state.kind is StateKind.LIST and offsets_of_array(values) != offsets_of_array(times):
            raise InvalidConfigurationError(
                f"Expected one time in {LAST_ACCESS} for each element of {name}, found lists of different lengths; make them equal."
            )
        return timed_cells(values, times)

    def _require_values(self, values: Any, name: str) -> None:
        import pyarrow.compute as pc

        snapshot = self.state.serializer.snapshot()
        if self.state.kind is StateKind.MAP:
            # An entry with the value None is valid.
            require_values(snapshot, values.drop_null(), name)
            return
        if self.state.kind is not StateKind.LIST:
            require_values(snapshot, values, name)
            return
        if values.null_count or pc.any(pc.equal(pc.list_value_length(values), 0)).as_py():
            raise UnsupportedStateError(
                f"Expected lists with elements in {name}, found an empty one; remove these rows."
            )
        require_values(snapshot, values.flatten(), f"each element of {name}")

    def _require_unique(self, rows: Any, ordered: Any, order: Any) -> None:
        import numpy as np

        duplicates = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(duplicates):
            row = rows.slice(int(order[duplicates[0]]), 1).to_pylist()[0]
            shown = {name: row[name] for name in (*self.layout.key_names, NAMESPACE, USER_KEY) if name in row}
            raise InvalidConfigurationError(
                f"Expected one row per key, or per entry of a map state, found {len(duplicates)} rows too many, the first "
                f"with {shown}; aggregate the rows first."
            )


def _require_columns(columns: StateColumns, data: Any) -> None:
    wanted, found = columns.schema.names, data.schema.names
    if sorted(wanted) != sorted(found):
        raise InvalidConfigurationError(
            f"Expected the columns {', '.join(wanted)}, found {', '.join(found)}; select and rename them first."
        )


def _milliseconds(times: Any, wanted: Any) -> Any:
    import pyarrow as pa

    times = conformed(times, wanted, LAST_ACCESS)
    if pa.types.is_list(wanted):
        return with_elements(times, _milliseconds(times.flatten(), wanted.value_type))
    if times.null_count:
        raise InvalidConfigurationError(
            f"Expected a time in each row of {LAST_ACCESS}, found {times.null_count} nulls; set these times."
        )
    # The state backends store the time of the last access in milliseconds.
    return times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def split_by_ranges(rows: Any, ranges: Any) -> Iterator[Any]:
    """Split rows, which are ordered by key group, into the rows of each range of key groups."""
    groups = single(rows.column(KEY_GROUP)).to_numpy()
    for owned in ranges:
        start, end = groups.searchsorted([owned.start, owned.end + 1])
        yield rows.slice(int(start), int(end - start))


def require_values(snapshot: SerializerSnapshot, array: Any, place: str) -> None:
    """
    Require that all values are valid for the type of a state.

    :param snapshot: Snapshot of the serializer of the type.
    :param array: Values in the Arrow type of the serializer.
    :param place: Name of the column or field, for error messages.
    :raises UnsupportedStateError: if a required value is null, or if a name is not a member of the enum.
    """
    if is_optional(snapshot):
        require_values(value_of(snapshot), array.drop_null(), place)
        return
    if array.null_count:
        raise UnsupportedStateError(
            f"Expected {place} to have a value, found {array.null_count} nulls; remove these rows, or declare an optional type."
        )
    for nested, values, name in _nested_values(snapshot, array, place):
        require_values(decode_snapshot(nested), values, name)
    if snapshot.class_id == "enum":
        _require_names(snapshot.config["names"], array, place)


def _nested_values(snapshot: SerializerSnapshot, array: Any, place: str) -> list[tuple[Any, Any, str]]:
    config = snapshot.config
    if snapshot.class_id == "record":
        columns = zip(config["fields"], array.flatten(), strict=True)
        return [(field["type"], column, f"{place}.{field['name']}") for field, column in columns]
    if snapshot.class_id == "collection":
        return [(config["element"], array.flatten(), f"each element of {place}")]
    if snapshot.class_id == "dict":
        keys, values = entries_of_array(array)
        return [(config["key"], keys, f"each key of {place}"), (config["value"], values, f"each value of {place}")]
    return []


def _require_names(names: list[str], array: Any, place: str) -> None:
    import pyarrow as pa
    import pyarrow.compute as pc

    known = pc.is_in(array, value_set=pa.array(names, array.type))
    unknown = pc.unique(array.filter(pc.invert(known))).to_pylist()
    if unknown:
        raise UnsupportedStateError(
            f"Expected {place} to be one of {', '.join(names)}, found {unknown[0]!r}; correct it."
        )
