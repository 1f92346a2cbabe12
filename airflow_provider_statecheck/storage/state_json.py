"""
JSON form of state handles, operator states and checkpoint properties.

Each ``encode_`` function has a ``decode_`` function that returns an equal value. Encoders shorten URIs, and decoders
lengthen them, with a function of the caller.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import fields
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    DistributionMode,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    MasterState,
    OperatorState,
    OperatorStateHandle,
    OperatorStateMeta,
    OperatorSubtaskState,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, KeyGroupRangeOffsets

Json = dict[str, Any]
UriForm = Callable[[str], str]
"""Converts a URI to its stored form, or a stored form to a URI."""


def encode_operator_state(state: OperatorState, shorten: UriForm) -> Json:
    """
    Return the JSON form of an operator's state.

    :param shorten: Converts a URI to its stored form.
    """
    coordinator = state.coordinator_state
    return {
        "operator_id": state.operator_id,
        "uid": state.uid,
        "name": state.name,
        "parallelism": state.parallelism,
        "max_parallelism": state.max_parallelism,
        "subtask_states": [
            [index, _encode_subtask(subtask, shorten)] for index, subtask in sorted(state.subtask_states.items())
        ],
        "coordinator_state": None if coordinator is None else encode_stream(coordinator, shorten),
        "is_fully_finished": state.is_fully_finished,
    }


def decode_operator_state(values: Json, lengthen: UriForm) -> OperatorState:
    """
    Return an operator's state from its JSON form.

    :param lengthen: Converts a stored form to a URI.
    :raises ValueError: or ``LookupError`` or ``TypeError``, if the values are not those of an operator's state.
    """
    coordinator = values.get("coordinator_state")
    return OperatorState(
        operator_id=OperatorId(text(values["operator_id"])),
        uid=text(values["uid"]),
        name=text(values.get("name", "")),
        parallelism=number(values["parallelism"]),
        max_parallelism=number(values["max_parallelism"]),
        subtask_states={
            number(index): _decode_subtask(subtask, lengthen) for index, subtask in values["subtask_states"]
        },
        coordinator_state=None if coordinator is None else decode_stream(coordinator, lengthen),
        is_fully_finished=boolean(values.get("is_fully_finished", False)),
    )


def encode_master_state(state: MasterState) -> Json:
    """Return the JSON form of a master hook's state."""
    return {"name": state.name, "version": state.version, "data": encode_bytes(state.data)}


def decode_master_state(values: Json) -> MasterState:
    """Return a master hook's state from its JSON form; raises as :func:`decode_operator_state`."""
    data = decode_bytes(values["data"])
    return MasterState(name=text(values["name"]), version=number(values["version"]), data=data)


def encode_properties(properties: CheckpointProperties) -> Json:
    """Return the JSON form of a snapshot's properties."""
    return {field.name: getattr(properties, field.name) for field in fields(properties)}


def decode_properties(values: Json) -> CheckpointProperties:
    """Return a snapshot's properties from their JSON form; raises as :func:`decode_operator_state`."""
    names = {field.name for field in fields(CheckpointProperties)}
    return CheckpointProperties(**{name: _decode_property(name, values[name]) for name in names & values.keys()})


def encode_stream(handle: StreamStateHandle, shorten: UriForm) -> Json:
    """
    Return the JSON form of a stream handle.

    :param shorten: Converts a URI to its stored form.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return {"kind": "bytes", "name": handle.name, "data": encode_bytes(handle.data)}
    if isinstance(handle, FileStateHandle):
        return {"kind": "file", "uri": shorten(handle.uri), "size": handle.size, "sha256": handle.sha256}
    return {
        "kind": "segment",
        "uri": shorten(handle.uri),
        "start": handle.start,
        "length": handle.length,
        "scope": handle.scope.value,
        "logical_id": handle.logical_id,
        "sha256": handle.sha256,
        "file_size": handle.file_size,
    }


def decode_stream(values: Json, lengthen: UriForm) -> StreamStateHandle:
    """
    Return a stream handle from its JSON form.

    :param lengthen: Converts a stored form to a URI.
    :raises ValueError: or ``LookupError`` or ``TypeError``, if the values are not those of a stream handle.
    """
    kind = values["kind"]
    if kind == "bytes":
        return ByteStreamStateHandle(text(values["name"]), decode_bytes(values["data"]))
    if kind == "file":
        return FileStateHandle(lengthen(text(values["uri"])), number(values["size"]), text(values.get("sha256", "")))
    if kind == "segment":
        return SegmentFileStateHandle(
            uri=lengthen(text(values["uri"])),
            start=number(values["start"]),
            length=number(values["length"]),
            scope=CheckpointedStateScope(values["scope"]),
            logical_id=text(values["logical_id"]),
            sha256=text(values.get("sha256", "")),
            file_size=number(values.get("file_size", 0)),
        )
    raise _unknown_kind(kind)


def encode_keyed(handle: KeyedStateHandle, shorten: UriForm) -> Json:
    """Return the JSON form of a keyed state handle."""
    key_groups = [handle.key_group_range.start, handle.key_group_range.end]
    if isinstance(handle, KeyGroupsStateHandle):
        stream = encode_stream(handle.stream, shorten)
        return {"kind": "key_groups", "range": key_groups, "offsets": list(handle.offsets), "stream": stream}
    return {
        "kind": "incremental",
        "backend_id": handle.backend_id,
        "range": key_groups,
        "checkpoint_id": handle.checkpoint_id,
        "shared": [[path, encode_stream(stream, shorten)] for path, stream in handle.shared],
        "private": [[path, encode_stream(stream, shorten)] for path, stream in handle.private],
        "meta": None if handle.meta is None else encode_stream(handle.meta, shorten),
    }


def decode_keyed(values: Json, lengthen: UriForm) -> KeyedStateHandle:
    """Return a keyed state handle from its JSON form; raises as :func:`decode_stream`."""
    start, end = map(number, values["range"])
    key_groups = KeyGroupRange(start, end)
    if values["kind"] == "key_groups":
        offsets = KeyGroupRangeOffsets(key_groups, tuple(map(number, values["offsets"]))).offsets
        return KeyGroupsStateHandle(key_groups, offsets, decode_stream(values["stream"], lengthen))
    if values["kind"] != "incremental":
        raise _unknown_kind(values["kind"])
    meta = values.get("meta")
    return IncrementalKeyedStateHandle(
        backend_id=text(values["backend_id"]),
        key_group_range=key_groups,
        checkpoint_id=number(values["checkpoint_id"]),
        shared=_decode_files(values["shared"], lengthen),
        private=_decode_files(values["private"], lengthen),
        meta=None if meta is None else decode_stream(meta, lengthen),
    )


def encode_operator(handle: OperatorStateHandle, shorten: UriForm) -> Json:
    """Return the JSON form of an operator state handle."""
    states = [[name, {"offsets": list(meta.offsets), "mode": meta.mode.value}] for name, meta in handle.states]
    return {"states": states, "stream": encode_stream(handle.stream, shorten)}


def decode_operator(values: Json, lengthen: UriForm) -> OperatorStateHandle:
    """Return an operator state handle from its JSON form; raises as :func:`decode_stream`."""
    states = tuple((text(name), _decode_meta(meta)) for name, meta in values["states"])
    return OperatorStateHandle(states=states, stream=decode_stream(values["stream"], lengthen))


def encode_bytes(data: bytes) -> str:
    """Return bytes as Base64 text."""
    return base64.b64encode(data).decode()


def decode_bytes(value: Any) -> bytes:
    """Return the bytes of Base64 text."""
    return base64.b64decode(text(value), validate=True)


def text(value: Any) -> str:
    """
    Return a value after checking that it is a string.

    :raises TypeError: if it has another type.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def number(value: Any) -> int:
    """
    Return a value after checking that it is an integer.

    :raises TypeError: if it has another type; ``bool`` is no integer here.
    """
    if type(value) is not int:
        raise TypeError(f"expected a whole number, found {type(value).__name__}")
    return value


def boolean(value: Any) -> bool:
    """
    Return a value after checking that it is a boolean.

    :raises TypeError: if it has another type.
    """
    if not isinstance(value, bool):
        raise TypeError(f"expected true or false, found {type(value).__name__}")
    return value


def _decode_files(values: Any, lengthen: UriForm) -> tuple[tuple[str, StreamStateHandle], ...]:
    return tuple((text(path), decode_stream(stream, lengthen)) for path, stream in values)


def _decode_meta(values: Json) -> OperatorStateMeta:
    offsets = tuple(map(number, values["offsets"]))
    return OperatorStateMeta(offsets=offsets, mode=DistributionMode(values["mode"]))


def _unknown_kind(kind: Any) -> ValueError:
    return ValueError(f"it holds a state handle of the unknown kind {kind!r}; a later release may have written it")


def _decode_property(name: str, value: Any) -> Any:
    if name == "snapshot_type":
        return CheckpointType(value)
    if name == "savepoint_format":
        return None if value is None else SavepointFormat(value)
    return text(value) if name == "part" else boolean(value)


def _encode_subtask(state: OperatorSubtaskState, shorten: UriForm) -> Json:
    return {
        "managed_operator": [encode_operator(handle, shorten) for handle in state.managed_operator],
        "raw_operator": [encode_operator(handle, shorten) for handle in state.raw_operator],
        "managed_keyed": [encode_keyed(handle, shorten) for handle in state.managed_keyed],
        "raw_keyed": [encode_keyed(handle, shorten) for handle in state.raw_keyed],
    }


def _decode_subtask(values: Json, lengthen: UriForm) -> OperatorSubtaskState:
    return OperatorSubtaskState(
        managed_operator=tuple(decode_operator(handle, lengthen) for handle in values.get("managed_operator", ())),
        raw_operator=tuple(decode_operator(handle, lengthen) for handle in values.get("raw_operator", ())),
        managed_keyed=tuple(decode_keyed(handle, lengthen) for handle in values.get("managed_keyed", ())),
        raw_keyed=tuple(decode_keyed(handle, lengthen) for handle in values.get("raw_keyed", ())),
    )
