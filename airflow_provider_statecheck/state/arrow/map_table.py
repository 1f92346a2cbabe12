"""Entries by user key for each key and namespace, in Arrow files: one row for each, so that a change rewrites no map."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.arrow.changes import (
    GONE,
    changed_rows,
    groups_of,
    joined_rows,
    key_columns,
    marks,
)
from airflow_provider_statecheck.state.arrow.layout import NAMESPACE, USER_KEY, VALUE, single
from airflow_provider_statecheck.state.arrow.newest import newest_of_all
from airflow_provider_statecheck.state.arrow.order import order_columns, row_tuples
from airflow_provider_statecheck.state.arrow.sorted_run import SortedRun
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns
from airflow_provider_statecheck.state.arrow.table_core import ReadAhead, TableCore
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

_NONE: dict[Any, Any] = {}
_UNKNOWN = object()


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
