"""Cache of the state server: opened states, blocks of their files, and open files."""

from __future__ import annotations

from collections.abc import Callable

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.queryable.locations import KvStateAddress
from airflow_provider_statecheck.queryable.opened_state import OpenedState
from airflow_provider_statecheck.state.arrow.blocks import BlockCache
from airflow_provider_statecheck.state.arrow.part_files import LocalFiles
from airflow_provider_statecheck.state.lru_cache import LruCache

_INDEX_BYTES = 64 << 20
_BLOCK_BYTES = 256 << 20
_OPEN_FILES = 32
"""The storage of a deleted file is freed only when the file is closed, so few files stay open."""


class StateCache:
    """
    Opened states and blocks of all jobs, safe for threads. What was used least recently is removed first.

    A file that several checkpoints share has its blocks in the cache once.

    :param index_bytes: Maximum size of the opened states in bytes, by default 64 MiB.
    :param block_bytes: Maximum size of the blocks in bytes, by default 256 MiB.
    :raises InvalidConfigurationError: for a size below 0.
    """

    def __init__(self, index_bytes: int = _INDEX_BYTES, block_bytes: int = _BLOCK_BYTES) -> None:
        if index_bytes < 0 or block_bytes < 0:
            raise InvalidConfigurationError(
                f"Expected sizes of 0 bytes or more, found index_bytes={index_bytes} and block_bytes={block_bytes}."
            )
        self.blocks = BlockCache(block_bytes)
        self.files = LocalFiles(_OPEN_FILES)
        self.states: LruCache[tuple[str, str], OpenedState] = LruCache(index_bytes, lambda state: state.nbytes)

    def state_at(self, address: KvStateAddress, open_state: Callable[[], OpenedState]) -> OpenedState:
        """
        Return the opened state of an address.

        :param open_state: Opens the state if it is not cached.
        """
        key = (address.pointer, address.kv_state_id)
        found = self.states.get_or_load(key, open_state)
        # A job that was removed and runs again writes other checkpoints at the same pointers.
        if not found.serves(address.content):
            found = open_state()
            self.states.put(key, found)
        return found

    def clear(self) -> None:
        """Remove everything and close the files."""
        self.states.clear()
        self.blocks.clear()
        self.files.close()
