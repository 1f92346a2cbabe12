"""State of one subtask opened for look-ups of keys, and the cache of a server of state."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.cached_reads import LruCache, about_to_wait
from airflow_provider_statecheck.checkpoint.states.handles import ByteStreamStateHandle, streams_of_handle
from airflow_provider_statecheck.exceptions import (
    InvalidConfigurationError,
)
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.queryable.locations import KvStateAddress
from airflow_provider_statecheck.queryable.queries import ABSENT, ValueLimit
from airflow_provider_statecheck.state.arrow.layout import Block, BlockCache, single
from airflow_provider_statecheck.state.arrow.row_versions import merge_tables, without_tombstones
from airflow_provider_statecheck.state.arrow.run_files import LocalFiles, RunBytes
from airflow_provider_statecheck.state.arrow.runs import (
    FileRun,
    FoundRows,
    PositionEncoder,
    Reading,
    Target,
    current_rows,
    rows_of_each,
)
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.state_reader import (
    MAP_KEY,
    MAP_VALUE,
    StateReader,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

KeyInGroup = tuple[Any, int]
"""Key in normal form, and its key group."""
_KEYS_AT_ONCE = 64
"""Keys whose blocks are in memory at once, besides those in the cache."""
BYTES_AT_ONCE = 64 << 20
"""Approximate size of the blocks of several keys that are in memory at once, in bytes."""
_SHORT_BYTES = 16 << 10
"""Size of a value up to which its conversion takes no longer than the way to a thread and back."""
_STATE_BYTES = 32_768
"""Approximate size of an opened state without its indexes, in bytes."""
_HANDLE_BYTES = 1024
"""Approximate size of the handle of a file in memory, in bytes."""


class OpenedState:
    """
    Indexes of the files of one keyed state, and look-ups with them. Safe for threads.

    Values are those of the restored serializer, which needs no classes of the user.

    :param content: Schema and handles of the state, restricted to one subtask.
    :param cache: Cache of blocks.
    :raises CheckpointNotFoundError: if a file is missing.
    :raises CorruptStateError: if a file is corrupt.
    :raises IncompatibleCheckpointError: if a newer version wrote a file.
    :raises LocationNotAllowedError: if a file is not in an allowed location.
    :raises UnsupportedStateError: if this release does not support a type of the state.
    :raises StorageError: if the storage fails.
    """

    def __init__(self, content: StateContent, storage: CheckpointStorage, files: RunBytes, cache: BlockCache) -> None:
        self.content = content
        reader = StateReader(storage, content, namespaces=True)
        self._columns = reader.columns
        self._state = self._columns.state
        self._read_elements = self._state.element.from_arrow
        self._is_short = _has_fixed_width(self._state.cell_type)
        self._positions = PositionEncoder(self._columns.keys, self._state.key_serializer)
        self._oldest_ms = None if self._state.ttl is None else content.taken_at_ms - self._state.ttl.ttl_ms
        self._runs = tuple(_runs(reader, files, cache))
        self.nbytes = _STATE_BYTES + _size(content) + sum(run.index_bytes for run in self._runs)
        """Approximate size in memory in bytes, without blocks."""

    def serves(self, content: StateContent) -> bool:
        """Return whether this is the state of a content."""
        if content is not self.content and content == self.content:
            # The next comparison is one of identity.
            self.content = content
        return content is self.content

    def read(
        self, keys: Sequence[KeyInGroup], namespace: str, user_key: Any = None, limit: ValueLimit | None = None
    ) -> list[Any]:
        """
        Return the unexpired value of each key, :data:`ABSENT` for a key without one.

        :param user_key: Key of one entry of a map state; ``None`` for all entries, as a dictionary.
        :param limit: Limit that counts the values; by default they may have any size.
        :raises RequestLimitError: if the values are above the limit.
        :raises InvalidConfigurationError: if there is a user key, but the state is no map.
        :raises UnsupportedStateError: if the user key does not fit its type.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises CorruptStateError: if a file is corrupt.
        :raises StorageError: if the storage fails.
        """
        targets = self._targets(keys, namespace, user_key)
        is_whole_map = self._state.is_map and user_key is None
        read = self._maps if is_whole_map else self._cells
        limit = limit or ValueLimit()
        if len(targets) <= 1:
            return read(targets, limit)
        # In sorted order, keys in the same block follow each other.
        order = sorted(range(len(targets)), key=lambda index: targets[index].key)
        values: dict[int, Any] = {}
        for chosen in self._parts_of_maps(targets, order) if is_whole_map else self._parts(order):
            values.update(zip(chosen, read([targets[index] for index in chosen], limit), strict=True))
        return [values[index] for index in range(len(targets))]

    def _parts(self, order: list[int]) -> Iterator[list[int]]:
        """Yield the indexes of the keys that are read at once, whose values are each in one block of a run."""
        bytes_of_key = sum(run.bytes_per_block for run in self._runs)
        count = max(1, min(_KEYS_AT_ONCE, BYTES_AT_ONCE // max(1, bytes_of_key)))
        return (order[start : start + count] for start in range(0, len(order), count))

    def _parts_of_maps(self, targets: Sequence[Target], order: list[int]) -> Iterator[list[int]]:
        """Yield the indexes of the keys whose maps, of any number of blocks, are read at once."""
        part, sizes = list[int](), dict[tuple[int, int], int]()
        for index in order:
            wanted = self._block_sizes(targets[index])
            if part and (len(part) == _KEYS_AT_ONCE or sum((sizes | wanted).values()) > BYTES_AT_ONCE):
                yield part
                part, sizes = [], {}
            part.append(index)
            sizes |= wanted
        yield part

    def _block_sizes(self, target: Target) -> dict[tuple[int, int], int]:
        """Return the sizes of the blocks with the map of a target, by run and number."""
        found = ((number, run, run.blocks_of(target)) for number, run in enumerate(self._runs))
        return {(number, block): run.bytes_per_block for number, run, blocks in found for block in blocks}

    def _targets(self, keys: Sequence[KeyInGroup], namespace: str, user_key: Any) -> list[Target]:
        tail = () if user_key is None else self._user_key(user_key)
        return [Target(self._positions.key(key, key_group), namespace, tail) for key, key_group in keys]

    def _user_key(self, user_key: Any) -> tuple[Any, ...]:
        if not self._state.is_map:
            raise InvalidConfigurationError(
                f"Expected no user key for {self._state.title}, found {user_key!r}; only the entries of a map have one."
            )
        return self._positions.user_key(user_key)

    def _cells(self, targets: Sequence[Target], limit: ValueLimit) -> list[Any]:
        found = current_rows(self._columns.layout, self._runs, targets)
        return [ABSENT if each is None else self._value(*each, limit) for each in found]

    def _value(self, block: Block, row: int, limit: ValueLimit) -> Any:
        """Return the value of a row without what has expired."""
        stored = block.values.slice(row, 1)
        limit.count(stored)
        if not self._is_short and block.nbytes > _SHORT_BYTES and stored.nbytes > _SHORT_BYTES:
            about_to_wait()  # for the conversion
        is_list = self._state.kind is StateKind.LIST
        found: list[Any] = self._read_elements(stored.flatten() if is_list else stored)
        if self._oldest_ms is not None:
            found = [each.value for each in found if each.last_access_ms > self._oldest_ms]
        if not found:
            return ABSENT
        return found if is_list else found[0]

    def _maps(self, targets: Sequence[Target], limit: ValueLimit) -> list[Any]:
        about_to_wait()  # for the conversion of any number of entries
        found = [rows_of_each(run, targets) for run in self._runs]
        return [self._entries([rows for run in found for rows in run[index]], limit) for index in range(len(targets))]

    def _entries(self, found: list[FoundRows], limit: ValueLimit) -> Any:
        """Return the entries in rows of several runs, newest first."""
        if not found:
            return ABSENT
        layout = self._columns.layout
        tables = [
            layout.conform(block.table.slice(start, end - start), namespace=True, deleted=True)
            for block, start, end in found
        ]
        shown = self._columns.shown(without_tombstones(merge_tables(layout, tables)), self.content.taken_at_ms)
        limit.count(shown.select([MAP_KEY, MAP_VALUE]))
        values = self._state.serializer.from_arrow(single(shown.column(MAP_VALUE)))
        assert self._state.key_serializer is not None  # noqa: S101 - the state is a map
        user_keys = self._state.key_serializer.from_arrow(single(shown.column(MAP_KEY)))
        return dict(zip(user_keys, values, strict=True)) or ABSENT


def _runs(reader: StateReader, files: RunBytes, cache: BlockCache) -> Iterator[FileRun]:
    for run in reader.files().runs:
        for file in run:
            files.require_allowed(file.handle)
        yield FileRun(run, Reading(files, cache), reader.form)


def _has_fixed_width(arrow_type: Any) -> bool:
    return bool(pa.types.is_primitive(arrow_type))


def _size(content: StateContent) -> int:
    """Return the approximate size of the handles in memory, in bytes."""
    streams = [stream for handle in content.handles for stream in streams_of_handle(handle)]
    inline = sum(len(stream.data) for stream in streams if isinstance(stream, ByteStreamStateHandle))
    return _HANDLE_BYTES * (len(content.handles) + len(streams)) + inline


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
