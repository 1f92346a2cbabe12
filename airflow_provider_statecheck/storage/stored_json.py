"""
JSON in storage: reading within bounds, with one error for other content, and state values.

Any job writes below a checkpoint directory, and commands and servers read the files of all jobs. JSON has no bounds of
its own: it may be nested deeper than the interpreter's stack, have numbers that no column holds, or take twenty times
its size in memory. All JSON that is read from storage is therefore read here.

State values keep their types and time zones, and are never pickled: a value without a JSON type is an object with the
single key ``$<type>``, and a dict is a list of pairs under ``$dict``, because its own keys could otherwise be taken for
a type tag.
"""

from __future__ import annotations

import base64
import json
import math
import re
import reprlib
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from functools import partial
from typing import Any, Final
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.storage.uris import redact

DEEPEST: Final = 256
"""Deepest nesting of arrays and objects; that of state values, which may be 64 collections deep, is below 200."""
MOST_VALUES: Final = 1_000_000
"""Largest number of values in one text. An empty array has three bytes as JSON, and sixty-four in memory."""
UNDECODABLE: Final = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError, zlib.error)
"""Errors of code that decodes values of a form that it did not write."""

# A text without an end reaches to that of the data, and nothing is matched twice: otherwise the search would start
# again at each quote, and take hours for a megabyte.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_WHOLE_TEXTS = re.compile(rb'(?:[^"]++|"(?:[^"\\]++|\\.)*+")*+', re.DOTALL)
_PIECE = 1024 * 1024
_TO_BRACKETS = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(each for each in range(256) if each not in b"[]{}")
_DIGITS = 20
_HIGHEST = 2**64


def read_json(data: bytes | str, uri: str, *, is_bounded: bool = True) -> Any:
    """
    Return the values of a JSON text.

    :param uri: URI of its file, for messages.
    :param is_bounded: Whether the number of values is bounded.
    :raises CorruptStateError: if it is no JSON, is nested too deeply, has too many values, or a number that is not
        finite or above 64 bits.
    """
    try:
        return parse(data, is_bounded=is_bounded)
    except (ValueError, RecursionError) as error:
        raise CorruptStateError(
            f"Expected JSON in {redact(uri)}, found other content: {error}.", uri=redact(uri)
        ) from error


def parse(data: bytes | str, *, is_bounded: bool = True) -> Any:
    """
    Return the values of a JSON text within the bounds of this module.

    :param is_bounded: Whether the number of values is bounded.
    :raises ValueError: if it is not within them, or no JSON.
    """
    text = data if isinstance(data, bytes) else data.encode("utf-8", "surrogatepass")
    if is_bounded:
        require_bounds(text)
    require_flat(text)
    return json.loads(data, parse_int=_whole, parse_float=_finite, parse_constant=_refuse)


@contextmanager
def decoding(expected: str) -> Iterator[None]:
    """
    Report values from storage that a block cannot decode.

    :param expected: What the values were expected to be.
    :raises CorruptStateError: if the block raises an error for invalid values.
    """
    try:
        yield
    except UNDECODABLE as error:
        raise CorruptStateError(
            f"Expected {expected}, found invalid data or those of another source: {error!r:.500}; restore another "
            "checkpoint, or start without the state."
        ) from error


def require_bounds(data: bytes, longest: int | None = None, most_values: int = MOST_VALUES) -> None:
    """
    Raise an error for a JSON text that would take too much memory or time.

    :param longest: Largest size in bytes; by default the caller has bounded it.
    :param most_values: Largest number of values.
    :raises ValueError: if it is too long, or has too many values.
    """
    if longest is not None and len(data) > longest:
        raise ValueError(f"{len(data)} bytes instead of at most {longest}")
    if data.count(b",") + data.count(b"[") + data.count(b"{") > most_values:
        raise ValueError(f"more than {most_values} values")


def require_flat(data: bytes) -> None:
    """
    Raise an error for a JSON text that would end the stack of the interpreter.

    :raises ValueError: if it is nested too deeply.
    """
    if data.count(b"[") + data.count(b"{") > DEEPEST and _is_deep(data):
        raise ValueError(f"nested more than {DEEPEST} deep")


def _is_deep(data: bytes) -> bool:
    # Each pass removes the innermost arrays and objects, at the speed of C.
    brackets = _brackets(data)
    for _ in range(DEEPEST):
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            return False  # none are left, or they are not in pairs, which the parser reports
        brackets = left
    return bool(brackets)


def _brackets(data: bytes) -> bytes:
    """Return the brackets outside of texts, piece by piece: what is around many texts takes ten times its size."""
    found, start = bytearray(), 0
    while start < len(data):
        end = _end_of(_WHOLE_TEXTS.match(data, start, start + _PIECE))
        if end == start:  # a text that is longer than a piece
            end = _end_of(_TEXT.match(data, start))
        found += _TEXT.sub(b"", data[start:end]).translate(_TO_BRACKETS, _NO_BRACKETS)
        start = end
    return bytes(found)


def _end_of(found: re.Match[bytes] | None) -> int:
    assert found is not None  # noqa: S101 - both patterns match at each place that they are asked for
    return found.end()


def _whole(text: str) -> int:
    number = int(text) if len(text) <= _DIGITS + 1 else _HIGHEST
    if not -_HIGHEST < number < _HIGHEST:
        raise ValueError("a whole number above 64 bits")
    return number


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError("a number that is not finite")
    return number


def _refuse(text: str) -> float:
    raise ValueError(f"the number {text}")


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
