"""Full snapshots as sorted runs, in which each key group is a block."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupsStateHandle
from airflow_provider_statecheck.state.arrow.blocks import Block, BlockCache, BlockKey
from airflow_provider_statecheck.state.arrow.layout import order_codes, position_columns
from airflow_provider_statecheck.state.arrow.part_files import PartBytes
from airflow_provider_statecheck.state.backends.full_snapshot import (
    SECTION_SIZE,
    SnapshotHeader,
    decode_section,
    offsets_of,
    section_length,
)
from airflow_provider_statecheck.state.backends.restored_state import StateRows
from airflow_provider_statecheck.state.reading.state_reader import StateRowsReader

_KEY_GROUP_INDEX_BYTES = 400
"""Size of the index entry of a key group in memory, in bytes."""
_HEADER_BYTES = 16_384
"""Approximate size of a header in memory, in bytes."""


class SnapshotRun:
    """
    Rows of one state in a full snapshot. Only the needed key groups are read.

    :param rows: Reader of the state.
    :param handle: Handle of the snapshot.
    :param header: Header of the snapshot.
    :param files: Range reads of the file.
    :param cache: Cache of key groups.
    """

    has_namespaces = True

    def __init__(
        self,
        rows: StateRowsReader,
        handle: KeyGroupsStateHandle,
        header: SnapshotHeader,
        files: PartBytes,
        cache: BlockCache,
    ) -> None:
        self._rows = rows
        self._stream = handle.stream
        self._header = header
        # A rescaled snapshot has a state of the same name for each subtask that it was written from.
        self._states = _states_named(header, rows.content.schema.name)
        self._offsets = offsets_of(handle)
        self._files = files
        self._cache = cache
        self._id = object()
        self.firsts: Sequence[tuple[Any, ...]] = [(key_group,) for key_group, _ in self._offsets]
        self.block_last_key_groups: Sequence[int] = [key_group for key_group, _ in self._offsets]

    @classmethod
    def open(
        cls, rows: StateRowsReader, handle: KeyGroupsStateHandle, files: PartBytes, cache: BlockCache
    ) -> SnapshotRun | None:
        """
        Open a snapshot by reading its header, or return ``None`` if it has no rows of the state.

        :raises CheckpointNotFoundError: if the file is missing.
        :raises CorruptStateError: if the header or the handle is corrupt.
        :raises IncompatibleCheckpointError: if a newer version wrote the snapshot, or with another number of key groups.
        :raises StorageError: if the storage fails.
        """
        header = rows.snapshots(rows.content.all_key_groups).read_header(handle)
        is_known = bool(_states_named(header, rows.content.schema.name))
        return cls(rows, handle, header, files, cache) if is_known and offsets_of(handle) else None

    @property
    def index_bytes(self) -> int:
        """Return the approximate size of the index of the key groups in memory, in bytes."""
        return _HEADER_BYTES + _KEY_GROUP_INDEX_BYTES * len(self._offsets)

    def block(self, number: int) -> Block:
        """Return one key group from the cache, or with one range read."""
        return self._cache.get_or_load(self._key(number), lambda: self._read([number])[0])

    def blocks(self, numbers: Sequence[int]) -> dict[int, Block]:
        """Return several key groups, in ascending order. Key groups that are not cached are read together."""
        found = {number: self._cache.get(self._key(number)) for number in numbers}
        missing = [number for number, block in found.items() if block is None]
        read = dict(zip(missing, self._read(missing), strict=True))
        for number, block in read.items():
            self._cache.put(self._key(number), block)
        return {number: block or read[number] for number, block in found.items()}

    def _key(self, number: int) -> BlockKey:
        # The rows depend on the types of the state and the time of the checkpoint, and so belong to this run.
        return self._id, number

    def _read(self, numbers: Sequence[int]) -> list[Block]:
        sections = self._files.read(self._stream, [self._extent(number) for number in numbers])
        return [self._block(number, bytes(data)) for number, data in zip(numbers, sections, strict=True)]

    def _extent(self, number: int) -> tuple[int, int]:
        """Return the offset and the length of a section, which ends where the next one begins."""
        offset = self._offsets[number][1]
        if number + 1 < len(self._offsets):
            return offset, self._offsets[number + 1][1] - offset
        # The sections after the last one belong to other subtasks.
        (section,) = self._files.read(self._stream, [(offset, SECTION_SIZE)])
        return offset, min(SECTION_SIZE + section_length(bytes(section)), self._stream.state_size)

    def _block(self, number: int, data: bytes) -> Block:
        import numpy as np
        import pyarrow as pa

        section = data[:SECTION_SIZE]
        body = data[SECTION_SIZE : SECTION_SIZE + section_length(section)]
        table = self._table(number, decode_section(section, body, self._header.arrow_schemas))
        order = np.argsort(order_codes(position_columns(table)), kind="stable")
        return Block(table.take(pa.array(order)).combine_chunks())

    def _table(self, number: int, batches: list[tuple[int, Any]]) -> Any:
        import pyarrow as pa

        return pa.concat_tables([self._table_of(state, number, batches) for state in self._states])

    def _table_of(self, state: int, number: int, batches: list[tuple[int, Any]]) -> Any:
        import pyarrow as pa

        key_group = self._offsets[number][0]
        columns = self._header.arrow_schemas[state]
        found = [batch for index, batch in batches if index == state] or [pa.RecordBatch.from_pylist([], columns)]
        blocks = tuple((key_group, batch) for batch in found)
        return self._rows.in_layout(StateRows(self._header.schemas.keyed[state], columns, blocks))


def _states_named(header: SnapshotHeader, name: str) -> list[int]:
    return [index for index, state in enumerate(header.schemas.keyed) if state.name == name]
