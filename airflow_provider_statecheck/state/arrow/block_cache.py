"""Keeps the blocks that single keys read last."""

from __future__ import annotations

from collections import OrderedDict
from threading import Lock

from airflow_provider_statecheck.state.arrow.block import Block

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
