"""Finds many keys at once in a run: only blocks that may have one are read, and none of the keys is looked at in Python."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, StateLayout, single
from airflow_provider_statecheck.state.arrow.order import order_columns, row_tuples
from airflow_provider_statecheck.state.arrow.sorted_run import SortedRun
from airflow_provider_statecheck.state.keys.key_batch import KeyBatch

_CHUNK_BLOCKS = 64
_DENSE = 2
"""From so many keys for each block on, it is not worth looking which of the blocks have one."""


@dataclass(frozen=True, slots=True)
class Found:
    """Rows that belong to keys."""

    rows: Any
    """A table."""
    keys: Any
    """For each row the number of its key, as numpy."""


def find_rows(layout: StateLayout, run: SortedRun, keys: KeyBatch) -> Iterator[Found]:
    """Return the rows of a run that belong to some of the keys, in any namespace, with deletion marks."""
    import numpy as np
    import pyarrow as pa

    groups = single(keys.key_groups).to_numpy()
    blocks = _touched(run, keys, groups)
    for at in range(0, len(blocks), _CHUNK_BLOCKS):
        chosen = blocks[at : at + _CHUNK_BLOCKS]
        start = int(np.searchsorted(groups, run.block_key_groups[chosen[0]], "left"))
        end = int(np.searchsorted(groups, run.block_last_key_groups[chosen[-1]], "right"))
        table = _blocks_as_one(layout, run, chosen)
        wanted = tuple(single(column).slice(start, end - start) for column in keys.columns)
        numbers = _numbers_of([single(table.column(name)) for name in layout.key_names], wanted)
        rows = np.flatnonzero(numbers >= 0)
        if len(rows):
            yield Found(table.take(pa.array(rows)), numbers[rows] + start)


def _blocks_as_one(layout: StateLayout, run: SortedRun, numbers: Sequence[int]) -> Any:
    import pyarrow as pa

    tables = run.tables(numbers)
    deleted = any(DELETED in table.schema.names for table in tables)
    conformed = [layout.conform(table, namespace=run.has_namespaces, deleted=deleted) for table in tables]
    return pa.concat_tables(conformed).combine_chunks()


def _touched(run: SortedRun, keys: KeyBatch, groups: Any) -> list[int]:
    """Return the blocks that may have one of the keys."""
    import numpy as np

    first, last = run.block_key_groups, run.block_last_key_groups
    counts = np.searchsorted(groups, last, "right") - np.searchsorted(groups, first, "left")
    candidates = np.flatnonzero(counts > 0)
    if len(groups) >= _DENSE * len(candidates):
        return candidates.tolist()
    touched: set[int] = set()
    for position in positions_of(keys):
        touched.update(blocks_at(run, position))
    return sorted(touched)


def positions_of(keys: KeyBatch) -> list[tuple[Any, ...]]:
    """Return where rows of keys begin: tuples that Python compares as rows are ordered."""
    columns = [keys.key_groups, *keys.columns]
    return row_tuples([part for column in columns for part in order_columns(single(column))])


def blocks_at(run: SortedRun, position: tuple[Any, ...]) -> range:
    """Return the blocks in which there may be rows whose position is, or begins with, a given one."""
    firsts, length = run.firsts, len(position)
    start = max(0, bisect_right(firsts, position) - 1)
    if run.block_last_key_groups[start] < position[0]:
        start += 1
    return range(start, bisect_right(firsts, position, lo=start, key=lambda first: first[:length]))


def _numbers_of(columns: Sequence[Any], wanted: Sequence[Any]) -> Any:
    """Return for each row the number of the wanted key that it has, -1 for none; the wanted ones are distinct."""
    import numpy as np

    if len(columns) == 1:
        return _indices(columns[0], wanted[0])
    rows, keys = np.zeros(len(columns[0]), np.int64), np.zeros(len(wanted[0]), np.int64)
    for column, values in zip(columns, wanted, strict=True):
        distinct = values.unique()
        codes = np.where(rows < 0, -1, _indices(column, distinct))
        rows = np.where(codes < 0, -1, rows * len(distinct) + codes)
        keys = keys * len(distinct) + _indices(values, distinct)
        rows, keys = _renumbered(rows, keys)
    order = np.argsort(keys)
    return np.where(rows < 0, -1, order[rows])


def _renumbered(rows: Any, keys: Any) -> tuple[Any, Any]:
    """Return codes from 0 on in place of large ones; rows that no key has get -1."""
    import numpy as np

    distinct, codes = np.unique(keys, return_inverse=True)
    if len(distinct) == 0:
        return np.full(len(rows), -1), codes
    at = np.minimum(np.searchsorted(distinct, rows), len(distinct) - 1)
    return np.where(distinct[at] == rows, at, -1), codes


def _indices(column: Any, values: Any) -> Any:
    import pyarrow.compute as pc

    found = pc.index_in(column, value_set=values)
    return found.fill_null(-1).to_numpy(zero_copy_only=False).astype("int64")
