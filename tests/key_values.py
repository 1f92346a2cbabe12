"""Values for keys of every type, and how Spark gets exactly those."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

TYPES: dict[str, pa.DataType] = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "smallint": pa.int16(),
    "int": pa.int32(),
    "bigint": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", "UTC"),
    "timestamp_ntz": pa.timestamp("us"),
    "decimal(1,0)": pa.decimal128(1, 0),
    "decimal(18,4)": pa.decimal128(18, 4),
    "decimal(19,4)": pa.decimal128(19, 4),
    "decimal(38,38)": pa.decimal128(38, 38),
    "decimal(38,0)": pa.decimal128(38, 0),
}
"""By the names that Spark has for them."""


def _integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(1 << bits - 1), (1 << bits - 1) - 1)


def _decimals(precision: int, scale: int) -> st.SearchStrategy[Decimal]:
    bound = 10**precision - 1
    # By digits, because arithmetic would round to those of the context.
    return st.integers(-bound, bound).map(lambda n: Decimal((int(n < 0), tuple(map(int, str(abs(n)))), -scale)))


STRATEGIES: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "tinyint": _integers(8),
    "smallint": _integers(16),
    "int": _integers(32),
    "bigint": _integers(64),
    "float": st.floats(width=32),
    "double": st.floats(),
    "string": st.text(st.characters(codec="utf-8"), max_size=80),
    "binary": st.binary(max_size=80),
    "date": st.dates(),
    "timestamp": st.datetimes(timezones=st.just(UTC)),
    "timestamp_ntz": st.datetimes(),
    "decimal(1,0)": _decimals(1, 0),
    "decimal(18,4)": _decimals(18, 4),
    "decimal(19,4)": _decimals(19, 4),
    "decimal(38,38)": _decimals(38, 38),
    "decimal(38,0)": _decimals(38, 0),
}
"""All values that Python and Spark both have."""

EDGES: dict[str, list[Any]] = {
    "boolean": [True, False],
    "tinyint": [-128, -1, 0, 1, 127],
    "smallint": [-32768, -1, 0, 1, 32767],
    "int": [-(1 << 31), -1, 0, 1, (1 << 31) - 1],
    "bigint": [-(1 << 63), -(1 << 32), -1, 0, 1, 42, (1 << 63) - 1],
    "float": [0.0, -0.0, 1.5, -1.5, float("inf"), float("-inf"), float("nan"), 2.0**-149],
    "double": [0.0, -0.0, 1.5, -0.1, float("inf"), float("-inf"), float("nan"), 5e-324],
    "string": [
        "",
        "a",
        "abc",
        "abcd",
        "seven b",
        "8 bytes.",
        "grüße",
        "日本語",
        "😀",
        "nul\0l",
        *("x" * n for n in (31, 32, 33, 67, 200)),
    ],
    "binary": [b"", b"\0", b"\xff\x80", *(bytes(range(n)) for n in (3, 4, 5, 7, 8, 9, 12, 31, 32, 33, 39, 64, 101))],
    "date": [date(1, 1, 1), date(1582, 10, 10), date(1969, 12, 31), date(1970, 1, 1), date(9999, 12, 31)],
    "timestamp": [
        datetime(1, 1, 1, tzinfo=UTC),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2026, 2, 3, 4, 5, 6, 7, UTC),
    ],
    "timestamp_ntz": [
        datetime.fromisoformat(text) for text in ("0001-01-01", "1970-01-01", "9999-12-31T23:59:59.999999")
    ],
    "decimal(1,0)": [Decimal(-9), Decimal(0), Decimal(9)],
    "decimal(18,4)": [Decimal("0.0000"), Decimal("1.5000"), Decimal("-99999999999999.9999"), Decimal("-0.0001")],
    "decimal(19,4)": [
        Decimal("0.0000"),
        Decimal("-0.0001"),
        Decimal("0.0127"),
        Decimal("0.0128"),
        Decimal("-0.0128"),
        Decimal("-0.0129"),
        Decimal("0.0255"),
        Decimal("0.0256"),
        Decimal("-999999999999999.9999"),
    ],
    "decimal(38,38)": [Decimal("0E-38"), Decimal("0." + "9" * 38), Decimal("-0." + "9" * 38)],
    "decimal(38,0)": [Decimal("9" * 38), Decimal("-" + "9" * 38), Decimal(1 << 63), Decimal(-(1 << 63)), Decimal(0)],
}
"""Where a rule of a type changes."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def encode(name: str, value: Any) -> Any:
    """Return a value as JSON."""
    if name == "binary":
        return value.hex()
    if name in ("float", "double"):
        return repr(value)
    if name == "timestamp":
        return (value - _EPOCH) // timedelta(microseconds=1)
    return value if isinstance(value, bool | int | str) else str(value)


def decode(name: str, value: Any) -> Any:
    """Return a value that was encoded."""
    if name == "binary":
        return bytes.fromhex(value)
    if name in ("float", "double"):
        return float(value)
    if name == "timestamp":
        return _EPOCH + timedelta(microseconds=value)
    if name == "date":
        return date.fromisoformat(value)
    if name == "timestamp_ntz":
        return datetime.fromisoformat(value)
    return Decimal(value) if name.startswith("decimal") else value
