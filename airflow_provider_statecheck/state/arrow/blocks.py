"""Blocks of sorted rows, and their cache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import cached_property
from threading import Lock
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, VALUE, position_columns, single


class Block:
    """
    Rows in memory.

    :param table: A table or record batch in order.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self.nbytes: int = table.nbytes

    @cached_property
    def _positions(self) -> tuple[Any, ...]:
        return tuple(_searchable(column) for column in position_columns(self.table))

    @cached_property
    def _deleted(self) -> Any:
        names = self.table.schema.names
        return single(self.table.column(DELETED)) if DELETED in names else None

    @cached_property
    def values(self) -> Any:
        """Return the column of values."""
        return single(self.table.column(VALUE))

    def find(self, position: tuple[Any, ...]) -> tuple[int, int]:
        """Return from where to before where rows are at a position, or begin with it if it is a shorter one."""
        low, high = 0, self.table.num_rows
        for column, wanted in zip(self._positions, position, strict=False):
            left = _left(column, wanted, low, high)
            high = _right(column, wanted, left, high)
            low = left
            if low >= high:
                break
        return low, high

    def is_deleted(self, row: int) -> bool:
        """Tell whether a row only says that something older is gone."""
        return self._deleted is not None and bool(self._deleted[row].as_py())


class _Texts:
    """An Arrow array as a sequence for ``bisect``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, row: int) -> Any:
        return self._array[row].as_py()

    def __len__(self) -> int:
        return len(self._array)


def _searchable(column: Any) -> Any:
    import pyarrow as pa

    return column.to_numpy(zero_copy_only=False) if pa.types.is_integer(column.type) else _Texts(column)


def _left(column: Any, wanted: Any, low: int, high: int) -> int:
    if isinstance(column, _Texts):
        return bisect_left(column, wanted, low, high)
    return low + int(column[low:high].searchsorted(wanted, "left"))


def _right(column: Any, wanted: Any, low: int, high: int) -> int:
    if isinstance(column, _Texts):
        return bisect_right(column, wanted, low, high)
    return low + int(column[low:high].searchsorted(wanted, "right"))


_OVERHEAD = 1024

Place = tuple[str, int, bool]
"""The file, where the block begins in it, and whether it has a column of namespaces."""


class BlockCache:
    """
    Blocks by place; the one that was used least lately goes first.

    :param capacity_bytes: How large all of them may be together.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._blocks: OrderedDict[Place, Block] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0

    def get(self, place: Place) -> Block | None:
        """Return a block, if it is still there."""
        with self._lock:
            block = self._blocks.get(place)
            if block is not None:
                self._blocks.move_to_end(place)
            return block

    def put(self, place: Place, block: Block) -> None:
        """Keep a block, unless it is larger than all that may be kept."""
        size = block.nbytes + _OVERHEAD
        if size > self._capacity:
            return
        with self._lock:
            if place not in self._blocks:
                self._blocks[place] = block
                self.nbytes += size
            while self.nbytes > self._capacity:
                self.nbytes -= self._blocks.popitem(last=False)[1].nbytes + _OVERHEAD

    def clear(self) -> None:
        """Forget all blocks."""
        with self._lock:
            self._blocks.clear()
            self.nbytes = 0
