"""One value for each key and namespace, in Arrow files."""

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
from airflow_provider_statecheck.state.arrow.layout import NAMESPACE, VALUE, single
from airflow_provider_statecheck.state.arrow.lookup import Found
from airflow_provider_statecheck.state.arrow.merging import living
from airflow_provider_statecheck.state.arrow.newest import newest_of_all, newest_of_void
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns
from airflow_provider_statecheck.state.arrow.table_core import ReadAhead, TableCore
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer

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
