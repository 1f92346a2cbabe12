"""Rows of state in order that are in memory."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.state.arrow.block import Block
from airflow_provider_statecheck.state.arrow.layout import DELETED, KEY_GROUP, NAMESPACE, position_columns
from airflow_provider_statecheck.state.arrow.order import row_tuples

_ROWS = 1 << 16


class MemoryRun:
    """
    One or more tables, each behind the one before.

    :param tables: In order, without empty ones.
    """

    def __init__(self, tables: Sequence[Any]) -> None:
        self.tables_in_order = tuple(tables)
        pieces = (t.slice(start, _ROWS) for t in tables for start in range(0, t.num_rows, _ROWS))
        self._blocks = [Block(piece) for piece in pieces]
        self.raw_bytes = sum(block.nbytes for block in self._blocks)
        self.deletions = sum(_deletions(block.table) for block in self._blocks)
        self.has_namespaces = any(NAMESPACE in block.table.schema.names for block in self._blocks)

    @cached_property
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        """Return the position of the first row of each block."""
        return [row_tuples(position_columns(block.table.slice(0, 1)))[0] for block in self._blocks]

    @cached_property
    def block_key_groups(self) -> Any:
        """Return the key group of the first row of each block."""
        import numpy as np

        return np.array([_key_group(block.table, 0) for block in self._blocks], np.int32)

    @cached_property
    def block_last_key_groups(self) -> Any:
        """Return the key group of the last row of each block."""
        import numpy as np

        return np.array([_key_group(block.table, -1) for block in self._blocks], np.int32)

    @cached_property
    def block_rows(self) -> Any:
        """Return how many rows each block has."""
        import numpy as np

        return np.array([block.table.num_rows for block in self._blocks], np.int64)

    def block(self, number: int) -> Block:
        """Return one block."""
        return self._blocks[number]

    def tables(self, numbers: Sequence[int]) -> list[Any]:
        """Return blocks as tables."""
        return [self._blocks[number].table for number in numbers]


def _key_group(table: Any, row: int) -> int:
    return int(table.column(KEY_GROUP)[row].as_py())


def _deletions(table: Any) -> int:
    import pyarrow.compute as pc

    return pc.sum(table.column(DELETED)).as_py() or 0 if DELETED in table.schema.names else 0
