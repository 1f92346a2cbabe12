"""A table of a user as rows of state, in the order in which a backend has them."""

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
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.order import order_codes
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.reading.columns import LAST_ACCESS, StateColumns
from airflow_provider_statecheck.state.serializers.lists import offsets_of_array, with_elements
from airflow_provider_statecheck.state.writing.conforming import conformed, require_values


@dataclass(frozen=True, slots=True)
class NewRows:
    """
    Makes rows of one state.

    :param state: The state.
    :param keys: The serializer of its keys.
    :param max_parallelism: The number of key groups.
    """

    state: RegisteredState
    keys: KeySerializer
    max_parallelism: int

    @property
    def layout(self) -> StateLayout:
        """Return the columns of the backend."""
        return self._columns(namespaces=False).layout

    def of(self, data: Any) -> Any:
        """
        Return the rows of an Arrow table that has the columns which a read of the state gives.

        :raises InvalidConfigurationError: for other columns, rows without a key, or a key that is there twice.
        :raises UnsupportedStateError: for values that do not fit the types.
        """
        import numpy as np
        import pyarrow as pa

        columns = self._columns(namespaces=NAMESPACE in data.schema.names)
        _require_columns(columns, data)
        schema = self.layout.schema(namespace=columns.namespaces, deleted=False)
        found = self._found(columns, data)
        rows = pa.table([found[name] for name in schema.names], schema=schema)
        codes = order_codes(position_columns(rows))
        order = np.argsort(codes, kind="stable")
        self._require_single(rows, codes[order], order)
        return rows.take(pa.array(order))

    def _columns(self, *, namespaces: bool) -> StateColumns:
        return StateColumns(self.keys, self.state, self.state.ttl is not None, namespaces)

    def _found(self, columns: StateColumns, data: Any) -> dict[str, Any]:
        import pyarrow as pa

        keys = self.keys.normalized_columns([single(data.column(name)) for name in columns.key_names])
        found: dict[str, Any] = dict(zip(self.layout.key_names, keys, strict=True))
        found[KEY_GROUP] = pa.array(self.keys.key_groups_of(keys, self.max_parallelism))
        if columns.namespaces:
            found[NAMESPACE] = conformed(single(data.column(NAMESPACE)), pa.string(), NAMESPACE)
        if self.state.key_serializer is not None:
            snapshot = self.state.key_serializer.snapshot()
            user_keys = conformed(single(data.column("map_key")), self.state.key_serializer.arrow_type, "map_key")
            require_values(snapshot, user_keys, "map_key")
            found[USER_KEY] = user_keys
        return found | {VALUE: self._cells(columns, data)}

    def _cells(self, columns: StateColumns, data: Any) -> Any:
        name = columns.value_name
        values = conformed(single(data.column(name)), columns.schema.field(name).type, name)
        self._require_values(values, name)
        if self.state.ttl is None:
            return values
        times = _milliseconds(single(data.column(LAST_ACCESS)), columns.schema.field(LAST_ACCESS).type)
        if self.state.kind is not StateKind.LIST:
            return _structs(values, times)
        if offsets_of_array(values) != offsets_of_array(times):
            raise InvalidConfigurationError(
                f"Expected a time in {LAST_ACCESS} for each element of {name}, found others."
            )
        return with_elements(values, _structs(values.flatten(), times.flatten()))

    def _require_values(self, values: Any, name: str) -> None:
        import pyarrow.compute as pc

        snapshot = self.state.serializer.snapshot()
        if self.state.kind is StateKind.MAP:
            # What is None is an entry all the same.
            require_values(snapshot, values.drop_null(), name)
            return
        if self.state.kind is not StateKind.LIST:
            require_values(snapshot, values, name)
            return
        if values.null_count or pc.any(pc.equal(pc.list_value_length(values), 0)).as_py():
            raise UnsupportedStateError(
                f"Expected lists with elements in {name}, found an empty one; leave such rows out."
            )
        require_values(snapshot, values.flatten(), f"each element of {name}")

    def _require_single(self, rows: Any, ordered: Any, order: Any) -> None:
        import numpy as np

        twice = np.flatnonzero(ordered[1:] == ordered[:-1])
        if len(twice):
            row = rows.slice(int(order[twice[0]]), 1).to_pylist()[0]
            shown = {name: row[name] for name in (*self.layout.key_names, NAMESPACE, USER_KEY) if name in row}
            raise InvalidConfigurationError(
                f"Expected one row for each key, and of a map for each entry, found {len(twice)} rows too many, the first "
                f"with {shown}; aggregate them before."
            )


def _require_columns(columns: StateColumns, data: Any) -> None:
    wanted, found = columns.schema.names, data.schema.names
    if sorted(wanted) != sorted(found):
        raise InvalidConfigurationError(
            f"Expected the columns {', '.join(wanted)}, found {', '.join(found)}; select and rename them before."
        )


def _milliseconds(times: Any, wanted: Any) -> Any:
    import pyarrow as pa

    times = conformed(times, wanted, LAST_ACCESS)
    if pa.types.is_list(wanted):
        return with_elements(times, _milliseconds(times.flatten(), wanted.value_type))
    if times.null_count:
        raise InvalidConfigurationError(
            f"Expected a time in each row of {LAST_ACCESS}, found {times.null_count} nulls."
        )
    # Whatever is below a millisecond was never part of a time of last use.
    return times.cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())


def _structs(values: Any, times: Any) -> Any:
    import pyarrow as pa

    return pa.StructArray.from_arrays([values, times], names=["value", "last_access_ms"])


def split_by_ranges(rows: Any, ranges: Any) -> Iterator[Any]:
    """Return the rows of each range of key groups, of rows in order."""
    groups = single(rows.column(KEY_GROUP)).to_numpy()
    for owned in ranges:
        start, end = groups.searchsorted([owned.start, owned.end + 1])
        yield rows.slice(int(start), int(end - start))
