"""
Small values as JSON and back, types included; never pickle.

A value that JSON has no type for is an object with one key ``$<type>``; objects of the user are lists of pairs, so that no
key of theirs can be taken for such a mark.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError

_SUPPORTED = (
    "None, bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID and list, tuple, set, "
    "frozenset and dict of these"
)
_SCALARS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    bytes: ("bytes", lambda v: base64.b64encode(v).decode(), base64.b64decode),
    datetime: (
        "datetime",
        lambda v: [v.isoformat(), v.fold],
        lambda v: datetime.fromisoformat(v[0]).replace(fold=v[1]),
    ),
    date: ("date", date.isoformat, date.fromisoformat),
    time: ("time", time.isoformat, time.fromisoformat),
    timedelta: (
        "timedelta",
        lambda v: [v.days, v.seconds, v.microseconds],
        lambda v: timedelta(days=v[0], seconds=v[1], microseconds=v[2]),
    ),
    Decimal: ("decimal", str, Decimal),
    UUID: ("uuid", str, UUID),
}
_COLLECTIONS: dict[type, str] = {tuple: "tuple", set: "set", frozenset: "frozenset"}
_DECODERS: dict[str, Callable[[Any], Any]] = {name: decode for name, _, decode in _SCALARS.values()}
_BUILDERS: dict[str, type] = {name: kind for kind, name in _COLLECTIONS.items()}


def encode_state(value: Any, path: str = "state") -> Any:
    """
    Return a value as JSON.

    :param path: Where the value is, for messages.
    :raises UnsupportedStateError: naming the place and the type of what cannot be saved.
    """
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in _SCALARS:
        name, encode, _ = _SCALARS[kind]
        return {f"${name}": encode(value)}
    return _encode_collection(value, path)


def decode_state(encoded: Any) -> Any:
    """
    Return the value that was encoded.

    :raises CorruptStateError: for JSON that :func:`encode_state` does not make.
    """
    if isinstance(encoded, list):
        return [decode_state(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    try:
        return _decode_marked(encoded)
    except (ValueError, TypeError, KeyError, ArithmeticError, IndexError) as error:
        raise CorruptStateError(f"Expected a saved value, found {str(encoded)[:80]!r}: {error}") from error


def _encode_collection(value: Any, path: str) -> Any:
    kind = type(value)
    if kind is list:
        return [encode_state(item, f"{path}[{i}]") for i, item in enumerate(value)]
    if kind in (set, frozenset):
        items = [encode_state(item, f"{path}{{{item!r}}}") for item in value]
        return {f"${_COLLECTIONS[kind]}": sorted(items, key=repr)}
    if kind is tuple:
        return {"$tuple": [encode_state(item, f"{path}[{i}]") for i, item in enumerate(value)]}
    if kind is dict:
        pairs = [[encode_state(k, f"{path} key {k!r}"), encode_state(v, f"{path}[{k!r}]")] for k, v in value.items()]
        return {"$dict": pairs}
    raise UnsupportedStateError(
        f"Expected {path} to be one of {_SUPPORTED}; found {kind.__module__}.{kind.__qualname__}. Save what it is made of."
    )


def _decode_marked(encoded: dict[str, Any]) -> Any:
    ((mark, content),) = encoded.items()
    name = mark.removeprefix("$")
    if name == "dict":
        return {decode_state(key): decode_state(value) for key, value in content}
    if name == "float":
        return float(content)
    if name in _BUILDERS:
        return _BUILDERS[name](decode_state(item) for item in content)
    return _DECODERS[name](content)
