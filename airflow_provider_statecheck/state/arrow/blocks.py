"""Blocks of sorted rows, and their LRU cache."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.state.arrow.layout import DELETED, VALUE, position_columns, single
from airflow_provider_statecheck.state.lru_cache import LruCache

_BLOCK_OVERHEAD = 4096
"""Size of the objects of a cached block besides its columns, in bytes."""
BlockKey = tuple[Any, ...]
"""Identity of a block: the file and the offset in it, and everything that determines the columns and types of the rows."""


class Block:
    """
    Sorted rows in memory.

    :param table: Arrow table or record batch.
    """

    def __init__(self, table: Any) -> None:
        self.table = table
        self.nbytes: int = table.nbytes

    @cached_property
    def _positions(self) -> tuple[Sequence[Any], ...]:
        return tuple(_searchable(column) for column in self._order_columns)

    @cached_property
    def _order_columns(self) -> list[Any]:
        return position_columns(self.table)

    @cached_property
    def _deleted(self) -> Any:
        names = self.table.schema.names
        return single(self.table.column(DELETED)) if DELETED in names else None

    @cached_property
    def values(self) -> Any:
        """Return the value column."""
        return single(self.table.column(VALUE))

    @property
    def cached_nbytes(self) -> int:
        """Return the size in a cache in bytes, with the order columns that are computed for searches."""
        shared = {_address(single(column)) for column in self.table.columns}
        computed = [int(column.nbytes) for column in self._order_columns if _address(column) not in shared]
        return self.nbytes + sum(computed) + _BLOCK_OVERHEAD

    def find(self, position: tuple[Any, ...]) -> tuple[int, int]:
        """Return the range of rows whose sort key is equal to, or starts with, a position."""
        low, high = 0, self.table.num_rows
        for column, wanted in zip(self._positions, position, strict=False):
            low = bisect_left(column, wanted, low, high)
            if low == high or column[low] != wanted:
                return low, low
            if column[high - 1] != wanted:
                high = bisect_right(column, wanted, low, high)
        return low, high

    def is_deleted(self, row: int) -> bool:
        """Return whether a row is a tombstone."""
        return self._deleted is not None and bool(self._deleted[row].as_py())


class BlockCache(LruCache[BlockKey, Block]):
    """
    LRU cache of blocks, safe for threads.

    :param capacity_bytes: Maximum size of all cached blocks in bytes.
    """

    def __init__(self, capacity_bytes: int) -> None:
        super().__init__(capacity_bytes, lambda block: block.cached_nbytes)


class _ArrowSequence:
    """Arrow array as a sequence for ``bisect``."""

    def __init__(self, array: Any) -> None:
        self._array = array

    def __getitem__(self, row: int) -> Any:
        return self._array[row].as_py()

    def __len__(self) -> int:
        return len(self._array)


def _address(column: Any) -> Any:
    last = column.buffers()[-1]
    return None if last is None else last.address


def _searchable(column: Any) -> Any:
    import pyarrow as pa

    # The items of a memory view are Python integers, which bisect compares without conversion.
    return memoryview(column.to_numpy()) if pa.types.is_integer(column.type) else _ArrowSequence(column)
