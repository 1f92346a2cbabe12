"""
Format of operator state on storage.

A line with the magic word, the version and the length of what follows; JSON that names the states, what their serializers
were and where their columns are; and the columns, each table as an Arrow IPC stream. The offset of an element is its row
among all rows of its state, so that an element costs what its value costs; a broadcast map has one offset, of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateMeta
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import compatibility_of, compatibility_of_keys
from airflow_provider_statecheck.state.serializers.base import own_of
from airflow_provider_statecheck.state.serializers.nested_columns import is_immutable
from airflow_provider_statecheck.state.serializers.serializer import (
    Compatibility,
    Outcome,
    SerializerSnapshot,
    TypeSerializer,
    decode_snapshot,
    encode_snapshot,
    serializer_from_now_on,
)

_BROADCAST = "broadcast/"
_LIST = "list/"


def stored_name(name: str, mode: DistributionMode) -> str:
    """Return a name that no other state of the operator has; that of a list is its own unless it looks like a made one."""
    if mode is DistributionMode.BROADCAST:
        return _BROADCAST + name
    return _LIST + name if name.startswith((_BROADCAST, _LIST)) else name


KEY = "key"
VALUE = "value"


@dataclass(frozen=True, slots=True)
class WrittenElements:
    """Elements that were written with the same serializers; nobody changes them any more."""

    key: SerializerSnapshot | None
    """Of the keys of a broadcast map."""
    value: SerializerSnapshot
    table: Any
    """An Arrow table with a column ``value``, and one ``key`` for a map."""

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def column(self, name: str) -> Any:
        """Return a column as one Arrow array."""
        return self.table.column(name).combine_chunks()

    def take(self, rows: Sequence[int]) -> WrittenElements:
        """Return some of the elements, in the order of their rows."""
        import pyarrow as pa

        if len(rows) == len(self) and list(rows) == list(range(len(self))):
            return self
        return WrittenElements(self.key, self.value, self.table.take(pa.array(rows, pa.int64())))

    def can_join(self, other: WrittenElements) -> bool:
        """Tell whether both can be one."""
        mine = self.key, self.value, self.table.schema
        return mine == (other.key, other.value, other.table.schema)

    def join(self, other: WrittenElements) -> WrittenElements:
        """Return these elements and then others."""
        import pyarrow as pa

        return WrittenElements(self.key, self.value, pa.concat_tables([self.table, other.table]))


def joined(pieces: Iterable[WrittenElements]) -> tuple[WrittenElements, ...]:
    """Return the same elements in as few pieces as possible; one at least stays, for it says what the state is."""
    found = list(pieces)
    result: list[WrittenElements] = []
    for piece in [piece for piece in found if len(piece)] or found[:1]:
        if result and result[-1].can_join(piece):
            result[-1] = result[-1].join(piece)
        else:
            result.append(piece)
    return tuple(result)


MAGIC = b"statecheck-operator-state"
VERSION = 1


@dataclass(frozen=True, slots=True)
class WrittenState:
    """One operator state at one moment."""

    name: str
    mode: DistributionMode
    pieces: tuple[WrittenElements, ...]
    """At least one; more where elements were written with several versions of a serializer."""

    @property
    def stored_name(self) -> str:
        """Return its name among all states of the operator."""
        return stored_name(self.name, self.mode)

    @property
    def meta(self) -> OperatorStateMeta:
        """Return the offsets of its elements."""
        if self.mode is DistributionMode.BROADCAST:
            return OperatorStateMeta(offsets=(0,), mode=self.mode)
        return OperatorStateMeta(offsets=tuple(range(sum(map(len, self.pieces)))), mode=self.mode)


def encode(states: Sequence[WrittenState]) -> Iterator[bytes]:
    """Return the bytes of states, piece by piece."""
    blocks = [[_block(piece) for piece in state.pieces] for state in states]
    header = {"states": [_described(*pair) for pair in zip(states, blocks, strict=True)]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    yield b"%s %d %d\n" % (MAGIC, VERSION, len(text))
    yield text
    for block in blocks:
        yield from block


def decode(data: bytes) -> tuple[WrittenState, ...]:
    """
    Return the states of a stream.

    :raises IncompatibleCheckpointError: if a newer version wrote them.
    :raises CorruptStateError: for other bytes.
    """
    line, found, _ = data[:128].partition(b"\n")
    words = line.split(b" ")
    if not found or words[0] != MAGIC or len(words) != 3:
        raise CorruptStateError(
            f"Expected operator state that begins with {MAGIC.decode()!r}, found {data[:32]!r}; it was changed after it was "
            f"written."
        )
    _require_version(words[1])
    begin = len(line) + 1
    try:
        end = begin + int(words[2])
        return _decode_states(json.loads(data[begin:end]), memoryview(data)[end:])
    except (LookupError, TypeError, ValueError, OSError) as error:
        raise CorruptStateError(f"Expected the columns of operator state, found other bytes: {error}.") from error


def _block(piece: WrittenElements) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, piece.table.schema) as writer:
        writer.write_table(piece.table)
    data: bytes = sink.getvalue().to_pybytes()
    return data


def _described(state: WrittenState, blocks: Sequence[bytes]) -> dict[str, Any]:
    pieces = [
        {
            "key": None if piece.key is None else encode_snapshot(piece.key),
            "value": encode_snapshot(piece.value),
            "length": len(block),
        }
        for piece, block in zip(state.pieces, blocks, strict=True)
    ]
    return {"name": state.name, "mode": state.mode.value, "pieces": pieces}


def _decode_states(header: Mapping[str, Any], blocks: memoryview) -> tuple[WrittenState, ...]:
    states = []
    for state in header["states"]:
        pieces = []
        for piece in state["pieces"]:
            pieces.append(_decode_piece(piece, blocks[: piece["length"]]))
            blocks = blocks[piece["length"] :]
        states.append(WrittenState(state["name"], DistributionMode(state["mode"]), tuple(pieces)))
    return tuple(states)


def _decode_piece(piece: Mapping[str, Any], block: memoryview) -> WrittenElements:
    import pyarrow as pa

    key = None if piece["key"] is None else decode_snapshot(piece["key"])
    with pa.ipc.open_stream(pa.py_buffer(block)) as reader:
        return WrittenElements(key, decode_snapshot(piece["value"]), reader.read_all())


def _require_version(version: bytes) -> None:
    if version != b"%d" % VERSION:
        raise IncompatibleCheckpointError(
            f"Expected operator state in version {VERSION}, found {version[:10]!r}; restore with the release that wrote the "
            f"checkpoint, or a newer one."
        )


@dataclass(frozen=True, slots=True)
class ElementSerializers:
    """The serializers of a list, which has no keys, or of a broadcast map."""

    state: str
    """Its name, for errors."""
    key: TypeSerializer[Any] | None
    value: TypeSerializer[Any]

    @classmethod
    def of(cls, descriptor: ListStateDescriptor[Any] | MapStateDescriptor[Any]) -> ElementSerializers:
        """Return those that a descriptor names."""
        return cls(descriptor.name, descriptor.key_serializer, descriptor.serializer)

    def snapshots(self) -> tuple[SerializerSnapshot | None, SerializerSnapshot]:
        """Return what keys and values are written with."""
        return None if self.key is None else self.key.snapshot(), self.value.snapshot()

    def write(self, elements: Sequence[Any]) -> WrittenElements:
        """
        Return elements as columns; entries of a map are pairs.

        :raises UnsupportedStateError: for an element of another type.
        """
        import pyarrow as pa

        key, value = self.snapshots()
        if self.key is None:
            return WrittenElements(key, value, pa.table({VALUE: self.value.to_arrow(elements)}))
        keys, values = [entry[0] for entry in elements], [entry[1] for entry in elements]
        columns = {KEY: self.key.to_arrow(keys), VALUE: self.value.to_arrow(values)}
        return WrittenElements(key, value, pa.table(columns))

    def own(self, value: Any) -> Any:
        """
        Return what the state keeps of an element, or of a value of a map.

        :raises UnsupportedStateError: for one of another type.
        """
        return None if value is None else own_of(self.value)(value)

    def own_entry(self, key: Any, value: Any) -> tuple[Any, Any]:
        """
        Return what the state keeps of an entry of a map.

        :raises UnsupportedStateError: for a key or a value of another type.
        """
        return key if self.key is None else own_of(self.key)(key), self.own(value)

    def copy(self, value: Any) -> Any:
        """Return an element, or a value of a map, for a reader, who may change it."""
        return value if value is None or is_immutable(self.value) else self.value.copy(value)

    def read(self, written: WrittenElements) -> list[Any]:
        """
        Return elements from their columns, migrated if need be.

        :raises StateMigrationError: if they cannot go on with these serializers.
        """
        verdict = compatibility_of(self.state, self.value, written.value)
        values = _elements(verdict, self.value, written.column(VALUE))
        if self.key is None or written.key is None:
            return values
        keys = compatibility_of_keys(self.state, self.key, written.key)
        return list(zip(_elements(keys, self.key, written.column(KEY)), values, strict=True))

    def reconfigured(self, pieces: Iterable[WrittenElements]) -> ElementSerializers:
        """
        Return the serializers to use from now on, after a look at all that was written.

        :raises StateMigrationError: if any of it cannot go on with these serializers.
        """
        found = self
        for piece in pieces:
            verdict = compatibility_of(self.state, found.value, piece.value)
            found = replace(found, value=serializer_from_now_on(verdict, found.value))
            if found.key is not None and piece.key is not None:
                verdict = compatibility_of_keys(self.state, found.key, piece.key)
                found = replace(found, key=serializer_from_now_on(verdict, found.key))
        return found


def _elements(verdict: Compatibility, serializer: TypeSerializer[Any], array: Any) -> list[Any]:
    if verdict.outcome is Outcome.COMPATIBLE_AFTER_MIGRATION and verdict.migrate is not None:
        array = verdict.migrate(array)
    return serializer_from_now_on(verdict, serializer).from_arrow(array)
