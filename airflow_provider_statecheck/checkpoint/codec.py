"""
JSON codec of dataclasses: messages, answers and what is stored; valid values and texts.

It needs neither Airflow nor FastAPI, so drivers on a Spark cluster can use it. The decoder ignores unknown fields,
which a newer server may send, and sets missing fields to their defaults.
"""

from __future__ import annotations

import base64
import functools
import json
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, fields, is_dataclass
from datetime import datetime
from enum import Enum
from functools import partial
from numbers import Integral
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import CoordinatorError, InvalidConfigurationError

Message = TypeVar("Message")
LONGEST_TEXT = 2000
"""Maximum number of characters of an error text in a message."""
_TEXT_START = 500
"""Number of characters that are kept from the start of a longer one."""

_NAMES: dict[Any, str] = {
    str: "text",
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    bytes: "bytes as base64",
    dict: "an object",
    tuple: "a list",
    datetime: "a time such as 2026-01-01T00:00:00+00:00",
}
_PLAIN = (str, int, float, bool, types.NoneType)


def encode(value: Any) -> Any:
    """
    Encode a message as values for ``json.dumps``.

    :param value: A dataclass whose fields are numbers, texts, bytes, enums, aware times, tuples, mappings, or
        dataclasses of these. The keys of mappings are texts or whole numbers. Classes that are alternatives of a field
        have a ``TAG``, which is encoded with their fields.
    """
    if type(value) in _PLAIN:  # most values; a text enum is of none of these classes
        return value
    form = form_of(value)
    # Without a call for each of the numbers of a list, of which statistics have hundreds.
    if isinstance(form, list):
        return [each if type(each) in _PLAIN else encode(each) for each in form]
    if isinstance(form, dict):
        return {key: each if type(each) in _PLAIN else encode(each) for key, each in form.items()}
    return form


def form_of(value: Any) -> Any:
    """Return a list, an object, a text or a number for a value without a JSON form; its elements are not encoded."""
    if is_dataclass(value):
        form = {key: getattr(value, name) for key, name in _names_of(value.__class__).items()}
        return {**form, "kind": value.TAG} if hasattr(value, "TAG") else form
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, bytes):
        return base64.b64encode(value).decode()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def key_of(field: Field[Any]) -> str:
    """
    Return the key of a field in JSON: its name, unless ``field(metadata={"alias": ...})`` keeps one that is stored.

    A field of a message or of what is stored can so have another name without a change of the format. Pydantic, with
    which the API describes and writes its replies, reads the same metadata.
    """
    key: str = field.metadata.get("alias", field.name)
    return key


@functools.cache
def _names_of(kind: Any) -> dict[str, str]:
    return {key_of(f): f.name for f in fields(kind)}


_LISTS = (list, tuple, types.GeneratorType)
# One encoder for all calls takes less time than json.dumps(), which makes one for each.
to_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=form_of).encode
"""Returns the JSON of a value for ``json.dumps``, in which messages are also allowed."""


def json_parts(answer: Any) -> Iterator[str]:
    """
    Yield the JSON of an answer in parts: a list, or an object with lists in some of its fields.

    The elements of these lists are encoded one by one, so an answer above a limit costs no more memory than the limit
    and one element. A list may be a generator, which makes the elements one by one.

    :param answer: Value for ``json.dumps``, in which messages are also allowed.
    """
    if isinstance(answer, _LISTS):
        yield from _list_parts(answer)
        return
    values = answer if isinstance(answer, dict) else form_of(answer)
    lists = {name: value for name, value in values.items() if isinstance(value, _LISTS)}
    yield from object_parts(to_json({name: value for name, value in values.items() if name not in lists}), lists)


def object_parts(head: str, lists: Mapping[str, Iterable[Any]]) -> Iterator[str]:
    """
    Yield the JSON of an object in parts.

    :param head: JSON of an object with the fields before the lists.
    :param lists: Further fields, whose elements are encoded one by one.
    """
    before = "" if head == "{}" else ","
    yield head[:-1]
    for name, elements in lists.items():
        yield f'{before}"{name}":'
        yield from _list_parts(elements)
        before = ","
    yield "}"


def _list_parts(elements: Iterable[Any]) -> Iterator[str]:
    before = "["
    for element in elements:
        yield before + to_json(element)
        before = ","
    yield "]" if before == "," else "[]"


class MalformedMessageError(ValueError):
    """
    Data that do not match the form of a message.

    The text does not quote the data, which may contain a secret in the wrong field.

    :param path: Path of the value in the message, outermost field first.
    """

    def __init__(self, expected: str, path: tuple[str | int, ...] = ()) -> None:
        super().__init__(f"Expected {expected} in {field_path(path)}")
        self.expected = expected
        self.path = path

    def below(self, place: str | int) -> MalformedMessageError:
        """Return the error with a path that is relative to the enclosing value."""
        return MalformedMessageError(self.expected, (place, *self.path))


def field_path(path: tuple[str | int, ...]) -> str:
    """Return the dotted name of a field, such as ``attempt.epoch``."""
    return ".".join(map(str, path)) or "the message"


def decode(kind: type[Message], data: Any) -> Message:
    """
    Decode a message from a value of ``json.loads``.

    :param kind: Class of the message, or any type that a field can have.
    :raises MalformedMessageError: if the data do not match; the error names the field.
    """
    wanted: Any = kind
    return _decoder(wanted)(data)  # type: ignore[no-any-return]


@functools.cache
def _decoder(kind: Any) -> Callable[[Any], Any]:
    # Made once for each type, because reading a type takes longer than decoding most of its values.
    kind = getattr(kind, "__supertype__", kind)
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _union_decoder(arguments)
    if origin is tuple and arguments[1:] == (Ellipsis,):
        return partial(_tuple, arguments[0], _decoder(arguments[0]))
    if origin is tuple:
        return partial(_fixed_tuple, tuple((place, each, _decoder(each)) for place, each in enumerate(arguments)))
    if origin in (dict, Mapping):
        return partial(_mapping, arguments[0], _decoder(arguments[1]))
    if isinstance(kind, type) and issubclass(kind, tuple):  # a named tuple, which is a list in JSON
        values = _decoder(types.GenericAlias(tuple, tuple(get_type_hints(kind).values())))
        return lambda data: kind(*values(data))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return partial(_member, kind, {each.value: each for each in kind})
    return partial(_dataclass if is_dataclass(kind) else _plain, kind)


def _union_decoder(kinds: tuple[Any, ...]) -> Callable[[Any], Any]:
    found = [each for each in kinds if each is not types.NoneType]
    decoder = _decoder(found[0]) if len(found) == 1 else partial(_tagged, {each.TAG: each for each in found})
    return decoder if len(found) == len(kinds) else lambda data: None if data is None else decoder(data)


def _tagged(kinds: Mapping[Any, Any], data: Any) -> Any:
    tag = data.get("kind") if isinstance(data, dict) else None
    if not isinstance(tag, str) or tag not in kinds:
        raise MalformedMessageError(f"an object whose kind is one of {', '.join(map(repr, kinds))}")
    return _dataclass(kinds[tag], data)


def _dataclass(kind: Any, data: Any) -> Any:
    sent, found = data if type(data) is dict else _of_form(Mapping, data, "an object"), {}
    for key, name, hint, decoder, is_required in _form(kind):
        if key in sent:
            value = sent[key]
            found[name] = value if type(value) is hint else _below(key, decoder, value)
        elif is_required:
            raise MalformedMessageError("a value", (key,))
    return _accepted(kind, partial(kind, **found))


@functools.cache
def _form(kind: Any) -> tuple[tuple[str, str, Any, Callable[[Any], Any], bool], ...]:
    hints = {name: getattr(hint, "__supertype__", hint) for name, hint in get_type_hints(kind).items()}
    return tuple(
        (key, f.name, hints[f.name], _decoder(hints[f.name]), f.default is MISSING and f.default_factory is MISSING)
        for key, f in ((key_of(each), each) for each in fields(kind))
    )


def _mapping(key: Any, decoder: Callable[[Any], Any], data: Any) -> dict[Any, Any]:
    # The keys of JSON are texts.
    items = _of_form(Mapping, data, "an object").items()
    return {_accepted(key, partial(key, name)): _below(name, decoder, each) for name, each in items}


def _tuple(kind: Any, decoder: Callable[[Any], Any], data: Any) -> tuple[Any, ...]:
    # A text is iterable too and must not be decoded as a list.
    items = _of_form(list | tuple, data, "a list")
    if kind in _PLAIN and set(map(type, items)) <= {kind}:
        return tuple(items)
    return tuple([_below(place, decoder, each) for place, each in enumerate(items)])


def _fixed_tuple(form: tuple[tuple[int, Any, Callable[[Any], Any]], ...], data: Any) -> tuple[Any, ...]:
    items = _of_form(list | tuple, data, "a list")
    if len(items) != len(form):
        raise MalformedMessageError(f"a list of {len(form)}")
    return tuple([items[i] if type(items[i]) is kind else _below(i, decode, items[i]) for i, kind, decode in form])


def _below(place: str | int, decoder: Callable[[Any], Any], data: Any) -> Any:
    try:
        return decoder(data)
    except MalformedMessageError as error:
        raise error.below(place) from error.__cause__


def _of_form(form: Any, data: Any, expected: str) -> Any:
    if not isinstance(data, form):
        raise MalformedMessageError(expected)
    return data


def _member(kind: Any, members: Mapping[Any, Enum], data: Any) -> Enum:
    try:
        return members[data]
    except (KeyError, TypeError) as error:
        raise MalformedMessageError(name_of_form(kind)) from error


def _plain(kind: Any, data: Any) -> Any:
    if kind is Any or type(data) is kind:
        return data
    if kind is datetime:
        return _accepted(kind, partial(_time, data))
    if kind is bytes:
        return _accepted(kind, partial(base64.b64decode, data, validate=True))
    if kind is float and isinstance(data, int) and not isinstance(data, bool):
        return _accepted(kind, partial(float, data))
    if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
        raise MalformedMessageError(name_of_form(kind))
    return data


def _time(text: str) -> datetime:
    found = datetime.fromisoformat(text)
    if found.tzinfo is None:
        raise ValueError("no time zone")  # it could not be compared with other times
    return found


def _accepted(kind: Any, make: Callable[[], Any]) -> Any:
    try:
        return make()
    except (TypeError, ValueError, OverflowError) as error:
        raise MalformedMessageError(name_of_form(kind)) from error


def name_of_form(kind: Any) -> str:
    """Return how an error names the values of a type."""
    if isinstance(kind, type) and issubclass(kind, Enum):
        return f"one of {', '.join(repr(each.value) for each in kind)}"
    return _NAMES.get(kind, f"a valid {kind.__name__}")


def of_fields(kind: type[Message], values: Mapping[str, Any]) -> Message:
    """
    Return a dataclass with values that have the classes of its fields, in a fraction of the time of :func:`decode`.

    :param values: Values by the keys of the fields, see :func:`key_of`.
    :raises TypeError: for a value of another class, an unknown name, or a missing value.
    """
    wanted: Any = kind
    classes, names = _classes_in(wanted), _names_of(wanted)
    if not all(isinstance(value, classes.get(key, object)) for key, value in values.items()):
        raise TypeError(f"a value of another class in a {kind.__name__}")
    return kind(**{names.get(key, key): value for key, value in values.items()})


@functools.cache
def _classes_in(kind: Any) -> dict[str, tuple[type, ...]]:
    hints = get_type_hints(kind)
    return {key: classes_of(hints[name]) for key, name in _names_of(kind).items()}


def classes_of(kind: Any) -> tuple[type, ...]:
    """Return the classes that the values of a field may have."""
    kind = getattr(kind, "__supertype__", kind)
    if get_origin(kind) in (Union, types.UnionType):
        return tuple(each for choice in get_args(kind) for each in classes_of(choice))
    return (float, int) if kind is float else (get_origin(kind) or kind,)


Reply = TypeVar("Reply")


def read_reply(kind: type[Reply], data: Any) -> Reply:
    """
    Decode the reply of a server.

    :raises CoordinatorError: if the reply does not match, because the server has another version.
    """
    with reading_reply():
        return decode(kind, data)


@contextmanager
def reading_reply() -> Iterator[None]:
    """
    Map an error of the decoding of a reply to an error of this package.

    :raises CoordinatorError: if the reply does not match, because the server has another version.
    """
    try:
        yield
    except ValueError as error:
        raise CoordinatorError(
            f"Expected a reply of this version of the API, found another one ({error}); install the same version of "
            "the provider on the api-server and on the workers."
        ) from error


def storable_text(text: str) -> str:
    """
    Mask the secrets of an error text, shorten it in the middle and replace the characters that a database cannot store.

    An error may quote data that contains U+0000 or a lone surrogate, and the API limits the size of a message. The end
    of a traceback says what failed.
    """
    text = masked(text)
    if len(text) > LONGEST_TEXT:
        text = f"{text[:_TEXT_START]}…{text[_TEXT_START + 1 - LONGEST_TEXT :]}"
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def truncated(text: str, max_bytes: int) -> str:
    """Truncate a text to its maximum size in a row; an ellipsis replaces the rest."""
    if json_size(text) <= max_bytes:
        return text
    prefix = text[:max_bytes]
    while json_size(f"{prefix}…") > max_bytes:
        prefix = prefix[: len(prefix) * 9 // 10]
    return f"{prefix}…"


def json_size(value: Any) -> int:
    """Return the size of a value in a row as JSON, in which a character takes up to twelve bytes."""
    return len(json.dumps(value))


def require(key: str, value: Any, is_valid: Callable[[Any], bool], expected: str) -> None:
    """
    Raise an error if a setting is out of range.

    :param is_valid: Whether a value is valid. It may raise a ``TypeError`` for a value of another type.
    :param expected: Description of the valid values, for the error.
    :raises InvalidConfigurationError: if the value is not valid.
    """
    if not _holds(is_valid, value):
        raise InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)


def _holds(is_valid: Callable[[Any], bool], value: Any) -> bool:
    try:
        return is_valid(value)
    except TypeError:
        return False


def require_count(key: str, value: Any) -> int:
    """
    Return a value as an integer if it is a whole number of at least 1, such as an integer of NumPy.

    :raises InvalidConfigurationError: if it is not.
    """
    require(
        key,
        value,
        lambda n: not isinstance(n, bool) and isinstance(n, Integral) and int(n) >= 1,
        "a whole number of at least 1",
    )
    return int(value)


def plain_integer(value: Any) -> Any:
    """Return an integer, such as one of NumPy, as one that databases and JSON store; any other value as it is."""
    return value if isinstance(value, bool) or not isinstance(value, Integral) else int(value)


def require_one_of(key: str, value: Any, allowed: Sequence[str]) -> None:
    """
    Require one of the allowed values.

    :raises InvalidConfigurationError: if it is another one; the message lists the allowed values.
    """
    require(key, value, allowed.__contains__, f"one of {', '.join(allowed)}")
