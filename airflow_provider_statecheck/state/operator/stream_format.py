"""
The bytes of the operator state of one subtask.

A line with the magic word, the version and the length of what follows; JSON that names the states, what their serializers
were and where their columns are; and the columns, each table as an Arrow IPC stream. The offset of an element is its row
among all rows of its state, so that an element costs what its value costs; a broadcast map has one offset, of the whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import DistributionMode, OperatorStateMeta
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError
from airflow_provider_statecheck.state.operator.state_names import stored_name
from airflow_provider_statecheck.state.operator.written_elements import WrittenElements
from airflow_provider_statecheck.state.serializers.snapshot_json import decode_snapshot, encode_snapshot

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
