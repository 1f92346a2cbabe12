"""Brings the rows of a subtask into the order of their key groups, within a limit of memory."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.spark.snapshots.executor_files import scratch_directory

DEFAULT_BUFFER_BYTES = 64 * 1024 * 1024
DEFAULT_CHUNK_ROWS = 64 * 1024


class KeyGroupSorter:
    """
    Collects record batches and gives them back as tables of whole key groups, in ascending order.

    What does not fit is written, sorted, to local files. One key group has to fit into memory.

    :param group_column: The column with the key group.
    :param order: The columns by which the rows of a table are ordered, the key group first.
    :param buffer_bytes: How much is held in memory.
    :param chunk_rows: How many rows a table has at least, unless it is the last.
    """

    def __init__(
        self,
        group_column: str,
        order: tuple[str, ...],
        *,
        buffer_bytes: int = DEFAULT_BUFFER_BYTES,
        chunk_rows: int = DEFAULT_CHUNK_ROWS,
    ) -> None:
        self._group = group_column
        self._order = [(name, "ascending") for name in order]
        self._buffer_bytes = buffer_bytes
        self._chunk_rows = chunk_rows

    def tables(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Read all batches, then give the tables one by one; nothing is given for no rows."""
        with scratch_directory() as folder:
            runs: list[_Run] = []
            buffered: list[Any] = []
            size = 0
            for batch in batches:
                buffered.append(batch)
                size += batch.nbytes
                if size >= self._buffer_bytes:
                    runs.append(_SpilledRun(self._sorted(buffered), self._group, folder))
                    buffered, size = [], 0
            if buffered:
                runs.append(_MemoryRun(self._sorted(buffered), self._group))
            yield from self._chunks(runs)

    def _sorted(self, batches: list[Any]) -> Any:
        import pyarrow as pa

        table = pa.Table.from_batches(batches).combine_chunks()
        return table.sort_by(self._order).combine_chunks()

    def _chunks(self, runs: list[_Run]) -> Iterator[Any]:
        groups = sorted({group for run in runs for group in run.rows_by_group})
        chunk: list[int] = []
        rows = 0
        for group in groups:
            chunk.append(group)
            rows += sum(run.rows_by_group.get(group, 0) for run in runs)
            if rows >= self._chunk_rows:
                yield self._merged(runs, chunk)
                chunk, rows = [], 0
        if chunk:
            yield self._merged(runs, chunk)

    def _merged(self, runs: list[_Run], groups: list[int]) -> Any:
        import pyarrow as pa

        parts = [run.read(groups[0], groups[-1]) for run in runs]
        if len(parts) == 1:
            return parts[0]
        return pa.concat_tables(parts).sort_by(self._order).combine_chunks()


class _MemoryRun:
    """Sorted rows in memory."""

    def __init__(self, table: Any, group_column: str) -> None:
        import numpy as np

        groups = table.column(group_column).to_numpy()
        values, starts = np.unique(groups, return_index=True)
        self._starts = [*starts.tolist(), table.num_rows]
        self._groups = values.tolist()
        self._table = table
        self.rows_by_group = {g: self._starts[i + 1] - self._starts[i] for i, g in enumerate(self._groups)}

    def read(self, first: int, last: int) -> Any:
        """Return the rows of some key groups that follow each other."""
        from bisect import bisect_left, bisect_right

        begin = self._starts[bisect_left(self._groups, first)]
        return self._table.slice(begin, self._starts[bisect_right(self._groups, last)] - begin)


class _SpilledRun(_MemoryRun):
    """Sorted rows in a local file that is mapped into memory, so that only what is read takes room."""

    def __init__(self, table: Any, group_column: str, folder: str) -> None:
        import pyarrow as pa

        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as file:
            path = Path(file.name)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        super().__init__(pa.ipc.open_file(pa.memory_map(str(path))).read_all().combine_chunks(), group_column)


_Run = _MemoryRun
