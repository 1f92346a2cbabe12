"""Merge of sorted runs, and the compaction policy that selects them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, StateLayout, order_codes, position_columns
from airflow_provider_statecheck.state.arrow.runs import SortedRun

_WINDOW_ROWS = 1 << 18
_WINDOW_BYTES = 16 << 20
"""Approximate size of the rows of all runs in memory during a merge."""
_MAX_ROWS_PER_RUN = 1 << 16
_SIZE_RATIO = 1.0
_MAX_SPACE_AMPLIFICATION = 2.0


def merge_runs(layout: StateLayout, runs: Sequence[SortedRun], *, keep_deletions: bool) -> Iterator[Any]:
    """
    Merge runs into sorted tables. Of rows with equal sort keys, the row of the newest run wins.

    :param runs: Runs, newest first.
    :param keep_deletions: Whether to keep tombstones, because older runs may contain the rows that they delete.
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
            merged = without_tombstones(merged)
        if merged.num_rows:
            yield merged


def merge_tables(tables: Sequence[Any]) -> Any:
    """
    Merge tables into one sorted table. Of rows with equal sort keys, the row of the first table wins.

    :param tables: At least one table. All have equal columns, in any row order, and distinct sort keys.
    """
    import numpy as np
    import pyarrow as pa

    joined = pa.concat_tables(tables).combine_chunks()
    codes = order_codes(position_columns(joined))
    order = np.argsort(codes, kind="stable")
    return joined.take(pa.array(order[_is_first(codes[order])]))


def without_tombstones(table: Any) -> Any:
    """Return the rows without tombstones."""
    import pyarrow.compute as pc

    return table.filter(pc.invert(table.column(DELETED))).drop_columns([DELETED])


def runs_to_merge(new_bytes: int, new_deletions: int, runs: Sequence[SortedRun]) -> int:
    """
    Return the number of newest runs to merge with the new rows.

    Runs are merged from the newest on while each is at most as large as all newer rows together. The number of runs
    grows with the logarithm of the state, and so does the number of rewrites of a row. All runs are merged if they
    would otherwise take more than twice the size of the live state.

    :param new_bytes: Size of the new rows in bytes.
    :param new_deletions: Number of tombstones among them.
    :param runs: Existing runs, newest first.
    """
    merged, count = new_bytes, 0
    for run in runs:
        if run.raw_bytes > _SIZE_RATIO * merged:
            break
        merged, count = merged + run.raw_bytes, count + 1
    return len(runs) if _exceeds_space_amplification(new_bytes, new_deletions, runs) else count


def _exceeds_space_amplification(new_bytes: int, new_deletions: int, runs: Sequence[SortedRun]) -> bool:
    if not runs:
        return False
    oldest = runs[-1]
    deletions = new_deletions + sum(run.deletions for run in runs[:-1])
    live_bytes = oldest.raw_bytes * max(0.0, 1 - deletions / max(1, oldest.num_rows))
    return new_bytes + sum(run.raw_bytes for run in runs) > _MAX_SPACE_AMPLIFICATION * live_bytes


@dataclass(slots=True)
class _Cursor:
    run: SortedRun
    layout: StateLayout
    namespace: bool
    deleted: bool
    count: int
    """Number of cursors in the merge."""
    buffer: Any = None
    next_block: int = 0
    per_window: int = field(init=False)

    def __post_init__(self) -> None:
        rows = max(1, self.run.num_rows)
        width = max(1, self.run.raw_bytes // rows)
        wanted = min(_MAX_ROWS_PER_RUN, _WINDOW_ROWS // self.count, _WINDOW_BYTES // self.count // width)
        self.per_window = max(1, wanted * len(self.run.block_rows) // rows)

    @property
    def is_last(self) -> bool:
        """Return whether the buffer contains the end of the run."""
        return self.next_block >= len(self.run.block_rows)

    def fill(self) -> bool:
        """Read the next blocks if the buffer is empty, and return whether it has rows."""
        import pyarrow as pa

        while (self.buffer is None or self.buffer.num_rows == 0) and not self.is_last:
            until = min(len(self.run.block_rows), self.next_block + self.per_window)
            tables = self.run.tables(range(self.next_block, until))
            self.next_block = until
            tables = [self.layout.conform(t, namespace=self.namespace, deleted=self.deleted) for t in tables]
            self.buffer = pa.concat_tables(tables).combine_chunks()
        return self.buffer is not None and self.buffer.num_rows > 0

    def take_all(self) -> Any:
        """Return the buffer and empty it."""
        taken, self.buffer = self.buffer, None
        return taken


def _merge_window(cursors: list[_Cursor]) -> Any:
    """Merge the buffers up to the smallest end of a buffer that is not the end of its run."""
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
