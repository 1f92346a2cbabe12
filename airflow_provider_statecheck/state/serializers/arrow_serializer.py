"""Serializers of Arrow types, their names in snapshots, and widening between them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from datetime import date, datetime, time, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import cached_property
from types import NoneType
from typing import Any, NamedTuple, NoReturn

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.state.serializers.nested_columns import OptionalSerializer
from airflow_provider_statecheck.state.serializers.record_serializer import RecordField, RecordSerializer
from airflow_provider_statecheck.state.serializers.record_shapes import DictShape
from airflow_provider_statecheck.state.serializers.scalar_serializers import CollectionSerializer, DictSerializer
from airflow_provider_statecheck.state.serializers.serializer import (
    AS_IS,
    Compatibility,
    Own,
    Plain,
    TypeSerializer,
    after_migration,
    incompatible,
)

_PLAIN = (
    *("bool_", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
    *("float64", "string", "large_string", "binary", "large_binary", "date32", "null"),
)
_DECIMAL = re.compile(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)")
_TIMESTAMP = re.compile(r"timestamp\[(s|ms|us)(?:, tz=(.+))?\]")
_TIME = re.compile(r"time(32|64)\[(s|ms|us)\]")
_DURATION = re.compile(r"duration\[(s|ms|us)\]")
_BINARY = re.compile(r"fixed_size_binary\[(\d+)\]")


def encode_type(arrow_type: Any) -> str:
    """
    Return the name of an Arrow type without children.

    :raises UnsupportedStateError: if state cannot have a column of the type.
    """
    name = str(arrow_type)
    if _type_of_name(name) != arrow_type:
        raise UnsupportedStateError(
            "Expected an Arrow type of numbers, strings, bytes, decimals, dates or times in microseconds or coarser, "
            f"or a list, struct or map of these, as a type of state; found {name}."
        )
    return name


def decode_type(name: str) -> Any:
    """
    Return the Arrow type of a name, the inverse of :func:`encode_type`.

    :raises CorruptStateError: if the name is unknown.
    """
    found = _type_of_name(name)
    if found is None:
        raise CorruptStateError(f"Expected the name of an Arrow type, found {name!r}.")
    return found


def _type_of_name(name: str) -> Any:
    plain = {str(found): found for found in (getattr(pa, factory)() for factory in _PLAIN)}
    if name in plain:
        return plain[name]
    parameterised: dict[re.Pattern[str], Callable[..., Any]] = {
        _DECIMAL: lambda bits, precision, scale: getattr(pa, f"decimal{bits}")(int(precision), int(scale)),
        _TIMESTAMP: lambda unit, zone: pa.timestamp(unit, tz=zone),
        _TIME: lambda bits, unit: getattr(pa, f"time{bits}")(unit),
        _DURATION: pa.duration,
        _BINARY: lambda width: pa.binary(int(width)),
    }
    for pattern, make in parameterised.items():
        match = pattern.fullmatch(name)
        if match:
            return make(*match.groups())
    return None


_FLOAT_BITS = {16: 11, 32: 24, 64: 53}
"""Largest bit width of the integers that a float of a bit width represents exactly."""


def is_widening(old: Any, new: Any) -> bool:
    """Return whether the type ``new`` represents every value of the type ``old`` exactly."""
    if pa.types.is_integer(old):
        return _holds_integers(old, new)
    if pa.types.is_floating(old):
        return bool(pa.types.is_floating(new)) and new.bit_width > old.bit_width
    if pa.types.is_decimal(old):
        return _holds_decimals(new, old.precision - old.scale, old.scale)
    pairs = ((pa.types.is_string, pa.types.is_large_string), (pa.types.is_binary, pa.types.is_large_binary))
    return any(narrow(old) and wide(new) for narrow, wide in pairs)


def _holds_integers(old: Any, new: Any) -> bool:
    signed = pa.types.is_signed_integer(old)
    bits = old.bit_width - signed
    if pa.types.is_integer(new):
        new_signed = pa.types.is_signed_integer(new)
        return (new_signed or not signed) and new.bit_width - new_signed > bits
    if pa.types.is_floating(new):
        return bool(_FLOAT_BITS[new.bit_width] >= bits)
    return _holds_decimals(new, len(str(2**bits)), 0)


def _holds_decimals(new: Any, whole_digits: int, scale: int) -> bool:
    return bool(pa.types.is_decimal(new)) and new.scale >= scale and new.precision - new.scale >= whole_digits


_PYTHON_BITS = 64
"""Bit width of a Python float."""


class ArrowSerializer(TypeSerializer[Any]):
    """
    Serializer of scalar values; it rejects values that the Arrow type would round or truncate.

    :param arrow_type: An Arrow type without children.
    :raises UnsupportedStateError: if state cannot have a column of the type.
    """

    class_id = "arrow"

    def __init__(self, arrow_type: Any) -> None:
        self._name = encode_type(arrow_type)
        self._arrow_type = arrow_type

    @property
    def arrow_type(self) -> Any:
        return self._arrow_type

    def to_arrow(self, values: Sequence[Any]) -> Any:
        if not self._python_types.issuperset(map(type, values)):
            values = self._without_numpy(values)
        self._require_zones(values)
        try:
            array = pa.array(values, self._arrow_type)
        except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError) as error:
            self._reject_first_of(values, error)
        self._require_exact(values, array)
        return array

    @cached_property
    def own(self) -> Own:
        # A function, because a further method call would double its cost.
        return _quick_own(self._arrow_type, self.plain, super().own)

    @cached_property
    def plain(self) -> Plain | None:
        return self._kind.plain(self._arrow_type)

    def config(self) -> dict[str, Any]:
        return {"type": self._name}

    def _resolve(self, config: Mapping[str, Any]) -> Compatibility:
        old, name = decode_type(config["type"]), self._name
        if old == self._arrow_type:
            return AS_IS
        if not is_widening(old, self._arrow_type):
            return incompatible(
                f"was {config['type']}, is now {name}, which cannot represent every {config['type']} value"
            )
        return after_migration(f"{config['type']} becomes {name}", lambda array: array.cast(self._arrow_type))

    @cached_property
    def _python_types(self) -> frozenset[type]:
        return frozenset((NoneType, *self._kind.python_types))

    @cached_property
    def _kind(self) -> _Kind:
        return _kind_of(self._arrow_type)

    @cached_property
    def _has_zone(self) -> bool | None:
        """Whether values have a time zone, ``None`` for types other than timestamps and times of day."""
        if pa.types.is_timestamp(self._arrow_type):
            return self._arrow_type.tz is not None
        return False if pa.types.is_time(self._arrow_type) else None

    @cached_property
    def _may_round(self) -> bool:
        """Whether Arrow rounds values silently, to fewer bits or to a coarser unit of time."""
        if pa.types.is_floating(self._arrow_type):
            return bool(self._arrow_type.bit_width < _PYTHON_BITS)
        return bool(getattr(self._arrow_type, "unit", "us") != "us" and not pa.types.is_date(self._arrow_type))

    def _without_numpy(self, values: Sequence[Any]) -> list[Any]:
        plain = [value.item() if type(value).__module__ == "numpy" else value for value in values]
        for value in plain:
            if type(value) not in self._python_types:
                self._reject(value)
        return plain

    def _require_zones(self, values: Sequence[Any]) -> None:
        if self._has_zone is None:
            return
        for value in values:
            if value is not None and (value.tzinfo is not None) != self._has_zone:
                self._reject(value)

    def _require_exact(self, values: Sequence[Any], array: Any) -> None:
        if array.null_count and array.null_count != sum(value is None for value in values):
            self._reject(
                next(v for v, stored in zip(values, array, strict=True) if v is not None and not stored.is_valid)
            )
        if self._may_round:
            for value, stored in zip(values, array.to_pylist(), strict=True):
                # NaN differs from itself and is not an inexact value.
                if value != stored and value == value:
                    self._reject(value)

    def _reject_first_of(self, values: Sequence[Any], error: Exception) -> NoReturn:
        for value in values:
            try:
                pa.array([value], self._arrow_type)
            except (pa.ArrowException, OverflowError, UnicodeError, ValueError, TypeError) as cause:
                self._reject(value, cause)
        raise UnsupportedStateError(f"Expected values of {self._expected}, found others: {error}") from error

    def _reject(self, value: Any, cause: Exception | None = None) -> NoReturn:
        detail = f" ({cause})" if cause else ""
        kind = type(value)
        raise UnsupportedStateError(
            f"Expected {self._expected}, found {kind.__module__}.{kind.__qualname__} {value!r:.100}{detail}; convert "
            "it, or declare another type."
        ) from cause

    @property
    def _expected(self) -> str:
        names = " or ".join(kind.__name__ for kind in self._kind.python_types)
        zone = {None: "", True: " with a time zone", False: " without a time zone"}[self._has_zone]
        return f"{names}{zone} that {self._name} holds exactly"


class _Kind(NamedTuple):
    """Values of a family of Arrow types."""

    includes: Callable[[Any], bool]
    python_types: tuple[type, ...]
    plain: Callable[[Any], Plain | None] = lambda _: None
    """Returns the cheap test of the values of a type, ``None`` if there is none."""


def _kind_of(arrow_type: Any) -> _Kind:
    is_type = pa.types
    kinds = (
        _Kind(is_type.is_boolean, (bool,), lambda _: Plain(bool)),
        _Kind(is_type.is_integer, (int,), _integers),
        _Kind(is_type.is_float64, (float, int), lambda _: Plain(float)),
        _Kind(is_type.is_floating, (float, int)),
        _Kind(is_type.is_decimal, (Decimal,)),
        _Kind(is_type.is_string, (str,), lambda _: Plain(str, _has_bytes)),
        _Kind(is_type.is_large_string, (str,), lambda _: Plain(str, _has_bytes)),
        _Kind(is_type.is_binary, (bytes,), lambda _: Plain(bytes)),
        _Kind(is_type.is_large_binary, (bytes,), lambda _: Plain(bytes)),
        _Kind(is_type.is_fixed_size_binary, (bytes,)),
        _Kind(is_type.is_date, (date,), lambda _: Plain(date)),
        _Kind(is_type.is_timestamp, (datetime,), _local_times),
        _Kind(is_type.is_time, (time,)),
        _Kind(is_type.is_duration, (timedelta,)),
    )
    return next((kind for kind in kinds if kind.includes(arrow_type)), _Kind(is_type.is_null, ()))


def _quick_own(arrow_type: Any, plain: Plain | None, own: Own) -> Own:
    """
    Return a function equivalent to ``own`` that handles the usual values of a type faster.

    :param plain: The cheap test; a value that passes is returned unchanged.
    :param own: The fallback for all other values.
    """
    if pa.types.is_decimal128(arrow_type):
        return _decimals(arrow_type, own)
    if pa.types.is_float64(arrow_type):
        return _floats(own)
    if plain is None:
        return own
    if plain.kind is str:
        return lambda value: value if type(value) is str and (value.isascii() or _has_bytes(value)) else own(value)
    kind: Any = plain.kind
    fits, bounds = plain.fits, plain.bounds
    if bounds is not None:
        low, high = bounds
        return lambda value: value if type(value) is kind and low <= value <= high else own(value)
    if fits is None:
        return lambda value: value if type(value) is kind else own(value)
    return lambda value: value if type(value) is kind and fits(value) else own(value)


def _integers(arrow_type: Any) -> Plain:
    bits, is_signed = arrow_type.bit_width, pa.types.is_signed_integer(arrow_type)
    bounds = (-(1 << bits - 1), (1 << bits - 1) - 1) if is_signed else (0, (1 << bits) - 1)
    return Plain(int, bounds=bounds)


def _local_times(arrow_type: Any) -> Plain | None:
    return Plain(datetime, _is_local) if arrow_type.unit == "us" and arrow_type.tz is None else None


def _has_bytes(text: str) -> bool:
    try:
        # A lone surrogate cannot be encoded.
        return text.encode() is not None
    except UnicodeError:
        return False


def _is_local(time: datetime) -> bool:
    return time.tzinfo is None and not time.fold


def _floats(own: Own) -> Own:
    high = 2 ** _FLOAT_BITS[_PYTHON_BITS]
    low = -high

    def owned(value: Any) -> Any:
        if type(value) is float:
            return value
        return float(value) if type(value) is int and low <= value <= high else own(value)

    return owned


def _decimals(arrow_type: Any, own: Own) -> Own:
    # Arrow restores decimals with all digits of their scale.
    digits = Decimal((0, (1,), -arrow_type.scale))
    exact = Context(prec=arrow_type.precision, traps=[Inexact, InvalidOperation])

    def owned(value: Any) -> Any:
        if type(value) is not Decimal or not value.is_finite():
            return own(value)
        try:
            return value.quantize(digits, context=exact)
        except ArithmeticError:
            return own(value)

    return owned


def serializer_of_arrow_type(arrow_type: Any) -> TypeSerializer[Any]:
    """
    Return the serializer of an Arrow type; the values of a struct are dictionaries.

    :raises UnsupportedStateError: if state cannot have a column of the type.
    """
    if pa.types.is_struct(arrow_type):
        fields = [RecordField(name=field.name, serializer=_field_serializer(field)) for field in arrow_type]
        return RecordSerializer(DictShape([field.name for field in arrow_type]), fields)
    if pa.types.is_map(arrow_type):
        return DictSerializer(serializer_of_arrow_type(arrow_type.key_type), _field_serializer(arrow_type.item_field))
    if pa.types.is_list(arrow_type):
        return CollectionSerializer(list, _field_serializer(arrow_type.value_field))
    return ArrowSerializer(arrow_type)


def _field_serializer(field: Any) -> TypeSerializer[Any]:
    serializer = serializer_of_arrow_type(field.type)
    return OptionalSerializer(serializer) if field.nullable else serializer
