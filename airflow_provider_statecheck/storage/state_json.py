"""
JSON form of state values.

Values keep their types and time zones, and are never pickled: a value without a JSON type is an object with the single
key ``$<type>``, and a dict is a list of pairs under ``$dict``, because its own keys could otherwise be taken for a type
tag.
"""

from __future__ import annotations

import base64
import math
import reprlib
from collections.abc import Callable
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError


def _encode_time(value: datetime | time, path: str) -> list[Any]:
    return [value.replace(tzinfo=None).isoformat(), value.fold, _encode_zone(value.tzinfo, path)]


def _decode_time(kind: type[datetime | time], encoded: list[Any]) -> datetime | time:
    text, fold, zone = encoded
    return kind.fromisoformat(text).replace(fold=fold, tzinfo=_decode_zone(zone))


def _encode_timedelta(value: timedelta) -> list[int]:
    return [value.days, value.seconds, value.microseconds]


def _decode_timedelta(encoded: list[int]) -> timedelta:
    days, seconds, microseconds = encoded
    return timedelta(days=days, seconds=seconds, microseconds=microseconds)


def _encode_zone(zone: tzinfo | None, path: str) -> dict[str, Any] | None:
    if zone is None:
        return None
    if isinstance(zone, ZoneInfo) and zone.key:
        # Includes subclasses, such as those of Airflow's datetimes: the key alone defines the zone.
        return {"zone": zone.key}
    if type(zone) is timezone:
        offset = zone.utcoffset(None)
        name = zone.tzname(None)
        is_default = name == timezone(offset).tzname(None)
        return {"offset": _encode_timedelta(offset), "name": None if is_default else name}
    kind = type(zone)
    raise UnsupportedStateError(
        f"Expected the time zone of {path} to be a datetime.timezone or a zoneinfo.ZoneInfo with a key; found "
        f"{kind.__module__}.{kind.__qualname__}. Convert it with astimezone()."
    )


def _decode_zone(encoded: dict[str, Any] | None) -> tzinfo | None:
    if encoded is None:
        return None
    if "zone" in encoded:
        return _zone_named(encoded["zone"])
    offset, name = _decode_timedelta(encoded["offset"]), encoded["name"]
    return timezone(offset) if name is None else timezone(offset, name)


def _zone_named(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except OSError as error:  # a directory of zones, or a name that no file has
        raise ValueError(f"no time zone {key!r:.100}") from error


MAX_DEPTH = 64
"""Maximum nesting depth of collections; a restore may run with a smaller interpreter stack."""

_SUPPORTED = (
    "None, bool, int, float, str, bytes, date, datetime, time, timedelta, Decimal, UUID and list, tuple, set, "
    "frozenset and dict of these"
)
# Larger integers are stored as hexadecimal text, because Python limits the length of decimal text.
_JSON_INT_BITS = 64
_SCALARS: dict[type, tuple[str, Callable[[Any, str], Any]]] = {
    bytes: ("bytes", lambda v, _: base64.b64encode(v).decode()),
    datetime: ("datetime", _encode_time),
    date: ("date", lambda v, _: v.isoformat()),
    time: ("time", _encode_time),
    timedelta: ("timedelta", lambda v, _: _encode_timedelta(v)),
    Decimal: ("decimal", lambda v, _: str(v)),
    UUID: ("uuid", lambda v, _: str(v)),
}
_COLLECTIONS = (list, tuple, set, frozenset, dict)
_DECODERS: dict[str, Callable[[Any], Any]] = {
    "$bytes": lambda v: base64.b64decode(v, validate=True),
    "$date": date.fromisoformat,
    "$datetime": partial(_decode_time, datetime),
    "$decimal": Decimal,
    "$float": float,
    "$frozenset": lambda items: frozenset(map(_decode, items)),
    "$int": lambda v: int(v, 16),
    "$set": lambda items: set(map(_decode, items)),
    "$str": lambda v: base64.b64decode(v, validate=True).decode("utf-8", "surrogatepass"),
    "$time": partial(_decode_time, time),
    "$timedelta": _decode_timedelta,
    "$tuple": lambda items: tuple(map(_decode, items)),
    "$uuid": UUID,
    "$dict": lambda pairs: {_decode(key): _decode(value) for key, value in pairs},
}


def encode_state(value: Any, path: str = "state") -> Any:
    """
    Return the JSON form of a value.

    :param path: Path of the value in the state, for messages.
    :raises UnsupportedStateError: if the value, or a value in it, has an unsupported type or is nested too deep.
    """
    return _encode(value, path, 0)


def decode_state(encoded: Any) -> Any:
    """
    Return a value from its JSON form.

    :raises CorruptStateError: if :func:`encode_state` cannot have written the JSON.
    """
    try:
        return _decode(encoded)
    except RecursionError as error:
        raise CorruptStateError(f"Expected collections nested at most {MAX_DEPTH} deep, found more.") from error


def _encode(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if value is None or kind is bool:
        return value
    if kind is str:
        return _encode_text(value)
    if kind is int:
        return value if value.bit_length() <= _JSON_INT_BITS else {"$int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"$float": repr(value)}
    if kind in _SCALARS:
        name, encode = _SCALARS[kind]
        return {f"${name}": encode(value, path)}
    _require_collection(kind, path, depth)
    return _encode_collection(value, path, depth + 1)


def _encode_text(value: str) -> Any:
    try:
        value.encode()
    except UnicodeEncodeError:
        # File names may contain lone surrogates, which UTF-8 cannot encode.
        return {"$str": base64.b64encode(value.encode("utf-8", "surrogatepass")).decode()}
    return value


def _require_collection(kind: type, path: str, depth: int) -> None:
    if kind not in _COLLECTIONS:
        raise UnsupportedStateError(
            f"Expected {path} to be one of {_SUPPORTED}; found {kind.__module__}.{kind.__qualname__}. Save its "
            f"contents as these types."
        )
    if depth >= MAX_DEPTH:
        raise UnsupportedStateError(
            f"Expected collections nested at most {MAX_DEPTH} deep, found one more at {path[:200]}; check that it does "
            "not contain itself."
        )


def _encode_collection(value: Any, path: str, depth: int) -> Any:
    kind = type(value)
    if kind is dict:
        return {"$dict": [_encode_pair(key, item, path, depth) for key, item in value.items()]}
    if kind in (set, frozenset):
        items = [_encode(item, f"{path}{{{item!r}}}", depth) for item in value]
        return {f"${kind.__name__}": sorted(items, key=repr)}
    items = [_encode(item, f"{path}[{i}]", depth) for i, item in enumerate(value)]
    return items if kind is list else {"$tuple": items}


def _encode_pair(key: Any, value: Any, path: str, depth: int) -> list[Any]:
    return [_encode(key, f"{path} key {key!r}", depth), _encode(value, f"{path}[{key!r}]", depth)]


def _decode(encoded: Any) -> Any:
    if isinstance(encoded, list):
        return [_decode(item) for item in encoded]
    if not isinstance(encoded, dict):
        return encoded
    try:
        ((tag, content),) = encoded.items()
        return _DECODERS[tag](content)
    except (ValueError, TypeError, LookupError, ArithmeticError, AttributeError) as error:
        raise CorruptStateError(f"Expected a saved value, found {reprlib.repr(encoded)}: {error}") from error
