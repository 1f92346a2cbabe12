"""Blocks of sorted rows, and their LRU cache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from functools import cached_property
from threading import Lock
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, VALUE, position_columns, single

_BLOCK_OVERHEAD = 1024
BlockKey = tuple[str, int, bool]
"""Path of the file, offset of the block, and whether the block has a namespace column."""


class Block:
    """
    Sorted rows in memory.

    :param table: Arrow table or record batch.
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
        """Return the value column."""
        return single(self.table.column(VALUE))

    def find(self, position: tuple[Any, ...]) -> tuple[int, int]:
        """Return the range of rows whose sort key is equal to, or starts with, a position."""
        low, high = 0, self.table.num_rows
        for column, wanted in zip(self._positions, position, strict=False):
            left = _bisect_left(column, wanted, low, high)
            high = _bisect_right(column, wanted, left, high)
            low = left
            if low >= high:
                break
        return low, high

    def is_deleted(self, row: int) -> bool:
        """Return whether a row is a tombstone."""
        return self._deleted is not None and bool(self._deleted[row].as_py())


class BlockCache:
    """
    LRU cache of blocks, safe for threads.

    :param capacity_bytes: Maximum size of all cached blocks in bytes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        self._capacity = capacity_bytes
        self._blocks: OrderedDict[BlockKey, Block] = OrderedDict()
        self._lock = Lock()
        self.nbytes = 0

    def get(self, key: BlockKey) -> Block | None:
        """Return a cached block, or ``None``."""
        with self._lock:
            block = self._blocks.get(key)
            if block is not None:
                self._blocks.move_to_end(key)
            return block

    def put(self, key: BlockKey, block: Block) -> None:
        """Cache a block, unless it exceeds the capacity."""
        size = block.nbytes + _BLOCK_OVERHEAD
        if size > self._capacity:
            return
        with self._lock:
            if key not in self._blocks:
                self._blocks[key] = block
                self.nbytes += size
            while self.nbytes > self._capacity:
                self.nbytes -= self._blocks.popitem(last=False)[1].nbytes + _BLOCK_OVERHEAD

    def clear(self) -> None:
        """Remove all blocks."""
        with self._lock:
            self._blocks.clear()
            self.nbytes = 0


class _ArrowSequence:
    """Arrow array as a sequence for ``bisect``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, row: int) -> Any:
        return self._array[row].as_py()

    def __len__(self) -> int:
        return len(self._array)


def _searchable(column: Any) -> Any:
    import pyarrow as pa

    return column.to_numpy(zero_copy_only=False) if pa.types.is_integer(column.type) else _ArrowSequence(column)


def _bisect_left(column: Any, wanted: Any, low: int, high: int) -> int:
    if isinstance(column, _ArrowSequence):
        return bisect_left(column, wanted, low, high)
    return low + int(column[low:high].searchsorted(wanted, "left"))


def _bisect_right(column: Any, wanted: Any, low: int, high: int) -> int:
    if isinstance(column, _ArrowSequence):
        return bisect_right(column, wanted, low, high)
    return low + int(column[low:high].searchsorted(wanted, "right"))
