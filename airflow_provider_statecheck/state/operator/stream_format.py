"""
Formats of operator state on storage: native streams, and Parquet in canonical savepoints.

A stream is a line with the magic word, the version and the number of pieces, followed by the pieces, each as an Arrow IPC
stream. In both formats, the metadata of the schema of a piece has the name and the distribution mode of its state, and the
serializer snapshots of the elements.

The offset of an element is its row number in the pieces of its state. A broadcast map has the single offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateMeta
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import own_user_key_with
from airflow_provider_statecheck.state.schemas import compatibility_of
from airflow_provider_statecheck.state.serializers.nested_columns import (
    DESCRIPTION,
    conformed,
    portable_schema,
    storing,
    to_portable,
)
from airflow_provider_statecheck.state.serializers.resolve import restored_serializer, restored_user_keys
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    decode_snapshot,
    encode_snapshot,
    serializer_from_now_on,
)

MAGIC = b"statecheck-operator-state"
VERSION = 1
KEY = "key"
VALUE = "value"
_BROADCAST_PREFIX = "broadcast/"
_LIST_PREFIX = "list/"


def stored_name(name: str, mode: DistributionMode) -> str:
    """
    Return the unique name of a state in the stream and the handle.

    A broadcast map and a list may have the same name, which differs in the stream by a prefix. A list has a prefix only if
    its name starts with one.
    """
    if mode is DistributionMode.BROADCAST:
        return _BROADCAST_PREFIX + name
    return _LIST_PREFIX + name if name.startswith((_BROADCAST_PREFIX, _LIST_PREFIX)) else name


@dataclass(frozen=True, slots=True)
class WrittenElements:
    """Elements with common serializer snapshots, as an immutable Arrow table."""

    key: SerializerSnapshot | None
    """Snapshot of the key serializer; ``None`` for a list."""
    value: SerializerSnapshot
    table: Any
    """Arrow table with a column ``value``, and a column ``key`` for a map."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        """Return a column as one Arrow array."""
        return self.table.column(name).combine_chunks()

    def take(self, rows: Sequence[int]) -> WrittenElements:
        """Return the elements at row numbers, in their order."""
        if len(rows) == len(self) and list(rows) == list(range(len(self))):
            return self
        return WrittenElements(self.key, self.value, self.table.take(pa.array(rows, pa.int64())))


def joined(pieces: Iterable[WrittenElements]) -> tuple[WrittenElements, ...]:
    """
    Return the elements in as few pieces as possible.

    Without elements, one empty piece remains because it contains the serializer snapshots.
    """
    found = list(pieces)
    kept = [piece for piece in found if len(piece)] or found[:1]
    alike = groupby(kept, lambda piece: (piece.key, piece.value, piece.table.schema))
    return tuple(
        WrittenElements(key, value, pa.concat_tables(each.table for each in group)) for (key, value, _), group in alike
    )


@dataclass(frozen=True, slots=True)
class WrittenState:
    """Captured or restored operator state."""

    name: str
    mode: DistributionMode
    pieces: tuple[WrittenElements, ...]
    """One or more pieces; elements with different serializer snapshots are in different pieces."""

    @property
    def stored_name(self) -> str:
        """Return the unique name of the state in the stream and the handle."""
        return stored_name(self.name, self.mode)

    @property
    def meta(self) -> OperatorStateMeta:
        """Return the offsets of the elements."""
        if self.mode is DistributionMode.BROADCAST:
            return OperatorStateMeta(offsets=(0,), mode=self.mode)
        return OperatorStateMeta(offsets=tuple(range(sum(map(len, self.pieces)))), mode=self.mode)


def encode(states: Sequence[WrittenState]) -> Iterator[bytes]:
    """Yield the bytes of a stream with the states."""
    pieces = [(state, piece) for state in states for piece in state.pieces]
    yield b"%s %d %d\n" % (MAGIC, VERSION, len(pieces))
    for state, piece in pieces:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, piece.table.schema.with_metadata(_description(state, piece))) as writer:
            writer.write_table(piece.table)
        yield sink.getvalue().to_pybytes()


def decode(data: bytes) -> tuple[WrittenState, ...]:
    """
    Return the states of a stream.

    :raises IncompatibleCheckpointError: if a newer version wrote the stream.
    :raises CorruptStateError: if the stream is damaged.
    """
    line, found, _ = data[:128].partition(b"\n")
    words = line.split(b" ")
    if not found or words[0] != MAGIC or len(words) != 3:
        raise CorruptStateError(
            f"Expected operator state that begins with {MAGIC.decode()!r}, found {data[:32]!r}; restore from another "
            f"checkpoint."
        )
    _require_version(words[1])
    try:
        source = pa.BufferReader(memoryview(data)[len(line) + 1 :])
        pieces = [_state_of(pa.ipc.open_stream(source).read_all()) for _ in range(int(words[2]))]
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise CorruptStateError(
            f"Expected the columns of operator state, found damaged data: {error}; restore from another checkpoint."
        ) from error
    if source.tell() < source.size():
        raise CorruptStateError(
            f"Expected {len(pieces)} pieces of operator state, found further bytes after them; restore from another checkpoint."
        )
    groups = [list(group) for _, group in groupby(pieces, lambda state: state.stored_name)]
    return tuple(replace(group[0], pieces=tuple(piece for each in group for piece in each.pieces)) for group in groups)


def _description(state: WrittenState, piece: WrittenElements) -> dict[bytes, str]:
    """Return the metadata of the schema of a piece."""
    description = {
        "name": state.name,
        "mode": state.mode.value,
        "key": None if piece.key is None else encode_snapshot(piece.key),
        "value": encode_snapshot(piece.value),
    }
    return {DESCRIPTION: json.dumps(description, sort_keys=True)}


def _state_of(table: Any) -> WrittenState:
    """Return the state with one piece that a table with a description contains."""
    described = json.loads(table.schema.metadata[DESCRIPTION])
    key = None if described["key"] is None else decode_snapshot(described["key"])
    piece = WrittenElements(key, decode_snapshot(described["value"]), table)
    return WrittenState(described["name"], DistributionMode(described["mode"]), (piece,))


def _require_version(version: bytes) -> None:
    if version != b"%d" % VERSION:
        raise IncompatibleCheckpointError(
            f"Expected operator state in version {VERSION}, found {version[:10]!r}; restore with the release that wrote the "
            f"checkpoint, or a newer one."
        )


@dataclass(frozen=True, slots=True)
class ElementSerializers:
    """Serializers of the elements of a list, or of the entries of a broadcast map."""

    state: str
    """Name of the state, for errors."""
    key: TypeSerializer[Any] | None
    """Serializer of the keys; ``None`` for a list."""
    value: TypeSerializer[Any]

    @classmethod
    def of(cls, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any]) -> ElementSerializers:
        """Return the serializers of a descriptor."""
        return cls(descriptor.name, descriptor.key_serializer, descriptor.serializer)

    def snapshots(self) -> tuple[SerializerSnapshot | None, SerializerSnapshot]:
        """Return the snapshots of the key serializer and the value serializer."""
        return None if self.key is None else self.key.snapshot(), self.value.snapshot()

    def write(self, elements: Sequence[Any]) -> WrittenElements:
        """
        Return elements as an Arrow table; the entries of a map are pairs.

        :raises UnsupportedStateError: if an element has another type.
        """
        key, value = self.snapshots()
        if self.key is None:
            return WrittenElements(key, value, pa.table({VALUE: self.value.to_arrow(elements)}))
        keys, values = [entry[0] for entry in elements], [entry[1] for entry in elements]
        columns = {KEY: self.key.to_arrow(keys), VALUE: self.value.to_arrow(values)}
        return WrittenElements(key, value, pa.table(columns))

    def own(self, value: Any) -> Any:
        """
        Return the object to store for an element or a map value.

        :raises UnsupportedStateError: if it has another type.
        """
        return None if value is None else self.value.own(value)

    def owning_entries(self) -> Callable[[Any, Any], tuple[Any, Any]]:
        """
        Return the function that returns the objects to store for an entry of a map.

        The function raises ``UnsupportedStateError`` if the key or the value has another type, or if the key does not equal itself.
        """
        own_key = None if self.key is None else own_user_key_with(self.key)
        return lambda key, value: (key if own_key is None else own_key(key), self.own(value))

    def copy(self, value: Any) -> Any:
        """Return a copy of an element or a map value; immutable objects are returned unchanged."""
        return value if value is None or self.value.is_immutable else self.value.copy(value)

    def read(self, written: WrittenElements) -> list[Any]:
        """
        Return the elements of a piece, after a migration if necessary.

        :raises StateMigrationError: if the piece is incompatible with these serializers.
        """
        verdict = compatibility_of(self.state, self.value, written.value)
        values = _read_column(verdict, self.value, written.column(VALUE))
        if self.key is None or written.key is None:
            return values
        keys = compatibility_of(self.state, self.key, written.key, are_keys=True)
        return list(zip(_read_column(keys, self.key, written.column(KEY)), values, strict=True))

    def reconfigured(self, pieces: Iterable[WrittenElements]) -> ElementSerializers:
        """
        Return the serializers after reconfiguration for restored pieces.

        :raises StateMigrationError: if a piece is incompatible with these serializers.
        """
        found = self
        for piece in pieces:
            verdict = compatibility_of(self.state, found.value, piece.value)
            found = replace(found, value=serializer_from_now_on(verdict, found.value))
            if found.key is not None and piece.key is not None:
                verdict = compatibility_of(self.state, found.key, piece.key, are_keys=True)
                found = replace(found, key=serializer_from_now_on(verdict, found.key))
        return found


def _read_column(verdict: Compatibility, serializer: TypeSerializer[Any], array: Any) -> list[Any]:
    if verdict.outcome is Outcome.COMPATIBLE_AFTER_MIGRATION and verdict.migrate is not None:
        array = verdict.migrate(array)
    return serializer_from_now_on(verdict, serializer).from_arrow(array)


PARQUET_MAGIC = b"PAR1"


def encode_parquet(state: WrittenState) -> bytes:
    """
    Encode a state with one piece as a Parquet file with a column ``value``, and ``key`` for a map.

    :raises UnsupportedStateError: if Parquet cannot hold a value.
    """
    (piece,) = state.pieces
    schema = portable_schema(piece.table.schema).with_metadata(_description(state, piece))
    sink = pa.BufferOutputStream()
    table = to_portable(piece.table, schema)
    with storing():
        parquet.write_table(table, sink, compression="zstd", write_page_checksum=True)
    return bytes(sink.getvalue())


def decode_parquet(data: bytes) -> WrittenState:
    """
    Decode a state.

    :raises CorruptStateError: if the file is not one of an operator state.
    :raises UnsupportedStateError: if this release does not support a type.
    """
    try:
        state = _state_of(parquet.ParquetFile(pa.BufferReader(data)).read())
        (piece,) = state.pieces
        columns = {} if piece.key is None else {KEY: _column(piece, KEY, restored_user_keys(piece.key))}
        columns[VALUE] = _column(piece, VALUE, restored_serializer(piece.value))
        return replace(state, pieces=(replace(piece, table=pa.table(columns)),))
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise CorruptStateError(
            f"Expected operator state in a Parquet file, found damaged data: {error}; restore from another checkpoint."
        ) from error


def _column(piece: WrittenElements, name: str, serializer: TypeSerializer[Any]) -> Any:
    return conformed(piece.column(name), serializer.arrow_type, name)
