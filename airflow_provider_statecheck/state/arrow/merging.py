"""Merge of sorted runs, a window of their rows at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from airflow_provider_statecheck.lazy import np, pa
from airflow_provider_statecheck.state.arrow.layout import StateLayout, order_codes, position_columns
from airflow_provider_statecheck.state.arrow.row_versions import current_versions, without_tombstones
from airflow_provider_statecheck.state.arrow.runs import SortedRun

_WINDOW_ROWS = 1 << 18
_WINDOW_BYTES = 16 << 20
"""Approximate size of the rows of all runs in memory during a merge."""
_MAX_ROWS_PER_RUN = 1 << 16


def merge_runs(layout: StateLayout, runs: Sequence[SortedRun], *, keep_deletions: bool) -> Iterator[Any]:
    """
    Merge runs into sorted tables with one row for each sort key, see :func:`current_versions`.

    Combined rows stay partial unless one of them was not, because older runs may contain what they add to.

    :param runs: Runs, newest first.
    :param keep_deletions: Whether to keep tombstones, because older runs may contain the rows that they delete.
    """
    namespace = any(run.has_namespaces for run in runs)
    deleted = any(run.deletions for run in runs)
    conform = partial(layout.conform, namespace=namespace, deleted=deleted, partial=any(run.partials for run in runs))
    cursors = [_Cursor(run, conform, len(runs)) for run in runs]
    while True:
        cursors = [cursor for cursor in cursors if cursor.fill()]
        if not cursors:
            return
        merged = cursors[0].take_all() if len(cursors) == 1 else _merge_window(layout, cursors)
        if deleted and not keep_deletions:
            merged = without_tombstones(merged)
        if merged.num_rows:
            yield merged


@dataclass(slots=True)
class _Cursor:
    run: SortedRun
    conform: Callable[[Any], Any]
    """Returns rows with the columns of all runs."""
    count: int
    """Number of cursors in the merge."""
    buffer: Any = None
    next_block: int = 0
    per_window: int = field(init=False)
    """Number of blocks that are read at a time."""
    least_rows: int = field(init=False)
    """Number of rows below which the buffer is filled. If only empty ones were, windows would become short."""

    def __post_init__(self) -> None:
        rows = max(1, self.run.num_rows)
        width = max(1, self.run.raw_bytes // rows)
        wanted = min(_MAX_ROWS_PER_RUN, _WINDOW_ROWS // self.count, _WINDOW_BYTES // self.count // width)
        self.per_window = max(1, wanted * len(self.run.block_rows) // rows)
        self.least_rows = max(1, wanted // 2)

    @property
    def is_last(self) -> bool:
        """Whether the buffer contains the end of the run."""
        return self.next_block >= len(self.run.block_rows)

    def fill(self) -> bool:
        """Read the next blocks if the buffer has few rows, and return whether it has any."""
        while self._rows < self.least_rows and not self.is_last:
            until = min(len(self.run.block_rows), self.next_block + self.per_window)
            tables = map(self.conform, self.run.tables(range(self.next_block, until)))
            self.next_block = until
            self.buffer = pa.concat_tables([*([self.buffer] if self._rows else []), *tables]).combine_chunks()
        return self._rows > 0

    @property
    def _rows(self) -> int:
        return 0 if self.buffer is None else int(self.buffer.num_rows)

    def take_all(self) -> Any:
        """Return the buffer and empty it."""
        taken, self.buffer = self.buffer, None
        return taken


def _merge_window(layout: StateLayout, cursors: list[_Cursor]) -> Any:
    """Merge the buffers up to the smallest end of a buffer that is not the end of its run."""
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
    chosen = rows[np.argsort(codes[rows], kind="stable")]
    return current_versions(layout, joined, chosen, codes[chosen])
