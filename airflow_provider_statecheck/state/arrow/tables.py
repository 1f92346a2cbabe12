"""
State tables over sorted runs: values and maps.

Changes are held in dictionaries until they are sealed as a run. Reads check the changes, the prefetched keys and the
runs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    PARTIAL,
    USER_KEY,
    VALUE,
    Block,
    StateLayout,
    count_owners,
    distinct_heads,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.row_versions import merge_tables, without_tombstones
from airflow_provider_statecheck.state.arrow.runs import PositionEncoder, Target, current_row, rows_in
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns, live_entries, live_values
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer

_INITIAL_LIMIT = 4096
_CELL_BYTES = 300
"""Approximate size of a cell in Python dictionaries, in bytes."""
_SAMPLE_SIZE = 256
_NO_CELLS: dict[Any, Any] = {}
_UNKNOWN = object()
_REMOVED = object()
"""Marker of a removed value in memory."""


class TableCore(ABC):
    """
    Changes and runs of one state, common to all tables.

    :param budget_bytes: Returns the maximum size of the changes in memory, in bytes.
    :param on_seal: Called after changes were sealed.
    """

    def __init__(
        self, keys: KeySerializer, runs: StateRuns, budget_bytes: Callable[[], int], on_seal: Callable[[], None]
    ) -> None:
        self.runs = runs
        self._keys = keys
        self._freezing = runs.state.cells
        self._budget_bytes = budget_bytes
        self._on_seal = on_seal
        self._cells: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        """Changed cells by namespace and key; those of a map are dictionaries by user key."""
        self._void = self._cells[VOID_NAMESPACE]
        self._key_groups: dict[Any, int] = {}
        self._prefetched: set[Any] = set()
        self._prefetched_cells: dict[Any, Any] = {}
        """Cells of the prefetched keys without a namespace; a key without state has none."""
        self._limit = _INITIAL_LIMIT
        self._positions = PositionEncoder(keys, runs.state.key_serializer)

    def advance_to(self, key_group: int) -> None:
        """Seal the changes if that frees enough memory."""
        if len(self._key_groups) >= self._limit // 4:
            self.seal()

    def seal(self) -> None:
        """Add the changes to the runs as sorted rows."""
        if self._key_groups:
            changes = [self._rows_of(namespace, cells) for namespace, cells in self._cells.items() if cells]
            if changes:
                self.runs.add(_joined_rows(self.runs.layout, changes))
            self._cells.clear()
            self._void = self._cells[VOID_NAMESPACE]
            # Prefetched cells of changed keys are outdated.
            self._prefetched.difference_update(self._key_groups)
            self._key_groups.clear()
            self._limit = _INITIAL_LIMIT
            self._on_seal()

    def prefetch(self, keys: KeyBatch, key_list: list[Any]) -> None:
        """
        Read the cells of keys without a namespace for fast access.

        :param key_list: Keys as Python values, in the same order.
        """
        self._prefetched_cells = self._stored_cells(self._normalized(keys), key_list)
        self._prefetched = set(key_list)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys of a namespace. Later changes are not visible."""
        self.seal()
        tables = (_in_namespace(table, namespace) for table in self.runs.rows())
        return chain.from_iterable(map(self._keys_of, distinct_heads(tables)))

    def num_entries(self) -> int:
        """Return the number of pairs of key and namespace with state."""
        self.seal()
        return count_owners(self.runs.rows())

    @abstractmethod
    def _stored_cells(self, keys: KeyBatch, key_list: list[Any]) -> dict[Any, Any]:
        """Return the cells of keys in the runs, by key."""

    @abstractmethod
    def _rows_of(self, namespace: str, cells: Any) -> Any:
        """Return the changes of a namespace as sorted rows."""

    def _keys_of(self, table: Any) -> list[Any]:
        columns = tuple(single(table.column(name)) for name in self.runs.layout.key_names)
        return self._keys.from_columns(columns)

    def _seal_if_full(self, cells: int) -> None:
        """Seal the changes if they exceed the memory budget, else raise the limit for the next check."""
        allowed = max(_INITIAL_LIMIT, self._budget_bytes() // (_CELL_BYTES + 4 * self._sampled_width()))
        if cells < allowed:
            self._limit = min(allowed, 4 * cells)
        else:
            self.seal()

    def _sampled_width(self) -> int:
        """Return the approximate size of a value in Arrow, in bytes."""
        sample = [v for v in self._changed_values() if v is not None][:_SAMPLE_SIZE]
        return self._freezing.write(sample).nbytes // len(sample) if sample else 0

    @abstractmethod
    def _changed_values(self) -> Iterator[Any]:
        """Return the values that were changed since the last seal."""

    def _value(self, block: Block, row: int) -> Any:
        return self._freezing.read(block.values.slice(row, 1))[0]

    def _normalized(self, keys: KeyBatch) -> KeyBatch:
        """Return keys with columns of the stored types."""
        wanted = self._keys.arrow_types
        if all(column.type == kind for column, kind in zip(keys.columns, wanted, strict=True)):
            return keys
        return KeyBatch(keys.key_groups, self._keys.normalized_columns(keys.columns))


def _in_namespace(table: Any, namespace: str) -> Any:
    if NAMESPACE in table.schema.names:
        return table.filter(pc.equal(table.column(NAMESPACE), namespace))
    return table if namespace == VOID_NAMESPACE else table.slice(0, 0)


class ArrowValueTable(TableCore):
    """State table with changes in a dictionary by key."""

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        is_void = namespace == VOID_NAMESPACE
        cells = self._void if is_void else self._cells.get(namespace, _NO_CELLS)
        value = cells.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return None if value is _REMOVED else value
        if is_void and key in self._prefetched:
            return self._prefetched_cells.get(key)
        return self._load(key, key_group, namespace)

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        self._cells[namespace][key] = value
        groups = self._key_groups
        groups[key] = key_group
        if len(groups) >= self._limit:
            self._seal_if_full(len(groups))

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        if self.runs.all:
            self.put(key, key_group, namespace, _REMOVED)
        else:
            self._cells[namespace].pop(key, None)

    def get_batch(self, keys: KeyBatch) -> Any:
        self.seal()
        results = list(live_values(self.runs, self._normalized(keys)))
        rows = np.full(len(keys), -1, np.int64)
        start = 0
        for found in results:
            rows[found.keys] = np.arange(start, start + found.rows.num_rows)
            start += found.rows.num_rows
        if not results:
            return pa.nulls(len(keys), self.runs.layout.value_type)
        values = pa.concat_arrays([single(found.rows.column(VALUE)) for found in results])
        return values.take(pa.array(rows, mask=rows < 0))

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        # Removed values may be among those that were changed one by one.
        self.seal()
        values = single(values)
        deleted = values.is_null() if values.null_count else None
        table = self._rows_of_batch(keys, values, deleted=deleted)
        self._add(table if deleted is None or self.runs.all else without_tombstones(table))

    def add_batch(self, keys: KeyBatch, values: Any) -> None:
        self._add(self._rows_of_batch(keys, single(values), partial=pa.repeat(pa.scalar(True), len(keys))))

    def _rows_of_batch(self, keys: KeyBatch, values: Any, **marks: Any) -> Any:
        keys = self._normalized(keys)
        groups = single(keys.key_groups).cast(pa.int32())
        columns = [single(column) for column in keys.columns]
        return _changed_rows(self.runs.layout, groups, columns, VOID_NAMESPACE, values, **marks)

    def _add(self, rows: Any) -> None:
        self.seal()
        self._prefetched, self._prefetched_cells = set(), {}
        self.runs.add(rows)
        self._on_seal()

    def batches(self) -> Iterator[tuple[KeyBatch, Any]]:
        """Return all keys without a namespace and their values, in their order. Later changes are not visible."""
        self.seal()
        return map(self._batch_of, self.runs.rows())

    def _batch_of(self, rows: Any) -> tuple[KeyBatch, Any]:
        table = _in_namespace(rows, VOID_NAMESPACE)
        keys = tuple(single(table.column(name)) for name in self.runs.layout.key_names)
        return KeyBatch(single(table.column(KEY_GROUP)), keys), single(table.column(VALUE))

    def _stored_cells(self, keys: KeyBatch, key_list: list[Any]) -> dict[Any, Any]:
        stored: dict[Any, Any] = {}
        for found in live_values(self.runs, keys):
            cells = self._freezing.read(single(found.rows.column(VALUE)))
            stored.update(zip([key_list[index] for index in found.keys.tolist()], cells, strict=True))
        return stored

    def _load(self, key: Any, key_group: int, namespace: str) -> Any:
        target = Target(self._positions.key(key, key_group), namespace)
        found = current_row(self.runs.layout, self.runs.all, target)
        return None if found is None else self._value(*found)

    def _rows_of(self, namespace: str, cells: dict[Any, Any]) -> Any:
        keys, deleted = list(cells), _tombstone_mask(cells.values())
        values = self._freezing.write([None if value is _REMOVED else value for value in cells.values()])
        groups = pa.array([self._key_groups[key] for key in keys], pa.int32())
        return _changed_rows(
            self.runs.layout, groups, self._keys.to_columns_of_normalized(keys), namespace, values, deleted
        )

    def _changed_values(self) -> Iterator[Any]:
        return (v for cells in self._cells.values() for v in cells.values() if v is not _REMOVED)


class ArrowMapTable(TableCore):
    """Map table with changes in dictionaries by key and user key."""

    _count = 0
    """Number of changed entries."""

    def seal(self) -> None:
        super().seal()
        self._count = 0

    @cached_property
    def _user_key_serializer(self) -> TypeSerializer[Any]:
        assert self.runs.state.key_serializer is not None  # noqa: S101 - the state is a map
        return self.runs.state.key_serializer

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        value = self._find(key, key_group, namespace, user_key)
        return None if value is _REMOVED else value

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        return self._find(key, key_group, namespace, user_key) is not _REMOVED

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        entries = self._cells[namespace].setdefault(key, {})
        self._count += user_key not in entries
        entries[user_key] = value
        self._key_groups[key] = key_group
        if self._count >= self._limit:
            self._seal_if_full(self._count)

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        if self.runs.all:
            self.put(key, key_group, namespace, user_key, _REMOVED)
        elif self._changed_entries(key, namespace).pop(user_key, _UNKNOWN) is not _UNKNOWN:
            self._count -= 1

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        found = dict(self._stored_entries(key, key_group, namespace))
        for user_key, value in self._changed_entries(key, namespace).items():
            if value is _REMOVED:
                found.pop(user_key, None)
            else:
                found[user_key] = value
        return iter(found.items())

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        if any(value is not _REMOVED for value in self._changed_entries(key, namespace).values()):
            return False
        return next(self.entries(key, key_group, namespace), None) is None

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        for user_key, _ in self.entries(key, key_group, namespace):
            self.remove(key, key_group, namespace, user_key)

    def _stored_cells(self, keys: KeyBatch, key_list: list[Any]) -> dict[Any, Any]:
        stored: dict[Any, dict[Any, Any]] = {}
        for found in live_entries(self.runs, keys):
            cells = self._freezing.read(single(found.rows.column(VALUE)))
            user_keys = self._user_key_serializer.from_arrow(single(found.rows.column(USER_KEY)))
            for index, user_key, cell in zip(found.keys.tolist(), user_keys, cells, strict=True):
                stored.setdefault(key_list[index], {})[user_key] = cell
        return stored

    def _changed_entries(self, key: Any, namespace: str) -> dict[Any, Any]:
        entries: dict[Any, Any] = self._cells.get(namespace, _NO_CELLS).get(key, _NO_CELLS)
        return entries

    def _find(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``_REMOVED``."""
        value = self._cells.get(namespace, _NO_CELLS).get(key, _NO_CELLS).get(user_key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        if namespace == VOID_NAMESPACE and key in self._prefetched:
            return self._prefetched_cells.get(key, _NO_CELLS).get(user_key, _REMOVED)
        return self._load(key, key_group, namespace, user_key)

    def _load(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        position = self._positions.key(key, key_group)
        target = Target(position, namespace, self._positions.user_key(user_key))
        found = current_row(self.runs.layout, self.runs.all, target)
        return _REMOVED if found is None else self._value(*found)

    def _stored_entries(self, key: Any, key_group: int, namespace: str) -> dict[Any, Any]:
        """Return the entries of a key without unsealed changes."""
        if namespace == VOID_NAMESPACE and key in self._prefetched:
            known: dict[Any, Any] = self._prefetched_cells.get(key, _NO_CELLS)
            return known
        found: dict[Any, Any] = {}
        target = Target(self._positions.key(key, key_group), namespace)
        for run in reversed(self.runs.all):
            for block, start, end in rows_in(run, target):
                column = single(block.table.column(USER_KEY)).slice(start, end - start)
                user_keys = self._user_key_serializer.from_arrow(column)
                cells = self._freezing.read(block.values.slice(start, end - start))
                found.update(zip(user_keys, cells, strict=True))
                for row, user_key in enumerate(user_keys, start):
                    if block.is_deleted(row):
                        del found[user_key]
        return found

    def _rows_of(self, namespace: str, keys: dict[Any, dict[Any, Any]]) -> Any:
        owners = [key for key, entries in keys.items() for _ in entries]
        user_keys = [user_key for entries in keys.values() for user_key in entries]
        values = [value for entries in keys.values() for value in entries.values()]
        return _changed_rows(
            self.runs.layout,
            pa.array([self._key_groups[key] for key in owners], pa.int32()),
            self._keys.to_columns_of_normalized(owners),
            namespace,
            self._freezing.write([None if value is _REMOVED else value for value in values]),
            _tombstone_mask(values),
            self._user_key_serializer.to_arrow(user_keys),
        )

    def _changed_values(self) -> Iterator[Any]:
        entries = (entries for keys in self._cells.values() for entries in keys.values())
        return (value for values in entries for value in values.values() if value is not _REMOVED)


def _changed_rows(
    layout: StateLayout,
    key_groups: Any,
    columns: Sequence[Any],
    namespace: str,
    values: Any,
    deleted: Any = None,
    user_keys: Any = None,
    partial: Any = None,
) -> Any:
    """
    Return the changes of one namespace as a sorted table.

    :param key_groups: Arrow array of int32.
    :param deleted: Boolean Arrow array that marks tombstones, or ``None`` if there are none.
    :param partial: The same for rows that are combined with older ones of their keys.
    """
    columns_by_name = dict(zip(layout.key_names, columns, strict=True))
    columns_by_name |= {KEY_GROUP: key_groups, USER_KEY: user_keys, VALUE: values, DELETED: deleted, PARTIAL: partial}
    has_namespace = namespace != VOID_NAMESPACE
    if has_namespace:
        columns_by_name[NAMESPACE] = pa.repeat(pa.scalar(namespace, pa.string()), len(key_groups))
    schema = layout.schema(namespace=has_namespace, deleted=deleted is not None, partial=partial is not None)
    table = pa.table([columns_by_name[name] for name in schema.names], schema=schema)
    return table.take(pa.array(np.argsort(order_codes(position_columns(table)), kind="stable")))


def _joined_rows(layout: StateLayout, tables: Sequence[Any]) -> Any:
    """Return the changes of several namespaces as one sorted table."""
    if len(tables) == 1:
        return tables[0]
    deleted = any(DELETED in table.schema.names for table in tables)
    return merge_tables(layout, [layout.conform(table, namespace=True, deleted=deleted) for table in tables])


def _tombstone_mask(values: Iterable[Any]) -> Any:
    """Return a boolean Arrow array that marks removed values, or ``None`` if there are none."""
    mask = [value is _REMOVED for value in values]
    return pa.array(mask, pa.bool_()) if any(mask) else None
