"""Tables of values and maps over sorted runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.arrow.blocks import Block
from airflow_provider_statecheck.state.arrow.compaction import living
from airflow_provider_statecheck.state.arrow.layout import (
    NAMESPACE,
    USER_KEY,
    VALUE,
    count_owners,
    distinct_heads,
    order_columns,
    row_tuples,
    single,
)
from airflow_provider_statecheck.state.arrow.runs import Found, SortedRun, blocks_at
from airflow_provider_statecheck.state.arrow.state_runs import (
    GONE,
    StateRuns,
    changed_rows,
    groups_of,
    joined_rows,
    key_columns,
    marks,
    newest_of_all,
    newest_of_void,
)
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


_FIRST_LOOK = 4096
_CELL_BYTES = 300
"""What a cell takes in Python's dicts, about."""
_SAMPLE = 256


@dataclass(slots=True)
class ReadAhead:
    """What some keys have in the runs."""

    keys: set[Any] = field(default_factory=set)
    cells: dict[str, dict[Any, Any]] = field(default_factory=dict)
    """By namespace and key; what is not there, but of one of the keys, is nothing."""


class TableCore:
    """
    Changes of one state, and its runs.

    :param budget_bytes: How much memory changes may take before they become rows.
    :param on_seal: Is called after they did.
    """

    def __init__(
        self,
        state: RegisteredState,
        keys: KeySerializer,
        runs: StateRuns,
        budget_bytes: Callable[[], int],
        on_seal: Callable[[], None],
    ) -> None:
        self.state = state
        self.runs = runs
        self._keys = keys
        self._kept = state.cells
        self._budget_bytes = budget_bytes
        self._on_seal = on_seal
        self._key_groups: dict[Any, int] = {}
        self._read_ahead = ReadAhead()
        self._limit = _FIRST_LOOK
        self._has_plain_keys = _are_plain(keys.arrow_types)

    def advance_to(self, key_group: int) -> None:
        """Turn changes into rows where that frees memory."""
        if self.is_changed and len(self._key_groups) >= self._limit // 4:
            self.seal()

    @property
    def is_changed(self) -> bool:
        """Tell whether there are changes that are no rows yet."""
        return bool(self._key_groups)

    def seal(self) -> None:
        """Turn changes into rows in order, which from then on nobody can change."""
        if self.is_changed:
            self.runs.add(self._rows_of_changes())
            # What was read ahead of them is older now.
            self._read_ahead.keys.difference_update(self._key_groups)
            self._key_groups.clear()
            self._limit = _FIRST_LOOK
            self._on_seal()

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the keys that have something in a namespace, each once; later changes are not seen."""
        self.seal()
        return self._distinct_keys(self.runs.rows(), namespace)

    def num_entries(self) -> int:
        """Return how many keys and namespaces have something."""
        self.seal()
        return count_owners(self.runs.rows())

    def forget_read_ahead(self) -> None:
        """Let all keys be looked up again."""
        self._read_ahead = ReadAhead()

    def _rows_of_changes(self) -> Any:
        raise NotImplementedError

    def _distinct_keys(self, tables: Iterator[Any], namespace: str) -> Iterator[Any]:
        for heads in distinct_heads(_of_namespace(table, namespace) for table in tables):
            yield from self._keys_of(heads)

    def _keys_of(self, table: Any) -> list[Any]:
        columns = tuple(single(table.column(name)) for name in self.runs.layout.key_names)
        return self._keys.from_columns(columns)

    def _grown(self, cells: int) -> None:
        """Seal if the changes may take too much memory; called when they are as many as the limit."""
        allowed = max(_FIRST_LOOK, self._budget_bytes() // (_CELL_BYTES + 4 * self._sampled_width()))
        if cells < allowed:
            self._limit = min(allowed, 4 * cells)
        else:
            self.seal()

    def _sampled_width(self) -> int:
        """Return how many bytes a value takes in Arrow, about."""
        sample = [v for v in self._some_values() if v is not None][:_SAMPLE]
        return self._kept.write(sample).nbytes // len(sample) if sample else 0

    def _some_values(self) -> Iterator[Any]:
        raise NotImplementedError

    def _position(self, key: Any, key_group: int) -> tuple[Any, ...]:
        """Return where the rows of a key begin."""
        if self._has_plain_keys:
            return (key_group, key) if len(self._keys.fields) == 1 else (key_group, *key)
        columns = [part for column in key_columns(self._keys, [key]) for part in order_columns(column)]
        return (key_group, *row_tuples(columns)[0])

    def _rows_at(self, run: SortedRun, position: tuple[Any, ...]) -> Iterator[tuple[Block, int, int]]:
        """Return the rows of a run at a position, or that begin with it: blocks, from where and to before where."""
        for number in blocks_at(run, position):
            block = run.block(number)
            start, end = block.find(position)
            if start < end:
                yield block, start, end

    def _value(self, block: Block, row: int) -> Any:
        return self._kept.read(block.values.slice(row, 1))[0]

    def _in_form(self, keys: KeyBatch) -> KeyBatch:
        """Return keys whose columns are of the types of the files."""
        wanted = self._keys.arrow_types
        if all(column.type == kind for column, kind in zip(keys.columns, wanted, strict=True)):
            return keys
        return KeyBatch(keys.key_groups, self._keys.normalized_columns(keys.columns))


def _of_namespace(table: Any, namespace: str) -> Any:
    import pyarrow.compute as pc

    if NAMESPACE in table.schema.names:
        return table.filter(pc.equal(table.column(NAMESPACE), namespace))
    return table if namespace == VOID_NAMESPACE else table.slice(0, 0)


def _are_plain(types: Sequence[Any]) -> bool:
    """Tell whether Python's values of all types order as rows do."""
    from pyarrow import types as kinds

    return all(kinds.is_integer(t) or kinds.is_string(t) or kinds.is_binary(t) for t in types)


_NONE: dict[Any, Any] = {}
_UNKNOWN = object()


class ArrowValueTable(TableCore):
    """A ``StateTable``: what was changed is in a dict by key, the rest in runs."""

    def __init__(
        self,
        state: RegisteredState,
        keys: KeySerializer,
        runs: StateRuns,
        budget_bytes: Callable[[], int],
        on_seal: Callable[[], None],
    ) -> None:
        super().__init__(state, keys, runs, budget_bytes, on_seal)
        self._void: dict[Any, Any] = {}
        self._cells: dict[str, dict[Any, Any]] = {VOID_NAMESPACE: self._void}

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None``."""
        cells = self._void if namespace == VOID_NAMESPACE else self._cells.get(namespace, _NONE)
        value = cells.get(key, _UNKNOWN)
        if value is not _UNKNOWN:
            return None if value is GONE else value
        ahead = self._read_ahead
        if key in ahead.keys:
            return ahead.cells.get(namespace, _NONE).get(key)
        return self._load(key, key_group, namespace)

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value."""
        if namespace == VOID_NAMESPACE:
            self._void[key] = value
        else:
            self._cells.setdefault(namespace, {})[key] = value
        groups = self._key_groups
        groups[key] = key_group
        if len(groups) >= self._limit:
            self._grown(len(groups))

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value."""
        if self.runs.all:
            self.put(key, key_group, namespace, GONE)
        else:
            self._cells.get(namespace, {}).pop(key, None)

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys, null where there is none."""
        import numpy as np
        import pyarrow as pa

        self.seal()
        found = list(self._newest_rows(self._in_form(keys)))
        at = np.full(len(keys), -1, np.int64)
        start = 0
        for some in found:
            at[some.keys] = np.arange(start, start + some.rows.num_rows)
            start += some.rows.num_rows
        if not found:
            return pa.nulls(len(keys), self.runs.layout.value_type)
        values = pa.concat_arrays([single(some.rows.column(VALUE)) for some in found])
        return values.take(pa.array(at, mask=at < 0))

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys from an Arrow array; null removes."""
        import pyarrow as pa

        self.seal()
        self.forget_read_ahead()
        values, keys = single(values), self._in_form(keys)
        groups = single(keys.key_groups).cast(pa.int32())
        columns = [single(column) for column in keys.columns]
        deleted = values.is_null() if values.null_count else None
        table = changed_rows(self.runs.layout, groups, columns, VOID_NAMESPACE, values, deleted)
        if deleted is not None and not self.runs.all:
            table = living(table)
        self.runs.add(table)
        self._on_seal()

    def prefetch(self, keys: KeyBatch, listed: list[Any]) -> None:
        """
        Read what keys have, so that ``get`` of each is no search.

        :param listed: The keys as Python has them, in the same order.
        """
        ahead = ReadAhead(set(listed))
        for some in self._newest_rows(self._in_form(keys), all_namespaces=True):
            cells = self._kept.read(single(some.rows.column(VALUE)))
            owners = [listed[number] for number in some.keys.tolist()]
            if NAMESPACE not in some.rows.schema.names:
                ahead.cells.setdefault(VOID_NAMESPACE, {}).update(zip(owners, cells, strict=True))
                continue
            for key, namespace, cell in zip(owners, some.rows.column(NAMESPACE).to_pylist(), cells, strict=True):
                ahead.cells.setdefault(namespace, {})[key] = cell
        self._read_ahead = ahead

    def _load(self, key: Any, key_group: int, namespace: str) -> Any:
        position = self._position(key, key_group)
        for run in self.runs.all:
            if not run.has_namespaces and namespace != VOID_NAMESPACE:
                continue
            for block, row, _ in self._rows_at(run, (*position, namespace) if run.has_namespaces else position):
                return None if block.is_deleted(row) else self._value(block, row)
        return None

    def _newest_rows(self, keys: KeyBatch, *, all_namespaces: bool = False) -> Iterator[Found]:
        """Return the rows that keys have, without those that are gone."""
        if all_namespaces and any(run.has_namespaces for run in self.runs.all):
            return newest_of_all(self.runs, keys)
        return newest_of_void(self.runs, keys)

    def _rows_of_changes(self) -> Any:
        tables = [self._rows_of(namespace, cells) for namespace, cells in self._cells.items() if cells]
        self._void = {}
        self._cells = {VOID_NAMESPACE: self._void}
        return (
            joined_rows(self.runs.layout, tables)
            if tables
            else self.runs.layout.schema(namespace=False, deleted=False).empty_table()
        )

    def _rows_of(self, namespace: str, cells: dict[Any, Any]) -> Any:
        keys, deleted = list(cells), marks(cells.values())
        values = self._kept.write([None if value is GONE else value for value in cells.values()])
        groups = groups_of(keys, self._key_groups)
        return changed_rows(self.runs.layout, groups, key_columns(self._keys, keys), namespace, values, deleted)

    def _some_values(self) -> Iterator[Any]:
        return (v for cells in self._cells.values() for v in cells.values() if v is not GONE)


class ArrowMapTable(TableCore):
    """A ``MapTable``: what was changed is in dicts by key and user key, the rest in runs."""

    def __init__(
        self,
        state: RegisteredState,
        keys: KeySerializer,
        runs: StateRuns,
        budget_bytes: Callable[[], int],
        on_seal: Callable[[], None],
    ) -> None:
        super().__init__(state, keys, runs, budget_bytes, on_seal)
        if state.key_serializer is None:
            raise TypeError(f"Expected a map state, found {state.name}.")
        self._user_keys = state.key_serializer
        self._cells: dict[str, dict[Any, dict[Any, Any]]] = {}
        self._count = 0

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None``."""
        value = self._find(key, key_group, namespace, user_key)
        return None if value is GONE else value

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Tell whether there is an entry."""
        return self._find(key, key_group, namespace, user_key) is not GONE

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""
        entries = self._cells.setdefault(namespace, {}).setdefault(key, {})
        self._count += user_key not in entries
        entries[user_key] = value
        self._key_groups[key] = key_group
        if self._count >= self._limit:
            self._grown(self._count)

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry; where there is none nothing happens."""
        if self.runs.all:
            self.put(key, key_group, namespace, user_key, GONE)
        elif self._changed(key, namespace).pop(user_key, _UNKNOWN) is not _UNKNOWN:
            self._count -= 1

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the entries as they are now."""
        found = dict(self._stored(key, key_group, namespace))
        for user_key, value in self._changed(key, namespace).items():
            if value is GONE:
                found.pop(user_key, None)
            else:
                found[user_key] = value
        return iter(found.items())

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Tell whether a key has no entry."""
        if any(value is not GONE for value in self._changed(key, namespace).values()):
            return False
        return next(self.entries(key, key_group, namespace), None) is None

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of a key."""
        for user_key, _ in self.entries(key, key_group, namespace):
            self.remove(key, key_group, namespace, user_key)

    def prefetch(self, keys: KeyBatch, listed: list[Any]) -> None:
        """
        Read the entries of keys, so that ``get`` of each is no search.

        :param listed: The keys as Python has them, in the same order.
        """
        ahead = ReadAhead(set(listed))
        for some in newest_of_all(self.runs, self._in_form(keys)):
            cells = self._kept.read(single(some.rows.column(VALUE)))
            names = self._user_keys.from_arrow(single(some.rows.column(USER_KEY)))
            spaces = some.rows.column(NAMESPACE).to_pylist()
            for number, space, name, cell in zip(some.keys.tolist(), spaces, names, cells, strict=True):
                ahead.cells.setdefault(space, {}).setdefault(listed[number], {})[name] = cell
        self._read_ahead = ahead

    def _changed(self, key: Any, namespace: str) -> dict[Any, Any]:
        entries: dict[Any, Any] = self._cells.get(namespace, _NONE).get(key, _NONE)
        return entries

    def _find(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``GONE``."""
        value = self._cells.get(namespace, _NONE).get(key, _NONE).get(user_key, _UNKNOWN)
        if value is not _UNKNOWN:
            return value
        ahead = self._read_ahead
        if key in ahead.keys:
            return ahead.cells.get(namespace, _NONE).get(key, _NONE).get(user_key, GONE)
        return self._load(key, key_group, namespace, user_key)

    def _load(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        position = self._position(key, key_group)
        tail = row_tuples(order_columns(self._user_keys.to_arrow([user_key]), nullable=True))[0]
        for run in self._runs_with(namespace):
            for block, row, _ in self._rows_at(run, (*_head(run, position, namespace), *tail)):
                return GONE if block.is_deleted(row) else self._value(block, row)
        return GONE

    def _stored(self, key: Any, key_group: int, namespace: str) -> dict[Any, Any]:
        """Return the entries without the changes that are no rows yet."""
        ahead = self._read_ahead
        if key in ahead.keys:
            known: dict[Any, Any] = ahead.cells.get(namespace, _NONE).get(key, _NONE)
            return known
        found: dict[Any, Any] = {}
        position = self._position(key, key_group)
        for run in reversed(list(self._runs_with(namespace))):
            for block, start, end in self._rows_at(run, _head(run, position, namespace)):
                names = self._user_keys.from_arrow(single(block.table.column(USER_KEY)).slice(start, end - start))
                cells = self._kept.read(block.values.slice(start, end - start))
                found.update(zip(names, cells, strict=True))
                for row, name in enumerate(names, start):
                    if block.is_deleted(row):
                        del found[name]
        return found

    def _runs_with(self, namespace: str) -> Iterator[SortedRun]:
        return (run for run in self.runs.all if run.has_namespaces or namespace == VOID_NAMESPACE)

    def _rows_of_changes(self) -> Any:
        layout = self.runs.layout
        tables = [table for namespace, keys in self._cells.items() for table in self._rows_of(namespace, keys)]
        self._cells, self._count = {}, 0
        return joined_rows(layout, tables) if tables else layout.schema(namespace=False, deleted=False).empty_table()

    def _rows_of(self, namespace: str, keys: dict[Any, dict[Any, Any]]) -> Iterator[Any]:
        owners = [key for key, entries in keys.items() for _ in entries]
        names = [name for entries in keys.values() for name in entries]
        values = [value for entries in keys.values() for value in entries.values()]
        if owners:
            yield changed_rows(
                self.runs.layout,
                groups_of(owners, self._key_groups),
                key_columns(self._keys, owners),
                namespace,
                self._kept.write([None if value is GONE else value for value in values]),
                marks(values),
                self._user_keys.to_arrow(names),
            )

    def _some_values(self) -> Iterator[Any]:
        entries = (entries for keys in self._cells.values() for entries in keys.values())
        return (value for some in entries for value in some.values() if value is not GONE)


def _head(run: SortedRun, position: tuple[Any, ...], namespace: str) -> tuple[Any, ...]:
    return (*position, namespace) if run.has_namespaces else position
