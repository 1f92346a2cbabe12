"""
Formats of operator state on storage: native streams, and Parquet in canonical savepoints.

A stream is a line with the magic word, the version and the number of pieces, followed by the pieces, each as an Arrow
IPC stream. In both formats, the metadata of the schema of a piece has the name and the distribution mode of its state,
and the serializer snapshots of the elements.

The offset of an element is its row number in the pieces of its state. A broadcast map has the single offset 0.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from airflow_provider_statecheck.checkpoint import codec
from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateMeta
from airflow_provider_statecheck.exceptions import CorruptStateError, UnknownVersionError
from airflow_provider_statecheck.lazy import pa, parquet
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.schema_evolution import StateSchema, compatibility_of
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
    TypeSerializer,
    decode_snapshot,
    migrated,
)
from airflow_provider_statecheck.storage.stored_json import UNDECODABLE, parse

MAGIC = b"statecheck-operator-state"
VERSION = 1
KEY = "key"
VALUE = "value"
_BROADCAST_PREFIX = "broadcast/"
_LIST_PREFIX = "list/"


def stored_name(name: str, mode: DistributionMode) -> str:
    """
    Return the unique name of a state in the stream and the handle.

    A broadcast map and a list may have the same name, which differs in the stream by a prefix. A list has a prefix only
    if its name starts with one.
    """
    if mode is DistributionMode.BROADCAST:
        return _BROADCAST_PREFIX + name
    return _LIST_PREFIX + name if name.startswith((_BROADCAST_PREFIX, _LIST_PREFIX)) else name


def kind_of(mode: DistributionMode) -> StateKind:
    """Return the kind of the states with a distribution mode."""
    return StateKind.MAP if mode is DistributionMode.BROADCAST else StateKind.LIST


@dataclass(frozen=True, slots=True)
class WrittenElements:
    """Elements of a state with common types, as an immutable Arrow table."""

    schema: StateSchema
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
        return WrittenElements(self.schema, self.table.take(pa.array(rows, pa.int64())))


def joined(pieces: Iterable[WrittenElements]) -> tuple[WrittenElements, ...]:
    """
    Return the elements in as few pieces as possible.

    Without elements, one empty piece remains because it contains the types.
    """
    found = list(pieces)
    kept = [piece for piece in found if len(piece)] or found[:1]
    alike = groupby(kept, lambda piece: (piece.schema, piece.table.schema))
    return tuple(
        WrittenElements(schema, pa.concat_tables(each.table for each in group)) for (schema, _), group in alike
    )


@dataclass(frozen=True, slots=True)
class WrittenState:
    """Captured or restored operator state."""

    name: str
    mode: DistributionMode
    pieces: tuple[WrittenElements, ...]
    """One or more pieces; elements of different types are in different pieces."""

    @property
    def stored_name(self) -> str:
        """The unique name of the state in the stream and the handle."""
        return stored_name(self.name, self.mode)

    @property
    def meta(self) -> OperatorStateMeta:
        """The offsets of the elements."""
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

    :raises UnknownVersionError: if a newer version wrote the stream.
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
    except (OSError, pa.ArrowException, *UNDECODABLE) as error:
        raise CorruptStateError(
            f"Expected the columns of operator state, found damaged data: {error}; restore from another checkpoint."
        ) from error
    if source.tell() < source.size():
        raise CorruptStateError(
            f"Expected {len(pieces)} pieces of operator state, found further bytes after them; restore from another "
            "checkpoint."
        )
    groups = [list(group) for _, group in groupby(pieces, lambda state: state.stored_name)]
    return tuple(replace(group[0], pieces=tuple(piece for each in group for piece in each.pieces)) for group in groups)


def _description(state: WrittenState, piece: WrittenElements) -> dict[bytes, str]:
    """Return the metadata of the schema of a piece."""
    description = {
        "name": state.name,
        "mode": state.mode.value,
        "key": codec.encode(piece.schema.key),
        "value": codec.encode(piece.schema.value),
    }
    return {DESCRIPTION: json.dumps(description, sort_keys=True)}


def _state_of(table: Any) -> WrittenState:
    """Return the state with one piece that a table with a description contains."""
    described = parse(table.schema.metadata[DESCRIPTION])
    name, mode = described["name"], DistributionMode(described["mode"])
    key = None if described["key"] is None else decode_snapshot(described["key"])
    schema = StateSchema(name=name, kind=kind_of(mode), key=key, value=decode_snapshot(described["value"]))
    return WrittenState(name, mode, (WrittenElements(schema, table),))


def _require_version(version: bytes) -> None:
    if version != b"%d" % VERSION:
        raise UnknownVersionError(
            f"Expected operator state in version {VERSION}, found {version[:10]!r}; restore with the release that "
            "wrote the checkpoint, or a newer one."
        )


def written_elements(state: RegisteredState, elements: Sequence[Any]) -> WrittenElements:
    """
    Return elements in frozen form as an Arrow table.

    :param elements: The elements of a list, or the entries of a map as pairs with frozen values.
    """
    write = state.serializer.freezing().write
    if state.key_serializer is None:
        return WrittenElements(state.schema(), pa.table({VALUE: write(elements)}))
    keys, values = [entry[0] for entry in elements], [entry[1] for entry in elements]
    columns = {KEY: state.key_serializer.to_arrow(keys), VALUE: write(values)}
    return WrittenElements(state.schema(), pa.table(columns))


def restored_elements(state: RegisteredState, written: WrittenElements) -> list[Any]:
    """
    Return the elements of a piece in frozen form, after a migration if necessary; the entries of a map are pairs.

    :raises StateMigrationError: if the piece is incompatible with the serializers of the state.
    """
    verdict = compatibility_of(state.name, state.serializer, written.schema.value)
    values = state.serializer.freezing().read(_converted(verdict, state.serializer, written.column(VALUE)))
    if state.key_serializer is None or written.schema.key is None:
        return values
    verdict = compatibility_of(state.name, state.key_serializer, written.schema.key, are_keys=True)
    keys = state.key_serializer.from_arrow(_converted(verdict, state.key_serializer, written.column(KEY)))
    return list(zip(keys, values, strict=True))


def _converted(verdict: Compatibility, serializer: TypeSerializer[Any], array: Any) -> Any:
    if verdict.serializer is None:
        return migrated(verdict, array)
    return serializer.to_arrow(verdict.serializer.from_arrow(array))


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
        key, value = piece.schema.key, piece.schema.value
        columns = {} if key is None else {KEY: _column(piece, KEY, restored_user_keys(key))}
        columns[VALUE] = _column(piece, VALUE, restored_serializer(value))
        return replace(state, pieces=(replace(piece, table=pa.table(columns)),))
    except (OSError, pa.ArrowException, *UNDECODABLE) as error:
        raise CorruptStateError(
            f"Expected operator state in a Parquet file, found damaged data: {error}; restore from another checkpoint."
        ) from error


def _column(piece: WrittenElements, name: str, serializer: TypeSerializer[Any]) -> Any:
    return conformed(piece.column(name), serializer.arrow_type, name)
