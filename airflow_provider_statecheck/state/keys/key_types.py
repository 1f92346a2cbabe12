"""
Types of key columns, and which integers or bytes of a value are hashed.

Values are normalized before they are compared or hashed. Keys that are equal in Spark are then equal here: -0.0 becomes
0.0, all NaNs become the same NaN, a decimal gets the scale of its column, and a timestamp with a time zone becomes UTC.
"""

from __future__ import annotations

import math
import operator
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from functools import cache
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import np, pa
from airflow_provider_statecheck.state.keys.key_groups import hash_byte_strings, hash_bytes, hash_int, hash_long

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - epoch of timestamps without a time zone
_MICROSECOND = timedelta(microseconds=1)
_LONG_DIGITS = 18
"""Maximum precision at which Spark hashes a decimal as a 64-bit integer."""
_MAX_DIGITS = 38
_DECIMAL_NAME = re.compile(r"decimal\((\d+),(-?\d+)\)")
_SUPPORTED = (
    "boolean, tinyint, smallint, int, bigint, float, double, string, binary, date, timestamp, timestamp_ntz or decimal"
)


@dataclass(frozen=True, slots=True)
class KeyType:
    """Normalization and hash of the values of one type."""

    name: str
    """Name of the type in Spark."""
    arrow_type: Any
    """Arrow type of a normalized column. Spark may send others, such as ``large_string``."""
    normalized: Callable[[Any], Any]
    """
    Returns the normal form; raises ``TypeError``, ``ValueError`` or ``OverflowError`` if the value does not fit the
    type.
    """
    hashed: Callable[[Any, int], int]
    """Returns the hash of a normalized value with a seed."""
    is_exact: bool = True
    """Whether the Python values of a normalized Arrow column are normalized."""


def key_type_of(data_type: Any) -> KeyType:
    """
    Return the key type of an Arrow type.

    :raises UnsupportedStateError: if the type cannot be part of a key.
    """
    if pa.types.is_decimal(data_type) and data_type.precision <= _MAX_DIGITS:
        return _decimal_type(data_type.precision, data_type.scale)
    if pa.types.is_timestamp(data_type):
        data_type = pa.timestamp("us", "UTC" if data_type.tz else None)
    if pa.types.is_fixed_size_binary(data_type):
        data_type = pa.binary()
    found = _types_without_parameters().get(data_type)
    if found is None:
        raise UnsupportedStateError(f"Expected a key column of type {_SUPPORTED}, found {data_type}; cast the column.")
    return found


def key_type_named(name: str) -> KeyType:
    """
    Return the key type with a name, the inverse of :attr:`KeyType.name`.

    :raises UnsupportedStateError: if this release has no such type.
    """
    decimal = _DECIMAL_NAME.fullmatch(name)
    if decimal:
        return _decimal_type(int(decimal.group(1)), int(decimal.group(2)))
    for key_type in _types_without_parameters().values():
        if key_type.name == name:
            return key_type
    raise UnsupportedStateError(
        f"Expected a key type that this release supports, found {name!r}; read it with the release that wrote it."
    )


@cache
def _types_without_parameters() -> dict[Any, KeyType]:
    utc, local = pa.timestamp("us", "UTC"), pa.timestamp("us")
    text = KeyType("string", pa.string(), _string, _hash_string)
    binary = KeyType("binary", pa.binary(), _bytes, hash_bytes)
    return {
        pa.bool_(): KeyType("boolean", pa.bool_(), _instance_of(bool), hash_int),
        pa.int8(): KeyType("tinyint", pa.int8(), _integer(8), hash_int),
        pa.int16(): KeyType("smallint", pa.int16(), _integer(16), hash_int),
        pa.int32(): KeyType("int", pa.int32(), _integer(32), hash_int),
        pa.int64(): KeyType("bigint", pa.int64(), _integer(64), hash_long),
        pa.float32(): KeyType("float", pa.float32(), _float, _hash_float, is_exact=False),
        pa.float64(): KeyType("double", pa.float64(), _double, _hash_double, is_exact=False),
        **dict.fromkeys((pa.string(), pa.large_string(), pa.string_view()), text),
        **dict.fromkeys((pa.binary(), pa.large_binary(), pa.binary_view()), binary),
        pa.date32(): KeyType("date", pa.date32(), _instance_of(date, datetime), _hash_date),
        utc: KeyType("timestamp", utc, _timestamp(has_zone=True), _hash_timestamp, is_exact=False),
        local: KeyType("timestamp_ntz", local, _timestamp(has_zone=False), _hash_timestamp_ntz),
    }


def _decimal_type(precision: int, scale: int) -> KeyType:
    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])

    def normalized(value: Any) -> Decimal:
        if not isinstance(value, Decimal | int) or isinstance(value, bool) or not Decimal(value).is_finite():
            raise TypeError
        try:
            # Adding 0 turns -0 into 0; Spark has no negative zero for decimals.
            return context.add(Decimal(value).quantize(unit, context=context), 0)
        except (Inexact, InvalidOperation) as error:
            raise ValueError(f"it does not fit decimal({precision},{scale})") from error

    def hashed(value: Decimal, seed: int) -> Any:
        unscaled = int(value.scaleb(scale, Context(prec=precision)))
        return (
            hash_long(unscaled, seed) if precision <= _LONG_DIGITS else hash_bytes(_big_integer_bytes(unscaled), seed)
        )

    return KeyType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), normalized, hashed)


def _big_integer_bytes(value: int) -> bytes:
    # Equals Java's BigInteger.toByteArray: big-endian two's complement in the fewest bytes that hold the sign bit.
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _instance_of(kind: type, other_than: type | tuple[()] = ()) -> Callable[[Any], Any]:
    def normalized(value: Any) -> Any:
        if not isinstance(value, kind) or isinstance(value, other_than):
            raise TypeError
        return value

    return normalized


def _integer(bits: int) -> Callable[[Any], int]:
    minimum, maximum = -(1 << bits - 1), (1 << bits - 1) - 1

    def normalized(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if not minimum <= number <= maximum:
            raise ValueError(f"it does not fit {bits} bits")
        return number

    return normalized


def _double(value: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != value and not math.isnan(number):
        raise ValueError("it has no exact double")
    # Dictionaries and tuples compare by identity first: math.nan, which is a single object, equals itself there.
    return math.nan if math.isnan(number) else number + 0.0


def _float(value: Any) -> float:
    number = _double(value)
    try:
        (narrow,) = struct.unpack("<f", struct.pack("<f", number))
    except OverflowError as error:
        raise ValueError("it does not fit 32 bits") from error
    if narrow != number and not math.isnan(number):
        raise ValueError("it does not fit 32 bits")
    return number


def _hash_double(value: float, seed: int) -> Any:
    return hash_long(
        0x7FF8000000000000 if math.isnan(value) else struct.unpack("<q", struct.pack("<d", value))[0], seed
    )


def _hash_float(value: float, seed: int) -> Any:
    return hash_int(0x7FC00000 if math.isnan(value) else struct.unpack("<i", struct.pack("<f", value))[0], seed)


def _string(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # raises for a lone surrogate, which Spark cannot store
    # An enum with a str mixin may override __str__.
    return str.__str__(value)


def _hash_string(value: str, seed: int) -> Any:
    return hash_bytes(value.encode(), seed)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _hash_date(value: date, seed: int) -> Any:
    return hash_int(value.toordinal() - _EPOCH_DAY, seed)


def _timestamp(*, has_zone: bool) -> Callable[[Any], datetime]:
    def normalized(value: Any) -> datetime:
        if not isinstance(value, datetime):
            raise TypeError
        if (value.tzinfo is not None) is not has_zone:
            raise ValueError("it has no time zone" if has_zone else "it has a time zone")
        return (value.astimezone(UTC) if has_zone else value).replace(fold=0)

    return normalized


def _hash_timestamp(value: datetime, seed: int) -> Any:
    return _hash_timestamp_ntz(value.replace(tzinfo=None), seed)


def _hash_timestamp_ntz(value: datetime, seed: int) -> Any:
    return hash_long((value - _EPOCH) // _MICROSECOND, seed)


def hash_column(key_type: KeyType, column: Any, seeds: Any) -> Any:
    """
    Return the hashes of a key column as a numpy array of uint64.

    :param column: Arrow array in normal form, without nulls.
    :param seeds: The seed of each row, a numpy array of uint64.
    """
    if pa.types.is_string(column.type) or pa.types.is_binary(column.type):
        return hash_byte_strings(column, seeds)
    if pa.types.is_decimal(column.type) and column.type.precision > _LONG_DIGITS:
        pairs = zip(column.to_pylist(), seeds.tolist(), strict=True)
        return np.array([key_type.hashed(value, seed) for value, seed in pairs], dtype=np.uint64)
    words = _integers(column).astype(np.int64, copy=False).view(np.uint64)
    return (hash_int if column.type.bit_width <= 32 else hash_long)(words, seeds)


def _integers(column: Any) -> Any:
    if pa.types.is_decimal(column.type):
        unscaled = np.frombuffer(column.buffers()[1], dtype=np.int64)
        return unscaled[column.offset * 2 : (column.offset + len(column)) * 2 : 2]
    if pa.types.is_temporal(column.type):
        column = column.view(pa.int32() if pa.types.is_date(column.type) else pa.int64())
    numbers = column.to_numpy(zero_copy_only=False)
    return numbers.view(f"i{numbers.itemsize}") if pa.types.is_floating(column.type) else numbers
