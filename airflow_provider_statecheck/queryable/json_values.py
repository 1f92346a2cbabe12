"""
JSON form of state values, directed by the serializer of the state.

Booleans, numbers, strings, lists and records are plain JSON. Other values are strings: bytes in base64, decimals in
digits, dates, times and durations in ISO 8601, NaN and infinities by name. A map whose keys are texts is an object, and
a map with other keys a list of pairs. The JSON does not name the types, so a serializer is necessary to decode a value.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from numbers import Integral, Real
from types import NoneType
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo

from airflow_provider_statecheck.checkpoint.codec import MalformedMessageError
from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.serializers.arrow_serializer import ArrowSerializer
from airflow_provider_statecheck.state.serializers.custom_serializer import OpaqueSerializer
from airflow_provider_statecheck.state.serializers.nested_columns import OptionalSerializer
from airflow_provider_statecheck.state.serializers.record_serializer import RecordSerializer
from airflow_provider_statecheck.state.serializers.scalar_serializers import (
    CollectionSerializer,
    DatetimeSerializer,
    DictSerializer,
    EnumNames,
    UuidSerializer,
)
from airflow_provider_statecheck.state.serializers.serializer import TypeSerializer, describe

Convert = Callable[[Any], Any]
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}
_MICROSECOND = timedelta(microseconds=1)
_SECOND = 1_000_000
# Matches in linear time: two quantifiers that accept the same digits would try each place between them.
_DIGITS = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_LONGEST_DECIMAL = 200
"""Number of characters that is enough for any decimal of state, its leading zeros included."""
_LARGEST_EXPONENT = 76
"""Number of digits of Arrow's largest decimals."""
_DURATION = re.compile(r"(-?)PT([0-9]+)(?:\.([0-9]{6}))?S")
_WITH_ZONE = "a time with a zone, such as '2026-01-31T12:30:00+00:00'"
_ZONED = re.compile(r"([^\[\]]+)(?:\[([^\[\]=]+)\])?(\[fold=1\])?")


class PythonText(str):
    """JSON text of a Python value, with the class of the value: a decoder of another class does not accept it."""

    __slots__ = ("kind",)
    kind: type


class JsonForm(NamedTuple):
    """Conversions between the values of one type and JSON."""

    encode: Convert
    """Returns a value as a value for ``json.dumps``."""
    decode: Convert
    """Returns the value of a JSON value; raises ``MalformedMessageError`` if the JSON has another form."""


def json_form_of(serializer: TypeSerializer[Any]) -> JsonForm:
    """
    Return the JSON form of the values of a serializer.

    :param serializer: Serializer that needs no code of the user, as ``restored_serializer`` returns it.
    :raises UnsupportedStateError: if the serializer needs code of the user.
    """
    make = _FORMS.get(type(serializer))
    if make is None:
        raise UnsupportedStateError(
            f"Expected a type of state that is readable without the code of the user, found "
            f"{describe(serializer.snapshot())}; restore its serializer from the checkpoint."
        )
    return make(serializer)


def scalar_form(arrow_type: Any) -> JsonForm:
    """
    Return the JSON form of an Arrow type without children, such as the type of a key column.

    :raises UnsupportedStateError: if state cannot have a column of the type.
    """
    for matches, make in _scalar_forms():
        if matches(arrow_type):
            return make(arrow_type)
    raise UnsupportedStateError(f"Expected an Arrow type of state without children, found {arrow_type}.")


def json_of(value: Any) -> Any:
    """
    Return the JSON form of a value by its class, for a user key whose declared type a client does not know.

    Its texts are instances of :class:`PythonText`.

    :raises UnsupportedStateError: if state cannot have such a value.
    """
    for kind, encode in _BY_CLASS:
        if isinstance(value, kind):
            return encode(value)
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: json_of(getattr(value, field.name)) for field in fields(value)}
    raise UnsupportedStateError(
        f"Expected a value that state can have, found {type(value).__module__}.{type(value).__qualname__}; convert it."
    )


def key_json(key: Any) -> Any:
    """
    Return the JSON form of a key by the classes of its parts.

    :param key: The key; a tuple for a key of several columns.
    :raises UnsupportedStateError: if a part cannot be part of a key.
    """
    return list(map(_key_part, key)) if isinstance(key, tuple) else _key_part(key)


def _key_part(value: Any) -> Any:
    # An enum with a mixin is a text or a number in a key, and a zone has no part in an instant.
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, datetime):
        return (value.astimezone(UTC) if value.tzinfo else value).replace(fold=0).isoformat()
    return int(value) if isinstance(value, int) and not isinstance(value, bool) else json_of(value)


def optional_form(form: JsonForm) -> JsonForm:
    """Return the form of values that may be ``None``."""
    return JsonForm(
        lambda value: None if value is None else form.encode(value),
        lambda data: None if data is None else form.decode(data),
    )


def list_form(element: JsonForm, collection: type = list) -> JsonForm:
    """
    Return the form of lists.

    :param collection: Class of the values.
    """

    def decode(data: Any) -> Any:
        return collection(
            decoded_at(place, element.decode, each) for place, each in enumerate(_of(list, data, "a list"))
        )

    return JsonForm(lambda values: list(map(element.encode, values)), decode)


def map_form(key: TypeSerializer[Any], value: JsonForm) -> JsonForm:
    """
    Return the form of dictionaries: an object if the keys are texts, otherwise a list of pairs.

    :param value: Form of the values.
    """
    keys = json_form_of(key)
    return _object_form(keys, value) if _is_text(key) else _pairs_form(keys, value)


def decoded_at(place: str | int, decode: Convert, data: Any) -> Any:
    """
    Return a decoded part of a value.

    :param place: Name or index of the part, which an error names.
    :raises MalformedMessageError: if the part has another form.
    """
    try:
        return decode(data)
    except MalformedMessageError as error:
        raise error.below(place) from error.__cause__


def decoded_text(form: JsonForm, text: str) -> Any:
    """
    Return the value of a text, such as a parameter of a URL.

    A value that is a string in JSON is written without quotes, and another one as in JSON, such as ``42`` or ``{"x":
    1}``.

    :raises MalformedMessageError: if the text has another form.
    """
    try:
        return form.decode(text)
    except MalformedMessageError as error:
        refused = error
    try:
        data = json.loads(text)
    except (ValueError, RecursionError):
        raise refused from None
    return form.decode(data)


def _object_form(key: JsonForm, value: JsonForm) -> JsonForm:
    def decode(data: Any) -> dict[Any, Any]:
        entries = _of(Mapping, data, "an object")
        return {key.decode(each): decoded_at(each, value.decode, item) for each, item in entries.items()}

    return JsonForm(lambda entries: {each: value.encode(item) for each, item in entries.items()}, decode)


def _pairs_form(key: JsonForm, value: JsonForm) -> JsonForm:
    def pair(data: Any) -> tuple[Any, Any]:
        if not isinstance(data, list) or len(data) != 2:
            raise MalformedMessageError("a pair of a key and a value")
        return decoded_at(0, key.decode, data[0]), decoded_at(1, value.decode, data[1])

    return JsonForm(
        lambda entries: [[key.encode(each), value.encode(item)] for each, item in entries.items()],
        list_form(JsonForm(list, pair), dict).decode,
    )


def _record_form(serializer: RecordSerializer) -> JsonForm:
    forms = [(field.name, json_form_of(field.serializer)) for field in serializer.fields]
    make: Any = serializer.shape.type

    def decode(data: Any) -> Any:
        found = _fields(data, serializer.names)
        return make((name, decoded_at(name, form.decode, found[name])) for name, form in forms)

    return JsonForm(lambda record: {name: form.encode(record[name]) for name, form in forms}, decode)


def _fields(data: Any, names: tuple[str, ...]) -> Mapping[str, Any]:
    # A tuple is a record with numbered fields; a client without the schema sends it as a list.
    if isinstance(data, list):
        if len(data) != len(names):
            raise MalformedMessageError(f"a list of {len(names)} values")
        return dict(zip(names, data, strict=True))
    found: Mapping[str, Any] = _of(Mapping, data, "an object")
    # A newer server may add fields to a value.
    for name in names:
        if name not in found:
            raise MalformedMessageError("a value", (name,))
    return found


def _of(form: Any, data: Any, expected: str) -> Any:
    if not isinstance(data, form):
        raise MalformedMessageError(expected)
    return data


def _exact(kind: type, expected: str) -> JsonForm:
    def decode(data: Any) -> Any:
        if type(data) is not kind:
            raise MalformedMessageError(expected)
        return data

    return JsonForm(lambda value: value, decode)


def _text_of(kind: type, data: Any, expected: str) -> str:
    if not isinstance(data, str) or getattr(data, "kind", kind) is not kind:
        raise MalformedMessageError(expected)
    return str(data)


def _from_text(kind: type, parse: Callable[[str], Any], expected: str) -> Convert:
    def decode(data: Any) -> Any:
        text = _text_of(kind, data, expected)
        try:
            return parse(text)
        except (ValueError, ArithmeticError, LookupError, TypeError, OSError) as error:
            # ZoneInfo raises an OSError for a directory of time zones.
            raise MalformedMessageError(expected) from error

    return decode


def _scalar_forms() -> tuple[tuple[Callable[[Any], Any], Callable[[Any], JsonForm]], ...]:
    return (
        (pa.types.is_boolean, lambda _: _exact(bool, "true or false")),
        (pa.types.is_integer, lambda _: _exact(int, "a whole number")),
        (pa.types.is_floating, lambda _: JsonForm(_float_json, _float_of)),
        (pa.types.is_decimal, lambda _: _DECIMAL),
        (lambda each: pa.types.is_string(each) or pa.types.is_large_string(each), lambda _: _TEXT),
        (lambda each: pa.types.is_binary(each) or pa.types.is_large_binary(each), lambda _: _BYTES),
        (pa.types.is_fixed_size_binary, lambda _: _BYTES),
        (pa.types.is_date, lambda _: _DATE),
        (pa.types.is_timestamp, _timestamp_form),
        (pa.types.is_time, lambda _: _TIME),
        (pa.types.is_duration, lambda _: _INTERVAL),
        (pa.types.is_null, lambda _: _exact(type(None), "null")),
    )


def _float_json(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def _float_of(data: Any) -> float:
    expected = "a number, 'NaN', 'Infinity' or '-Infinity'"
    if isinstance(data, str) and data in _NOT_FINITE:
        return _NOT_FINITE[_text_of(float, data, expected)]
    # The parser of JSON returns an infinity for a number that is too large.
    if not isinstance(data, int | float) or isinstance(data, bool) or data in (math.inf, -math.inf):
        raise MalformedMessageError(expected)
    try:
        return float(data)
    except OverflowError as error:
        raise MalformedMessageError("a number of double precision") from error


def _decimal_of(text: str) -> Decimal:
    # Decimal() also accepts spaces, underscores and NaN.
    if len(text) > _LONGEST_DECIMAL or _DIGITS.fullmatch(text) is None or not _is_in_reach(Decimal(text)):
        raise ValueError(text[:_LONGEST_DECIMAL])
    return Decimal(text)


def _is_in_reach(value: Decimal) -> bool:
    # The digits of 1e4000000000 would fill gigabytes.
    return abs(value.adjusted()) <= _LARGEST_EXPONENT


def _decimal_json(value: Decimal) -> str:
    if not _is_in_reach(value):
        raise UnsupportedStateError(
            f"Expected a decimal between 1e-{_LARGEST_EXPONENT} and 1e{_LARGEST_EXPONENT}, found {value!r:.100}; no "
            "state has it."
        )
    return format(value, "f")


def _timestamp_form(arrow_type: Any) -> JsonForm:
    if arrow_type.tz is None:
        return _LOCAL_TIME
    # Arrow creates the time zone; another object for the same zone would compare different.
    zone = pa.scalar(0, arrow_type).as_py().tzinfo
    return JsonForm(datetime.isoformat, _from_text(datetime, lambda text: _instant(text).astimezone(zone), _WITH_ZONE))


def _instant(text: str) -> datetime:
    value = _zoned_of(text)
    if value.tzinfo is None:
        raise ValueError(text)
    return value


def _local(text: str) -> datetime:
    value = _zoned_of(text).replace(fold=0)
    if value.tzinfo is not None:
        raise ValueError(text)
    return value


def _duration_text(value: timedelta) -> str:
    seconds, fraction = divmod(abs(value // _MICROSECOND), _SECOND)
    return f"{'-' if value < timedelta(0) else ''}PT{seconds}{f'.{fraction:06}' if fraction else ''}S"


def _duration_of(text: str) -> timedelta:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(text)
    sign, seconds, fraction = match.groups()
    return (-1 if sign else 1) * timedelta(seconds=int(seconds), microseconds=int(fraction or 0))


def _zoned_text(value: datetime) -> str:
    """Return a time in the form of RFC 9557, whose suffix names the time zone."""
    zone = f"[{value.tzinfo.key}]" if isinstance(value.tzinfo, ZoneInfo) else ""
    return f"{value.isoformat()}{zone}{'[fold=1]' if value.fold else ''}"


def _zoned_of(text: str) -> datetime:
    match = _ZONED.fullmatch(text)
    if match is None:
        raise ValueError(text)
    clock, zone, fold = match.groups()
    value = datetime.fromisoformat(clock).replace(fold=1 if fold else 0)
    # The clock and the zone define the value: the offset depends on the time zone database of the server.
    return value if zone is None else value.replace(tzinfo=ZoneInfo(zone))


def _is_text(serializer: TypeSerializer[Any]) -> bool:
    # As the name of a member of an object, None would be the text "null".
    return not isinstance(serializer, OptionalSerializer) and str(serializer.arrow_type) in ("string", "large_string")


def _by_class(kind: type, encode: Convert) -> Convert:
    def convert(value: Any) -> Any:
        encoded = encode(value)
        if not isinstance(encoded, str):
            return encoded
        text = PythonText(encoded)
        text.kind = kind
        return text

    return convert


_TEXT = JsonForm(lambda value: value, lambda data: _text_of(str, data, "text"))
_BYTES = JsonForm(
    lambda value: base64.b64encode(value).decode(),
    _from_text(bytes, lambda text: base64.b64decode(text, validate=True), "bytes in base64"),
)
_DECIMAL = JsonForm(
    lambda value: format(value, "f"), _from_text(Decimal, _decimal_of, "the digits of a decimal, as text")
)
_DATE = JsonForm(date.isoformat, _from_text(date, date.fromisoformat, "a date such as '2026-01-31'"))
_TIME = JsonForm(time.isoformat, _from_text(time, time.fromisoformat, "a time such as '12:30:00'"))
_LOCAL_TIME = JsonForm(
    datetime.isoformat, _from_text(datetime, _local, "a time without a zone, such as '2026-01-31T12:30:00'")
)
_ZONED_TIME = JsonForm(
    _zoned_text, _from_text(datetime, _zoned_of, "a time such as '2026-01-31T12:30:00+01:00[Europe/Berlin]'")
)
_INTERVAL = JsonForm(_duration_text, _from_text(timedelta, _duration_of, "a duration such as 'PT90S'"))
_UUID = JsonForm(str, _from_text(UUID, UUID, "a UUID"))

_FORMS: dict[type, Callable[[Any], JsonForm]] = {
    ArrowSerializer: lambda serializer: scalar_form(serializer.arrow_type),
    CollectionSerializer: lambda serializer: list_form(json_form_of(serializer.element), serializer.collection),
    DatetimeSerializer: lambda _: _ZONED_TIME,
    DictSerializer: lambda serializer: map_form(serializer.key, json_form_of(serializer.value)),
    EnumNames: lambda _: _TEXT,
    OpaqueSerializer: lambda _: _BYTES,
    OptionalSerializer: lambda serializer: optional_form(json_form_of(serializer.value)),
    RecordSerializer: _record_form,
    UuidSerializer: lambda _: _UUID,
}

_BY_CLASS: tuple[tuple[Any, Convert], ...] = (
    (NoneType, lambda value: value),
    (Enum, _by_class(str, lambda value: value.name)),
    (bool, lambda value: value),
    (str, _by_class(str, str.__str__)),
    (Integral, int),
    (Real, _by_class(float, lambda value: _float_json(float(value)))),
    (Decimal, _by_class(Decimal, _decimal_json)),
    (bytes | bytearray | memoryview, _by_class(bytes, _BYTES.encode)),
    (datetime, _by_class(datetime, _zoned_text)),
    (date, _by_class(date, _DATE.encode)),
    (time, _by_class(time, _TIME.encode)),
    (timedelta, _by_class(timedelta, _duration_text)),
    (UUID, _by_class(UUID, str)),
    (list | tuple | set | frozenset, lambda value: list(map(json_of, value))),
)
"""Classes in the order of the tests; a named tuple is a list like any tuple."""
