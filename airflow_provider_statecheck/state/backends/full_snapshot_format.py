"""
The bytes of a full snapshot: a header, then one section for each key group that has state.

The header is JSON, which says what each state is and what its columns are; a section has, for each state, Arrow record batches
with those columns. It can be read without any code of the types, and nothing in it is executed.
"""

from __future__ import annotations

import base64
import json
import struct
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.backends.state_rows import StateRows
from airflow_provider_statecheck.state.schemas import OperatorSchemas, decode_schemas, encode_schemas
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot

MAGIC = b"SCKEYED\x01"
PREFIX_SIZE = 16
"""Of the magic bytes, the length of the header and its checksum."""
SECTION_SIZE = 16
"""Of what stands before the blocks of a section."""
_PREFIX = struct.Struct("<8sII")
_SECTION = struct.Struct("<IIQ")
_COUNTS = struct.Struct("<IQ")
_BLOCK = struct.Struct("<QQ")
_ALIGNMENT = 8
VERSION = 1


@dataclass(frozen=True, slots=True)
class SnapshotHeader:
    """What a full snapshot is of."""

    number_of_key_groups: int
    schemas: OperatorSchemas
    arrow_schemas: tuple[Any, ...]
    """Of the blocks of each keyed state."""


def encode_header(number_of_key_groups: int, key: SerializerSnapshot, states: Sequence[StateRows]) -> bytes:
    """Return the bytes before the first section."""
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
    Return the length of the header that follows.

    :raises CorruptStateError: for other bytes.
    """
    if len(prefix) != PREFIX_SIZE or not prefix.startswith(MAGIC):
        raise CorruptStateError(f"Expected a full snapshot of keyed state, found bytes that begin with {prefix[:8]!r}.")
    length: int = _PREFIX.unpack(prefix)[1]
    return length


def decode_header(prefix: bytes, encoded: bytes) -> SnapshotHeader:
    """
    Return what a header says.

    :param prefix: What stands before it.
    :raises IncompatibleCheckpointError: if a newer version wrote it.
    :raises CorruptStateError: for bytes that are no header.
    """
    import pyarrow as pa

    if zlib.crc32(encoded) != _PREFIX.unpack(prefix)[2]:
        raise CorruptStateError("Expected the header of a full snapshot as it was written, found other bytes.")
    try:
        header = json.loads(encoded)
        _require_version(header["version"])
        columns = tuple(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(each))) for each in header["columns"])
        return SnapshotHeader(header["number_of_key_groups"], decode_schemas(header["schemas"]), columns)
    except (LookupError, TypeError, ValueError, pa.ArrowException) as error:
        raise CorruptStateError(f"Expected the header of a full snapshot, found {encoded[:200]!r}.") from error


def encode_section(blocks: Iterable[tuple[int, Any]]) -> bytes:
    """
    Return the bytes of one key group.

    :param blocks: Indexes of states, each with an Arrow record batch.
    """
    parts = [_encode_block(state, batch) for state, batch in blocks]
    body = b"".join(parts)
    return _SECTION.pack(len(parts), _checksum(len(parts), body), len(body)) + body


def section_length(section: bytes) -> int:
    """
    Return how many bytes follow the beginning of a section.

    :raises CorruptStateError: if it is cut off.
    """
    if len(section) != SECTION_SIZE:
        raise CorruptStateError(f"Expected {SECTION_SIZE} bytes where a key group begins, found {len(section)}.")
    length: int = _SECTION.unpack(section)[2]
    return length


def decode_section(section: bytes, body: bytes, columns: Sequence[Any]) -> list[tuple[int, Any]]:
    """
    Return the blocks of one key group: indexes of states with Arrow record batches.

    :param columns: The columns of each state.
    :raises CorruptStateError: for bytes that were changed.
    """
    count, checksum, length = _SECTION.unpack(section)
    if len(body) != length or _checksum(count, body) != checksum:
        raise CorruptStateError(
            f"Expected {length} bytes with checksum {checksum} of a key group, found {len(body)} others."
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
            f"Expected a full snapshot of keyed state in version {VERSION}, found {version!r}; restore with the release that "
            f"wrote it, or a newer one."
        )
