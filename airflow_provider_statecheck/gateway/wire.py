"""
Messages as JSON and back, with nothing but the standard library.

A Spark cluster that has no Airflow needs no more than this to speak to its coordinator. What a newer server adds to a
message is ignored; what is missing takes its default.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

Message = TypeVar("Message")


def encode(value: Any) -> Any:
    """
    Turn a message into values that ``json.dumps`` takes.

    :param value: A dataclass of numbers, texts, enums, aware times, tuples, mappings by text and other such dataclasses.
    """
    if is_dataclass(value):
        return {f.name: encode(getattr(value, f.name)) for f in fields(value)}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, tuple | list):
        return [encode(each) for each in value]
    if isinstance(value, Mapping):
        return {key: encode(each) for key, each in value.items()}
    return value


def decode(kind: type[Message], data: Any) -> Message:
    """
    Turn what ``json.loads`` gave into a message.

    :param kind: The message's class, or any type that its fields have.
    :raises ValueError: if the data do not have the form of the message.
    """
    try:
        return _decode(kind, data)  # type: ignore[no-any-return]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"Expected a {getattr(kind, '__name__', kind)}, found {str(data)[:200]!r}: {error}") from error


def _decode(kind: Any, data: Any) -> Any:
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        return None if data is None else _decode(_the_other(kind), data)
    if origin is tuple:
        return _tuple(get_args(kind), data)
    if origin is dict:
        return {str(key): _decode(get_args(kind)[1], each) for key, each in _of_form(Mapping, data).items()}
    if is_dataclass(kind):
        return _dataclass(kind, data)
    return _plain(getattr(kind, "__supertype__", kind), data)


def _dataclass(kind: Any, data: Mapping[str, Any]) -> Any:
    _of_form(Mapping, data)
    hints = _hints(kind)
    return kind(**{f.name: _decode(hints[f.name], data[f.name]) for f in fields(kind) if f.name in data})


def _tuple(kinds: tuple[Any, ...], data: Any) -> tuple[Any, ...]:
    _of_form(list | tuple, data)
    if len(kinds) == 2 and kinds[1] is Ellipsis:
        return tuple(_decode(kinds[0], each) for each in data)
    return tuple(_decode(kind, each) for kind, each in zip(kinds, data, strict=True))


def _of_form(kind: Any, data: Any) -> Any:
    # A text can be iterated and searched too: it would pass for a list, or for a message all of whose fields have defaults.
    if not isinstance(data, kind):
        raise TypeError(f"{type(data).__name__} is of another form")
    return data


def _plain(kind: Any, data: Any) -> Any:
    if kind is Any:
        return data
    if kind is datetime:
        return datetime.fromisoformat(data)
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(data)
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return float(data)
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise TypeError(f"{data!r} is no {kind.__name__}")
    return data


def _the_other(kind: Any) -> Any:
    return next(each for each in get_args(kind) if each is not types.NoneType)


@functools.cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)
