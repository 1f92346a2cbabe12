"""Reading full snapshots, of all subtasks that wrote key groups of this one."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupsStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import (
    EMPTY_KEY_GROUP,
    KeyGroupRange,
    KeyGroupRangeOffsets,
)
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.state.backends.full_snapshot_format import (
    PREFIX_SIZE,
    SECTION_SIZE,
    SnapshotHeader,
    decode_header,
    decode_prefix,
    decode_section,
    section_length,
)
from airflow_provider_statecheck.state.backends.state_rows import StateRows

OpenStream = Callable[[StreamStateHandle], io.BufferedIOBase]


class FullSnapshotReader:
    """
    Reads the key groups of one subtask.

    :param open_stream: Opens the bytes of a handle.
    :param number_of_key_groups: The maximum parallelism, with which the state must have been written.
    :param key_group_range: The key groups that are read.
    """

    def __init__(self, open_stream: OpenStream, number_of_key_groups: int, key_group_range: KeyGroupRange) -> None:
        self._open_stream = open_stream
        self._number_of_key_groups = number_of_key_groups
        self._key_group_range = key_group_range

    def read(self, handle: KeyedStateHandle) -> tuple[SnapshotHeader, tuple[StateRows, ...]] | None:
        """
        Return the states of a handle, ``None`` if it has none of the key groups.

        :raises IncompatibleCheckpointError: if another backend wrote it, a newer version, or one of other key groups.
        :raises CorruptStateError: if the bytes were changed.
        :raises StorageError: if the storage fails.
        """
        if not isinstance(handle, KeyGroupsStateHandle):
            raise IncompatibleCheckpointError(
                f"Expected a full snapshot of keyed state, found a {type(handle).__name__}, which another state backend wrote; "
                f"restore with that one."
            )
        wanted = [each for each in self._offsets_of(handle) if each[1] != EMPTY_KEY_GROUP]
        if not wanted:
            return None
        with self._open_stream(handle.stream) as stream:
            return self._read(stream, wanted, handle.stream.state_size)

    def _offsets_of(self, handle: KeyGroupsStateHandle) -> KeyGroupRangeOffsets:
        try:
            offsets = KeyGroupRangeOffsets(handle.key_group_range, handle.offsets)
        except InvalidConfigurationError as error:
            raise CorruptStateError(f"Expected a handle of keyed state, found one that is broken: {error}") from error
        return offsets.get_intersection(self._key_group_range)

    def _read(
        self, stream: io.BufferedIOBase, wanted: Iterable[tuple[int, int]], size: int
    ) -> tuple[SnapshotHeader, tuple[StateRows, ...]]:
        prefix = stream.read(PREFIX_SIZE)
        header = decode_header(prefix, _read_exactly(stream, decode_prefix(prefix), size))
        self._require_key_groups(header.number_of_key_groups)
        blocks: list[list[tuple[int, Any]]] = [[] for _ in header.schemas.keyed]
        for key_group, offset in wanted:
            for state, batch in _read_section(stream, offset, header, size):
                blocks[state].append((key_group, batch))
        states = zip(header.schemas.keyed, header.arrow_schemas, blocks, strict=True)
        return header, tuple(StateRows(schema, columns, tuple(found)) for schema, columns, found in states)

    def _require_key_groups(self, found: int) -> None:
        if found != self._number_of_key_groups:
            raise IncompatibleCheckpointError(
                f"Expected state of {self._number_of_key_groups} key groups, found state of {found}; the maximum parallelism of "
                f"an operator cannot be changed once it has state."
            )


def _read_section(stream: io.BufferedIOBase, offset: int, header: SnapshotHeader, size: int) -> list[tuple[int, Any]]:
    stream.seek(offset)
    section = stream.read(SECTION_SIZE)
    return decode_section(section, _read_exactly(stream, section_length(section), size), header.arrow_schemas)


def _read_exactly(stream: io.BufferedIOBase, length: int, size: int) -> bytes:
    # A length that was changed must not ask for more memory than there is.
    data = stream.read(min(length, size))
    if len(data) != length:
        raise CorruptStateError(f"Expected {length} bytes, found {len(data)}; the state was cut off.")
    return data
