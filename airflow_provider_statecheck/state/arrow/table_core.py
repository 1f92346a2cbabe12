"""What tables of values and tables of maps have in common: changes in memory above runs, and keys that were read ahead."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.state.arrow.block import Block
from airflow_provider_statecheck.state.arrow.changes import key_columns
from airflow_provider_statecheck.state.arrow.layout import NAMESPACE, single
from airflow_provider_statecheck.state.arrow.lookup import blocks_at
from airflow_provider_statecheck.state.arrow.order import order_columns, row_tuples
from airflow_provider_statecheck.state.arrow.owners import count_owners, distinct_heads
from airflow_provider_statecheck.state.arrow.sorted_run import SortedRun
from airflow_provider_statecheck.state.arrow.state_runs import StateRuns
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

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
