"""State handles as JSON: what they are is told by ``kind``, bytes are base64, nothing names a class."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    CheckpointedStateScope,
    DistributionMode,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorStateHandle,
    OperatorStateMeta,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, KeyGroupRangeOffsets
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

Json = dict[str, Any]
UriForm = Callable[[str], str]
"""Turns a URI into its written form, or back."""


def encode_stream(handle: StreamStateHandle, shorten: UriForm) -> Json:
    """
    Return a stream as JSON.

    :raises InvalidConfigurationError: for a placeholder, whose state only the coordinator knows where to find.
    """
    if isinstance(handle, ByteStreamStateHandle):
        return {"kind": "bytes", "name": handle.name, "data": encode_bytes(handle.data)}
    if isinstance(handle, FileStateHandle):
        return {"kind": "file", "uri": shorten(handle.uri), "size": handle.size, "sha256": handle.sha256}
    if isinstance(handle, SegmentFileStateHandle):
        return {
            "kind": "segment",
            "uri": shorten(handle.uri),
            "start": handle.start,
            "length": handle.length,
            "scope": handle.scope.value,
            "logical_id": handle.logical_id,
            "sha256": handle.sha256,
        }
    raise InvalidConfigurationError(
        f"Expected state that a restore can read, found {type(handle).__name__}; replace placeholders by what they stand for."
    )


def decode_stream(values: Json, lengthen: UriForm) -> StreamStateHandle:
    """
    Return the stream that was encoded.

    :raises ValueError: or another error of a lookup or type, for what is no stream.
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
        )
    raise _unknown_kind(kind)


def encode_keyed(handle: KeyedStateHandle, shorten: UriForm) -> Json:
    """Return keyed state as JSON; raises as :func:`encode_stream`."""
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
    """Return the keyed state that was encoded; raises as :func:`decode_stream`."""
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
    """Return operator state as JSON; raises as :func:`encode_stream`."""
    states = [[name, {"offsets": list(meta.offsets), "mode": meta.mode.value}] for name, meta in handle.states]
    return {"states": states, "stream": encode_stream(handle.stream, shorten)}


def decode_operator(values: Json, lengthen: UriForm) -> OperatorStateHandle:
    """Return the operator state that was encoded; raises as :func:`decode_stream`."""
    states = tuple((text(name), _decode_meta(meta)) for name, meta in values["states"])
    return OperatorStateHandle(states=states, stream=decode_stream(values["stream"], lengthen))


def encode_bytes(data: bytes) -> str:
    """Return bytes as text."""
    return base64.b64encode(data).decode()


def decode_bytes(value: Any) -> bytes:
    """Return the bytes that were encoded."""
    return base64.b64decode(text(value), validate=True)


def text(value: Any) -> str:
    """
    Return a value that is text.

    :raises TypeError: if it is not.
    """
    if not isinstance(value, str):
        raise TypeError(f"expected text, found {type(value).__name__}")
    return value


def number(value: Any) -> int:
    """
    Return a value that is a whole number.

    :raises TypeError: if it is not.
    """
    if type(value) is not int:
        raise TypeError(f"expected a whole number, found {type(value).__name__}")
    return value


def boolean(value: Any) -> bool:
    """
    Return a value that is true or false.

    :raises TypeError: if it is not.
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
    return ValueError(f"it holds a state handle of the unknown kind {kind!r}; perhaps a later release wrote it")
