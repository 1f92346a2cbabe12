"""Merging of sorted runs, and the policy that chooses them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from airflow_provider_statecheck.state.arrow.layout import DELETED, StateLayout, order_codes, position_columns
from airflow_provider_statecheck.state.arrow.runs import SortedRun

_WINDOW_ROWS = 1 << 18
_WINDOW_BYTES = 16 << 20
"""How much of all runs together is in memory at once, about."""
_MOST_OF_ONE = 1 << 16


def merge_runs(layout: StateLayout, runs: Sequence[SortedRun], *, keep_deletions: bool) -> Iterator[Any]:
    """
    Return the rows of runs in order as tables; of rows at one position that of the newest run.

    :param runs: The newest first.
    :param keep_deletions: Whether rows stay that say that something is gone, because older runs may have it.
    """
    namespace = any(run.has_namespaces for run in runs)
    deleted = any(run.deletions for run in runs)
    cursors = [_Cursor(run, layout, namespace, deleted, len(runs)) for run in runs]
    while True:
        cursors = [cursor for cursor in cursors if cursor.fill()]
        if not cursors:
            return
        merged = cursors[0].take_all() if len(cursors) == 1 else _merge_window(cursors)
        if deleted and not keep_deletions:
            merged = living(merged)
        if merged.num_rows:
            yield merged


def merge_tables(tables: Sequence[Any]) -> Any:
    """
    Return rows in order; of rows at one position that of the first table.

    :param tables: At least one, with equal columns, each in any order but with each position once.
    """
    import numpy as np
    import pyarrow as pa

    joined = pa.concat_tables(tables).combine_chunks()
    codes = order_codes(position_columns(joined))
    order = np.argsort(codes, kind="stable")
    return joined.take(pa.array(order[_is_first(codes[order])]))


@dataclass(slots=True)
class _Cursor:
    run: SortedRun
    layout: StateLayout
    namespace: bool
    deleted: bool
    count: int
    """Of all cursors."""
    buffer: Any = None
    next_block: int = 0
    per_window: int = field(init=False)

    def __post_init__(self) -> None:
        rows = max(1, int(self.run.block_rows.sum()))
        width = max(1, self.run.raw_bytes // rows)
        wanted = min(_MOST_OF_ONE, _WINDOW_ROWS // self.count, _WINDOW_BYTES // self.count // width)
        self.per_window = max(1, wanted * len(self.run.block_rows) // rows)

    @property
    def is_last(self) -> bool:
        """Tell whether what is in the buffer is the end of the run."""
        return self.next_block >= len(self.run.block_rows)

    def fill(self) -> bool:
        """Read on if the buffer is empty; tell whether there is anything."""
        import pyarrow as pa

        while (self.buffer is None or self.buffer.num_rows == 0) and not self.is_last:
            until = min(len(self.run.block_rows), self.next_block + self.per_window)
            tables = self.run.tables(range(self.next_block, until))
            self.next_block = until
            tables = [self.layout.conform(t, namespace=self.namespace, deleted=self.deleted) for t in tables]
            self.buffer = pa.concat_tables(tables).combine_chunks()
        return self.buffer is not None and self.buffer.num_rows > 0

    def take_all(self) -> Any:
        """Return the buffer and leave it empty."""
        taken, self.buffer = self.buffer, None
        return taken


def _merge_window(cursors: list[_Cursor]) -> Any:
    """Return the merged rows up to where the first of the buffers ends that is not the end of its run."""
    import numpy as np
    import pyarrow as pa

    joined = pa.concat_tables([cursor.buffer for cursor in cursors]).combine_chunks()
    codes = order_codes(position_columns(joined))
    ends = np.cumsum([cursor.buffer.num_rows for cursor in cursors])
    starts = np.concatenate([[0], ends[:-1]])
    bounds = [codes[end - 1] for cursor, end in zip(cursors, ends, strict=True) if not cursor.is_last]
    picked = []
    for cursor, start, end in zip(cursors, starts, ends, strict=True):
        count = int(np.searchsorted(codes[start:end], min(bounds), "right")) if bounds else int(end - start)
        picked.append(np.arange(start, start + count))
        cursor.buffer = cursor.buffer.slice(count)
    rows = np.concatenate(picked)
    order = np.argsort(codes[rows], kind="stable")
    chosen = rows[order]
    return joined.take(pa.array(chosen[_is_first(codes[chosen])]))


def _is_first(codes: Any) -> Any:
    import numpy as np

    first = np.ones(len(codes), bool)
    first[1:] = codes[1:] != codes[:-1]
    return first


def living(table: Any) -> Any:
    """Return rows without those that only say that something is gone."""
    import pyarrow.compute as pc

    return table.filter(pc.invert(table.column(DELETED))).drop_columns([DELETED])


_GROWTH = 1.0
_MOST_SPACE = 2.0


class Sized(Protocol):
    """What is known of a run without reading it."""

    @property
    def raw_bytes(self) -> int:
        """Return how large its rows are."""
        ...

    @property
    def deletions(self) -> int:
        """Return how many of its rows only say that something older is gone."""
        ...

    @property
    def num_rows(self) -> int:
        """Return how many rows it has."""
        ...


def runs_to_merge(new_bytes: int, new_deletions: int, runs: Sequence[Sized]) -> int:
    """
    Return how many of the newest runs are written again together with what is new.

    A run takes part if what is new, and the runs that take part already, are as large as it is: so there are at most about
    as many runs as the logarithm of the state, and a row is written again only a few times. All take part if they would
    otherwise be more than twice the state that they stand for.

    :param new_bytes: How large the new rows are.
    :param new_deletions: How many of them only say that something is gone.
    :param runs: The newest first.
    """
    merged, count = new_bytes, 0
    for run in runs:
        if run.raw_bytes > _GROWTH * merged:
            break
        merged, count = merged + run.raw_bytes, count + 1
    return len(runs) if _takes_too_much(new_bytes, new_deletions, runs) else count


def _takes_too_much(new_bytes: int, new_deletions: int, runs: Sequence[Sized]) -> bool:
    if not runs:
        return False
    oldest = runs[-1]
    gone = new_deletions + sum(run.deletions for run in runs[:-1])
    living = oldest.raw_bytes * max(0.0, 1 - gone / max(1, oldest.num_rows))
    return new_bytes + sum(run.raw_bytes for run in runs) > _MOST_SPACE * living
