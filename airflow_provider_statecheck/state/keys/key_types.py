"""
Types of key columns, and their hash: the 64-bit xxHash that Spark's ``xxhash64`` computes.

A value is brought into one form first, so that keys that Spark takes for equal are equal here too: -0.0 becomes 0.0, every
NaN the same NaN, a decimal gets the scale of its column, and a timestamp with a zone is one of UTC.

Spark hashes each column with the hash of the columns before it as seed, beginning with 42. The hash is written out here
rather than taken from a library with compiled parts, which every executor would need.
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Context, Decimal, Inexact, InvalidOperation
from typing import Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError

SPARK_SEED = 42
_MASK = (1 << 64) - 1
PRIME_1 = 0x9E3779B185EBCA87
PRIME_2 = 0xC2B2AE3D27D4EB4F
PRIME_3 = 0x165667B19E3779F9
PRIME_4 = 0x85EBCA77C2B2AE63
PRIME_5 = 0x27D4EB2F165667C5
_STRIPE = struct.Struct("<4Q")


def hash_int(value: int, seed: int) -> int:
    """Return the hash of a number of 32 bits, from 0 to 2**64 - 1."""
    return _avalanche(_with_4_bytes((seed + PRIME_5 + 4) & _MASK, value & 0xFFFFFFFF))


def hash_long(value: int, seed: int) -> int:
    """Return the hash of a number of 64 bits, from 0 to 2**64 - 1."""
    return _avalanche(_with_8_bytes((seed + PRIME_5 + 8) & _MASK, value & _MASK))


def hash_bytes(data: bytes, seed: int) -> int:
    """Return the hash of bytes, from 0 to 2**64 - 1."""
    size = len(data)
    offset = size - size % 32
    hashed = (_of_stripes(data, offset, seed) if offset else (seed + PRIME_5)) + size & _MASK
    while offset + 8 <= size:
        hashed = _with_8_bytes(hashed, int.from_bytes(data[offset : offset + 8], "little"))
        offset += 8
    if offset + 4 <= size:
        hashed = _with_4_bytes(hashed, int.from_bytes(data[offset : offset + 4], "little"))
        offset += 4
    for byte in data[offset:]:
        hashed = _rotated(hashed ^ byte * PRIME_5 & _MASK, 11) * PRIME_1 & _MASK
    return _avalanche(hashed)


def key_group_of_hash(hashed: int, max_parallelism: int) -> int:
    """Return the key group of a hash: Spark's ``pmod``, for which the hash is a signed number."""
    return (hashed - (1 << 64) if hashed >> 63 else hashed) % max_parallelism


def _of_stripes(data: bytes, end: int, seed: int) -> int:
    one, two, three, four = seed + PRIME_1 + PRIME_2, seed + PRIME_2, seed, seed - PRIME_1
    for offset in range(0, end, 32):
        first, second, third, fourth = _STRIPE.unpack_from(data, offset)
        one, two = _round(one, first), _round(two, second)
        three, four = _round(three, third), _round(four, fourth)
    hashed = (_rotated(one, 1) + _rotated(two, 7) + _rotated(three, 12) + _rotated(four, 18)) & _MASK
    for lane in (one, two, three, four):
        hashed = ((hashed ^ _round(0, lane)) * PRIME_1 + PRIME_4) & _MASK
    return hashed


def _round(lane: int, word: int) -> int:
    return _rotated((lane + word * PRIME_2) & _MASK, 31) * PRIME_1 & _MASK


def _with_8_bytes(hashed: int, word: int) -> int:
    return (_rotated(hashed ^ _round(0, word), 27) * PRIME_1 + PRIME_4) & _MASK


def _with_4_bytes(hashed: int, word: int) -> int:
    return (_rotated(hashed ^ (word * PRIME_1 & _MASK), 23) * PRIME_2 + PRIME_3) & _MASK


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (64 - bits)) & _MASK


def _avalanche(hashed: int) -> int:
    hashed = (hashed ^ hashed >> 33) * PRIME_2 & _MASK
    hashed = (hashed ^ hashed >> 29) * PRIME_3 & _MASK
    return hashed ^ hashed >> 32


_EPOCH_DAY = date(1970, 1, 1).toordinal()
_EPOCH = datetime(1970, 1, 1)  # noqa: DTZ001 - of timestamps without a zone
_MICROSECOND = timedelta(microseconds=1)
LONG_DIGITS = 18
"""Up to so many Spark hashes a decimal as a number of 64 bits."""
_MOST_DIGITS = 38
_SUPPORTED = (
    "boolean, tinyint, smallint, int, bigint, float, double, string, binary, date, timestamp, timestamp_ntz or decimal"
)


@dataclass(frozen=True, slots=True)
class KeyType:
    """How values of one type are brought into form and hashed."""

    name: str
    """As Spark calls it."""
    arrow_type: Any
    """The one Arrow type of such a column, of several that Spark may send."""
    normalized: Callable[[Any], Any]
    """Gives a value in the one form in which it is a key; raises TypeError or ValueError for a value of another type."""
    hashed: Callable[[Any, int], int]
    """Gives the hash of a value in that form, with a seed."""
    is_exact: bool = True
    """Whether each value that Arrow gives for a column in form is in form itself."""


def key_type_of(data_type: Any) -> KeyType:
    """
    Return the rules for an Arrow type.

    :raises UnsupportedStateError: for a type that cannot be part of a key.
    """
    import pyarrow as pa
    from pyarrow import types

    if types.is_decimal(data_type) and data_type.precision <= _MOST_DIGITS:
        return _decimal(data_type.precision, data_type.scale)
    if types.is_timestamp(data_type):
        return _timestamp() if data_type.tz else _timestamp_ntz()
    if types.is_large_string(data_type) or types.is_string_view(data_type):
        data_type = pa.string()
    if types.is_large_binary(data_type) or types.is_fixed_size_binary(data_type) or types.is_binary_view(data_type):
        data_type = pa.binary()
    found = _simple_types().get(data_type)
    if found is None:
        raise UnsupportedStateError(f"Expected a key column of type {_SUPPORTED}, found one of {data_type}.")
    return found


def _simple_types() -> dict[Any, KeyType]:
    import pyarrow as pa

    return {
        pa.bool_(): KeyType("boolean", pa.bool_(), _boolean, hash_int),
        pa.int8(): KeyType("tinyint", pa.int8(), _integer(8), hash_int),
        pa.int16(): KeyType("smallint", pa.int16(), _integer(16), hash_int),
        pa.int32(): KeyType("int", pa.int32(), _integer(32), hash_int),
        pa.int64(): KeyType("bigint", pa.int64(), _integer(64), hash_long),
        pa.float32(): KeyType("float", pa.float32(), _float, _hash_float, is_exact=False),
        pa.float64(): KeyType("double", pa.float64(), _double, _hash_double, is_exact=False),
        pa.string(): KeyType("string", pa.string(), _text, _hash_text),
        pa.binary(): KeyType("binary", pa.binary(), _bytes, hash_bytes),
        pa.date32(): KeyType("date", pa.date32(), _date, _hash_date),
    }


def _timestamp() -> KeyType:
    import pyarrow as pa

    return KeyType("timestamp", pa.timestamp("us", "UTC"), _zoned, _hash_zoned, is_exact=False)


def _timestamp_ntz() -> KeyType:
    import pyarrow as pa

    return KeyType("timestamp_ntz", pa.timestamp("us"), _unzoned, _hash_unzoned)


def _decimal(precision: int, scale: int) -> KeyType:
    import pyarrow as pa

    unit = Decimal(1).scaleb(-scale)
    context = Context(prec=precision, traps=[Inexact, InvalidOperation])

    def normalized(value: Any) -> Decimal:
        if not isinstance(value, Decimal | int) or isinstance(value, bool) or not Decimal(value).is_finite():
            raise TypeError
        try:
            # Adding 0 makes 0 of -0, which Spark does not know.
            return context.add(Decimal(value).quantize(unit, context=context), 0)
        except (Inexact, InvalidOperation) as error:
            raise ValueError(f"it has no decimal({precision},{scale}) form") from error

    def hashed(value: Decimal, seed: int) -> int:
        unscaled = int(value.scaleb(scale, Context(prec=precision)))
        return hash_long(unscaled, seed) if precision <= LONG_DIGITS else hash_bytes(_big_integer(unscaled), seed)

    return KeyType(f"decimal({precision},{scale})", pa.decimal128(precision, scale), normalized, hashed)


def _big_integer(value: int) -> bytes:
    # As Java's BigInteger.toByteArray: two's complement, most significant byte first, as few bytes as hold the sign too.
    magnitude = value if value >= 0 else ~value
    return value.to_bytes(magnitude.bit_length() // 8 + 1, "big", signed=True)


def _boolean(value: Any) -> bool:
    if not isinstance(value, bool):
        raise TypeError
    return value


def _integer(bits: int) -> Callable[[Any], int]:
    least, greatest = -(1 << bits - 1), (1 << bits - 1) - 1

    def normalized(value: Any) -> int:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
        if not least <= number <= greatest:
            raise ValueError(f"it does not fit {bits} bits")
        return number

    return normalized


def _double(value: Any) -> float:
    if not isinstance(value, float | int) or isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != value and not math.isnan(number):
        raise ValueError("it cannot be written as a double")
    # The one NaN of the module is equal to itself where keys are compared, because there identity comes first.
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


def _hash_double(value: float, seed: int) -> int:
    return hash_long(
        0x7FF8000000000000 if math.isnan(value) else struct.unpack("<q", struct.pack("<d", value))[0], seed
    )


def _hash_float(value: float, seed: int) -> int:
    return hash_int(0x7FC00000 if math.isnan(value) else struct.unpack("<i", struct.pack("<f", value))[0], seed)


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    value.encode()  # refuses half a surrogate pair, of which Spark has no text
    # Not str(value), which an enum of texts defines otherwise.
    return str.__str__(value)


def _hash_text(value: str, seed: int) -> int:
    return hash_bytes(value.encode(), seed)


def _bytes(value: Any) -> bytes:
    if not isinstance(value, bytes | bytearray | memoryview):
        raise TypeError
    return bytes(value)


def _date(value: Any) -> date:
    if not isinstance(value, date) or isinstance(value, datetime):
        raise TypeError
    return value


def _hash_date(value: date, seed: int) -> int:
    return hash_int(value.toordinal() - _EPOCH_DAY, seed)


def _zoned(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError
    if value.tzinfo is None:
        raise ValueError("it has no time zone")
    return value.astimezone(UTC).replace(fold=0)


def _unzoned(value: Any) -> datetime:
    if not isinstance(value, datetime):
        raise TypeError
    if value.tzinfo is not None:
        raise ValueError("it has a time zone")
    return value.replace(fold=0)


def _hash_zoned(value: datetime, seed: int) -> int:
    return _hash_unzoned(value.replace(tzinfo=None), seed)


def _hash_unzoned(value: datetime, seed: int) -> int:
    return hash_long((value - _EPOCH) // _MICROSECOND, seed)
