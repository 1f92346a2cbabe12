"""Some rows of state in order, and where in them a key is."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cached_property
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
