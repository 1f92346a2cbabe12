"""Rows of one state in order, in blocks that are read one by one, wherever they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from airflow_provider_statecheck.state.arrow.block import Block


class SortedRun(Protocol):
    """Rows of which each position is there at most once; it never changes, and several threads may read it."""

    @property
    def firsts(self) -> Sequence[tuple[Any, ...]]:
        """Return the position of the first row of each block, ascending."""
        ...

    @property
    def block_key_groups(self) -> Any:
        """Return the key group of the first row of each block, as numpy."""
        ...

    @property
    def block_last_key_groups(self) -> Any:
        """Return the key group of the last row of each block, as numpy."""
        ...

    @property
    def block_rows(self) -> Any:
        """Return how many rows each block has, as numpy."""
        ...

    @property
    def raw_bytes(self) -> int:
        """Return about how large the rows are in memory."""
        ...

    @property
    def deletions(self) -> int:
        """Return how many rows only say that something older is gone."""
        ...

    @property
    def has_namespaces(self) -> bool:
        """Tell whether there is a column of namespaces."""
        ...

    def block(self, number: int) -> Block:
        """Return one block, which is kept for a while."""
        ...

    def tables(self, numbers: Sequence[int]) -> list[Any]:
        """Return blocks as tables, read together; they are not kept."""
        ...
