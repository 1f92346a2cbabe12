"""
Full snapshots of keyed state: file format, writer and reader.

A file has a JSON header and one section per key group. The header describes the types and columns of each state, and a
section has the rows of each state as Arrow record batches. Reading a snapshot needs no user code and executes nothing
from the file.
"""

from __future__ import annotations

import base64
import io
import json
import struct
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, Protocol

from airflow_provider_statecheck.checkpoint.states.handles import (
    EMPTY_KEY_GROUP,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupRangeOffsets,
    KeyGroupsStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    SnapshotCancelledError,
    StorageError,
)
from airflow_provider_statecheck.state.backends.state_backend import StateRows
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.schemas import OperatorSchemas, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.snapshots import SnapshotResult, StateSize
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

MAGIC = b"SCKEYED\x01"
PREFIX_SIZE = 16
"""Size of the magic bytes, the length of the header and its checksum."""
SECTION_SIZE = 16
"""Size of the header of a section."""
_PREFIX = struct.Struct("<8sII")
_SECTION = struct.Struct("<IIQ")
_COUNTS = struct.Struct("<IQ")
_BLOCK = struct.Struct("<QQ")
_ALIGNMENT = 8
VERSION = 1
OpenStream = Callable[[StreamStateHandle], io.BufferedIOBase]


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """Header of a full snapshot."""

    number_of_key_groups: int
    schemas: OperatorSchemas
    arrow_schemas: tuple[Any, ...]
    """Arrow schema of the record batches of each keyed state."""


class Rows(Protocol):
    """Rows of one state at the start of a snapshot."""

    def rows(self) -> StateRows:
        """Return the rows."""
        ...


class FullSnapshot:
    """
    Writer of captured states to one file. It may be cancelled from another thread.

    :param key: Type of the keys.
    :param number_of_key_groups: Maximum parallelism of the operator.
    :param key_group_range: Key groups of the subtask.
    :param states: Captured states.
    :param open_stream: Opens the output stream.
    :param discard: Deletes a written file.
    """

    def __init__(
        self,
        *,
        key: SerializerSnapshot,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        states: Sequence[Rows],
        open_stream: Callable[[], CheckpointStateOutputStream],
        discard: Callable[[StreamStateHandle], None],
    ) -> None:
        self._key = key
        self._number_of_key_groups = number_of_key_groups
        self._key_group_range = key_group_range
        self._states = states
        self._open_stream = open_stream
        self._discard = discard
        self._lock = threading.Lock()
        self._stream: CheckpointStateOutputStream | None = None
        self._is_cancelled = False

    def run(self) -> SnapshotResult[KeyedStateHandle]:
        """
        Write the state. Called once, possibly in another thread.

        :raises StorageError: if the storage fails; written files are deleted.
        :raises SnapshotCancelledError: if the snapshot was cancelled.
        """
        states = [rows for rows in (state.rows() for state in self._states) if rows.blocks]
        if not states:
            self._finish(None)
            return SnapshotResult.empty()
        stream = self._open()
        try:
            offsets = tuple(self._write(stream, states))
            handle = stream.close_and_get_handle()
        except BaseException as error:
            stream.close()
            # The error of the closed stream would hide the cancellation.
            if self._is_cancelled and isinstance(error, StorageError | ValueError):
                raise cancelled_error() from error
            raise
        self._finish(handle)
        assert handle is not None  # noqa: S101 - the header was written
        sizes = tuple(map(_size_of, states))
        return SnapshotResult(KeyGroupsStateHandle(self._key_group_range, offsets, handle), handle.state_size, sizes)

    def cancel(self) -> None:
        """Stop the write and delete its file. Has no effect after the end of the write."""
        with self._lock:
            self._is_cancelled = True
            stream = self._stream
        if stream is not None:
            stream.close()

    def _open(self) -> CheckpointStateOutputStream:
        with self._lock:
            self._require_running()
            self._stream = self._open_stream()
            return self._stream

    def _write(self, stream: CheckpointStateOutputStream, states: Sequence[StateRows]) -> Iterator[int]:
        stream.write(encode_header(self._number_of_key_groups, self._key, states))
        blocks = [state.by_key_group() for state in states]
        for key_group in self._key_group_range:
            self._require_running()
            section = [[(index, batch) for batch in state.get(key_group, ())] for index, state in enumerate(blocks)]
            if not any(section):
                yield EMPTY_KEY_GROUP
                continue
            yield stream.get_pos()
            stream.write(encode_section(chain.from_iterable(section)))

    def _finish(self, handle: StreamStateHandle | None) -> None:
        if self._is_cancelled:
            if handle is not None:
                self._discard(handle)
            raise cancelled_error()

    def _require_running(self) -> None:
        if self._is_cancelled:
            raise cancelled_error()


def _size_of(rows: StateRows) -> StateSize:
    # A map has a row for each of its entries.
    is_map = rows.schema.kind is StateKind.MAP
    return StateSize(rows.schema.name, None if is_map else sum(batch.num_rows for _, batch in rows.blocks))


def cancelled_error() -> SnapshotCancelledError:
    """Return the error of a cancelled snapshot."""
    return SnapshotCancelledError(
        "Expected a running snapshot, found a cancelled one; its files are deleted, and the next checkpoint writes the state."
    )


class FullSnapshotReader:
    """
    Reader of the key groups of one subtask.

    :param open_stream: Opens the input stream of a handle.
    :param number_of_key_groups: Maximum parallelism, which must be that of the snapshot.
    :param key_group_range: Key groups to read.
    """

    def __init__(self, open_stream: OpenStream, number_of_key_groups: int, key_group_range: KeyGroupRange) -> None:
        self._open_stream = open_stream
        self._number_of_key_groups = number_of_key_groups
        self._key_group_range = key_group_range

    def read(self, handle: KeyedStateHandle) -> tuple[SnapshotHeader, tuple[StateRows, ...]] | None:
        """
        Return the header and the states of a handle, or ``None`` if it contains none of the key groups.

        :raises IncompatibleCheckpointError: if another backend or a newer version wrote the state, or with another
            number of key groups.
        :raises CorruptStateError: if the bytes do not match their checksum.
        :raises StorageError: if the storage fails.
        """
        if not isinstance(handle, KeyGroupsStateHandle):
            raise IncompatibleCheckpointError(
                f"Expected a full snapshot of keyed state, found a {type(handle).__name__} of another state backend; restore "
                f"with that backend."
            )
        wanted = [each for each in offsets_of(handle) if each[0] in self._key_group_range]
        if not wanted:
            return None
        with self._open_stream(handle.stream) as stream:
            return self._read(stream, wanted, handle.stream.state_size)

    def read_header(self, handle: KeyGroupsStateHandle) -> SnapshotHeader:
        """Return the header of a handle; raises as :meth:`read`."""
        with self._open_stream(handle.stream) as stream:
            return self._header(stream, handle.stream.state_size)

    def _read(
        self, stream: io.BufferedIOBase, wanted: Iterable[tuple[int, int]], size: int
    ) -> tuple[SnapshotHeader, tuple[StateRows, ...]]:
        header = self._header(stream, size)
        blocks: list[list[tuple[int, Any]]] = [[] for _ in header.schemas.keyed]
        for key_group, offset in wanted:
            for state, batch in _read_section(stream, offset, header, size):
                blocks[state].append((key_group, batch))
        states = zip(header.schemas.keyed, header.arrow_schemas, blocks, strict=True)
        return header, tuple(StateRows(schema, columns, tuple(found)) for schema, columns, found in states)

    def _header(self, stream: io.BufferedIOBase, size: int) -> SnapshotHeader:
        prefix = stream.read(PREFIX_SIZE)
        header = decode_header(prefix, _read_exactly(stream, decode_prefix(prefix), size))
        self._require_key_groups(header.number_of_key_groups)
        return header

    def _require_key_groups(self, found: int) -> None:
        if found != self._number_of_key_groups:
            raise IncompatibleCheckpointError(
                f"Expected state with {self._number_of_key_groups} key groups, found {found}; restore with the maximum "
                f"parallelism of the checkpoint, or rescale the checkpoint."
            )


def offsets_of(handle: KeyGroupsStateHandle) -> list[tuple[int, int]]:
    """
    Return the key groups of a handle that are not empty, with the offsets of their sections.

    :raises CorruptStateError: if the handle has another number of offsets than key groups.
    """
    try:
        offsets = KeyGroupRangeOffsets(handle.key_group_range, handle.offsets)
    except InvalidConfigurationError as error:
        raise CorruptStateError(f"Expected a valid handle of keyed state, found a broken one: {error}") from error
    return [(key_group, offset) for key_group, offset in offsets if offset != EMPTY_KEY_GROUP]


def _read_section(stream: io.BufferedIOBase, offset: int, header: SnapshotHeader, size: int) -> list[tuple[int, Any]]:
    stream.seek(offset)
    section = stream.read(SECTION_SIZE)
    return decode_section(section, _read_exactly(stream, section_length(section), size), header.arrow_schemas)


def _read_exactly(stream: io.BufferedIOBase, length: int, size: int) -> bytes:
    # A corrupt length must not allocate more memory than the file has bytes.
    data = stream.read(min(length, size))
    if len(data) != length:
        raise CorruptStateError(
            f"Expected {length} bytes of state, found {len(data)}; the file is truncated, restore from another checkpoint."
        )
    return data


def encode_header(number_of_key_groups: int, key: SerializerSnapshot, states: Sequence[StateRows]) -> bytes:
    """Encode the magic bytes and the header."""
    schemas = OperatorSchemas(key=key, keyed=tuple(state.schema for state in states))
    columns = [base64.b64encode(state.arrow_schema.serialize()).decode() for state in states]
    header = {
        "version": VERSION,
        "number_of_key_groups": number_of_key_groups,
        "schemas": encode_schemas(schemas),
        "columns": columns,
    }
    encoded = json.dumps(header, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    return _PREFIX.pack(MAGIC, len(encoded), zlib.crc32(encoded)) + encoded


def decode_prefix(prefix: bytes) -> int:
    """
    Return the length of the header.

    :raises CorruptStateError: if the bytes are not the prefix of a full snapshot.
    """
    if len(prefix) != PREFIX_SIZE or not prefix.startswith(MAGIC):
        raise CorruptStateError(
            f"Expected a full snapshot of keyed state, found bytes that start with {prefix[:8]!r}; restore from another "
            f"checkpoint."
        )
    length: int = _PREFIX.unpack(prefix)[1]
    return length


def decode_header(prefix: bytes, encoded: bytes) -> SnapshotHeader:
    """
    Decode a header.

    :param prefix: Bytes before the header.
    :raises IncompatibleCheckpointError: if a newer version wrote the snapshot.
    :raises CorruptStateError: if the bytes are not a header.
    """
    import pyarrow as pa

    if zlib.crc32(encoded) != _PREFIX.unpack(prefix)[2]:
        raise CorruptStateError(
            "Expected a header of a full snapshot with a matching checksum, found another; restore from another checkpoint."
        )
    try:
        header = json.loads(encoded)
        _require_version(header["version"])
        columns = tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(each))) for each in header["columns"])
        return SnapshotHeader(header["number_of_key_groups"], decode_schemas(header["schemas"]), columns)
    except (LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise CorruptStateError(
            f"Expected the header of a full snapshot, found {encoded[:200]!r}; restore from another checkpoint."
        ) from error


def encode_section(blocks: Iterable[tuple[int, Any]]) -> bytes:
    """
    Encode the section of one key group.

    :param blocks: Pairs of the index of a state and an Arrow record batch.
    """
    parts = [_encode_block(state, batch) for state, batch in blocks]
    body = b"".join(parts)
    return _SECTION.pack(len(parts), _checksum(len(parts), body), len(body)) + body


def section_length(section: bytes) -> int:
    """
    Return the size of the body of a section.

    :raises CorruptStateError: if the section header is truncated.
    """
    if len(section) != SECTION_SIZE:
        raise CorruptStateError(
            f"Expected a section header of {SECTION_SIZE} bytes, found {len(section)} bytes; restore from another checkpoint."
        )
    length: int = _SECTION.unpack(section)[2]
    return length


def decode_section(section: bytes, body: bytes, columns: Sequence[Any]) -> list[tuple[int, Any]]:
    """
    Decode the section of one key group into pairs of the index of a state and an Arrow record batch.

    :param columns: Arrow schema of each state.
    :raises CorruptStateError: if the bytes do not match the checksum.
    """
    count, checksum, length = _SECTION.unpack(section)
    if len(body) != length or _checksum(count, body) != checksum:
        raise CorruptStateError(
            f"Expected a section of {length} bytes with checksum {checksum}, found {len(body)} bytes that do not match; restore "
            f"from another checkpoint."
        )
    return _decode_blocks(body, count, columns)


def _checksum(count: int, body: bytes) -> int:
    return zlib.crc32(body, zlib.crc32(_COUNTS.pack(count, len(body))))


def _encode_block(state: int, batch: Any) -> bytes:
    message = batch.serialize().to_pybytes()
    return b"".join((_BLOCK.pack(state, len(message)), message, bytes(-len(message) % _ALIGNMENT)))


def _decode_blocks(body: bytes, count: int, columns: Sequence[Any]) -> list[tuple[int, Any]]:
    import pyarrow as pa

    buffer, position = pa.py_buffer(body), 0
    blocks = []
    for _ in range(count):
        state, length = _BLOCK.unpack_from(body, position)
        position += _BLOCK.size
        blocks.append((state, pa.ipc.read_record_batch(buffer.slice(position, length), columns[state])))
        position += length + -length % _ALIGNMENT
    return blocks


def _require_version(version: Any) -> None:
    if version != VERSION:
        raise IncompatibleCheckpointError(
            f"Expected a full snapshot of version {VERSION}, found {version!r}; restore with the release that wrote it, or a "
            f"newer one."
        )
