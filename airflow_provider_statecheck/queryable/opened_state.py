"""Keyed state of one subtask in a checkpoint, opened for look-ups of single keys."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import IncrementalKeyedStateHandle, KeyGroupsStateHandle
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.queryable.queries import ABSENT
from airflow_provider_statecheck.state.arrow.blocks import Block, BlockCache
from airflow_provider_statecheck.state.arrow.compaction import merge_tables, without_tombstones
from airflow_provider_statecheck.state.arrow.layout import single
from airflow_provider_statecheck.state.arrow.part_files import PartBytes
from airflow_provider_statecheck.state.arrow.point_lookups import (
    FoundRows,
    PositionEncoder,
    Target,
    newest_rows,
    rows_of_each,
)
from airflow_provider_statecheck.state.arrow.runs import FileRun
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.columns import MAP_KEY, MAP_VALUE
from airflow_provider_statecheck.state.reading.snapshot_runs import SnapshotRun
from airflow_provider_statecheck.state.reading.state_reader import StateRowsReader, StateView, columns_of
from airflow_provider_statecheck.state.waiting import about_to_wait
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

KeyInGroup = tuple[Any, int]
"""Key in normal form, and its key group."""
_KEYS_AT_ONCE = 64
"""Keys whose blocks are in memory at once, besides those in the cache."""
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
    :param storage: Storage of the files.
    :param files: Range reads of the files.
    :param cache: Cache of blocks.
    :raises CheckpointNotFoundError: if a file is missing.
    :raises CorruptStateError: if a file is corrupt.
    :raises IncompatibleCheckpointError: if a newer version wrote a file.
    :raises LocationNotAllowedError: if a file is not in an allowed location.
    :raises UnsupportedStateError: if this release does not support a type of the state.
    :raises StorageError: if the storage fails.
    """

    def __init__(self, content: StateContent, storage: CheckpointStorage, files: PartBytes, cache: BlockCache) -> None:
        self.content = content
        self._columns = columns_of(content, StateView(namespaces=True))
        self._state = self._columns.state
        self._read_cells = self._state.cell_serializer.from_arrow
        self._is_short = _has_fixed_width(self._state.cell_serializer.arrow_type)
        self._positions = PositionEncoder(self._columns.keys, self._state.key_serializer)
        self._oldest_ms = None if self._state.ttl is None else content.taken_at_ms - self._state.ttl.ttl_ms
        self._runs = tuple(_runs(StateRowsReader(storage, content, self._columns), files, cache))
        self.nbytes = _STATE_BYTES + _size(content) + sum(run.index_bytes for run in self._runs)
        """Approximate size in memory in bytes, without blocks."""

    def serves(self, content: StateContent) -> bool:
        """Return whether this is the state of a content."""
        if content is not self.content and content == self.content:
            # The next comparison is one of identity.
            self.content = content
        return content is self.content

    def read(self, keys: Sequence[KeyInGroup], namespace: str, user_key: Any = None) -> list[Any]:
        """
        Return the unexpired value of each key, :data:`ABSENT` for a key without one.

        :param user_key: Key of one entry of a map state; ``None`` for all entries, as a dictionary.
        :raises InvalidConfigurationError: if there is a user key, but the state is no map.
        :raises UnsupportedStateError: if the user key does not fit its type.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises CorruptStateError: if a file is corrupt.
        :raises StorageError: if the storage fails.
        """
        targets = self._targets(keys, namespace, user_key)
        read = self._maps if self._state.is_map and user_key is None else self._cells
        if len(targets) <= 1:
            return read(targets)
        # In sorted order, keys in the same block follow each other.
        order = sorted(range(len(targets)), key=lambda index: targets[index].key)
        values: dict[int, Any] = {}
        for start in range(0, len(order), _KEYS_AT_ONCE):
            chosen = order[start : start + _KEYS_AT_ONCE]
            values.update(zip(chosen, read([targets[index] for index in chosen]), strict=True))
        return [values[index] for index in range(len(targets))]

    def _targets(self, keys: Sequence[KeyInGroup], namespace: str, user_key: Any) -> list[Target]:
        tail = () if user_key is None else self._user_key(user_key)
        return [Target(self._positions.key(key, key_group), namespace, tail) for key, key_group in keys]

    def _user_key(self, user_key: Any) -> tuple[Any, ...]:
        if not self._state.is_map:
            raise InvalidConfigurationError(
                f"Expected no user key for {self._state.title}, found {user_key!r}; only the entries of a map have one."
            )
        return self._positions.user_key(user_key)

    def _cells(self, targets: Sequence[Target]) -> list[Any]:
        found = newest_rows(self._runs, targets)
        return [ABSENT if each is None else self._value(*each) for each in found]

    def _value(self, block: Block, row: int) -> Any:
        """Return the value of a row without what has expired."""
        stored = block.values.slice(row, 1)
        if not self._is_short and block.nbytes > _SHORT_BYTES and stored.nbytes > _SHORT_BYTES:
            about_to_wait()  # for the conversion
        cell: Any = self._read_cells(stored)[0]
        if self._oldest_ms is None:
            return cell
        if self._state.kind is not StateKind.LIST:
            return cell.value if cell.last_access_ms > self._oldest_ms else ABSENT
        return [each.value for each in cell if each.last_access_ms > self._oldest_ms] or ABSENT

    def _maps(self, targets: Sequence[Target]) -> list[Any]:
        about_to_wait()  # for the conversion of any number of entries
        found = [rows_of_each(run, targets) for run in self._runs]
        return [self._entries([rows for run in found for rows in run[index]]) for index in range(len(targets))]

    def _entries(self, found: list[FoundRows]) -> Any:
        """Return the entries in rows of several runs, newest first."""
        if not found:
            return ABSENT
        tables = [self._conformed(block.table.slice(start, end - start)) for block, start, end in found]
        shown = self._columns.shown(without_tombstones(merge_tables(tables)), self.content.taken_at_ms)
        values = self._state.serializer.from_arrow(single(shown.column(MAP_VALUE)))
        assert self._state.key_serializer is not None  # noqa: S101 - the state is a map
        user_keys = self._state.key_serializer.from_arrow(single(shown.column(MAP_KEY)))
        return dict(zip(user_keys, values, strict=True)) or ABSENT

    def _conformed(self, table: Any) -> Any:
        return self._columns.layout.conform(table, namespace=True, deleted=True)


def _runs(rows: StateRowsReader, files: PartBytes, cache: BlockCache) -> Iterator[SnapshotRun | FileRun]:
    for handle in rows.content.handles:
        if isinstance(handle, KeyGroupsStateHandle):
            run = SnapshotRun.open(rows, handle, files, cache)
            yield from () if run is None else (run,)
    for parts in rows.files(rows.content.all_key_groups).runs:
        for part in parts:
            files.require_allowed(part.handle)
        yield FileRun(parts, files, cache, rows.form)


def _has_fixed_width(arrow_type: Any) -> bool:
    from pyarrow import types as kinds

    return bool(kinds.is_primitive(arrow_type))


def _size(content: StateContent) -> int:
    """Return the approximate size of the handles in memory, in bytes."""
    incremental = [handle for handle in content.handles if isinstance(handle, IncrementalKeyedStateHandle)]
    return _HANDLE_BYTES * (len(content.handles) + sum(len(handle.shared) for handle in incremental))
