"""Durations and sizes as people write and read them: a bare number, or one with a unit."""

from __future__ import annotations

import re
from datetime import timedelta
from decimal import Decimal
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_NUMBER_AND_UNIT = re.compile(r"(-?[0-9]+(?:\.[0-9]+)?)\s*([a-zµ]*)", re.IGNORECASE)
_NANOSECONDS = {
    **dict.fromkeys(("ns", "nano", "nanos", "nanosecond", "nanoseconds"), 1),
    **dict.fromkeys(("us", "µs", "micro", "micros", "microsecond", "microseconds"), 1_000),
    **dict.fromkeys(("", "ms", "milli", "millis", "millisecond", "milliseconds"), 1_000_000),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1_000_000_000),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60 * 1_000_000_000),
    **dict.fromkeys(("h", "hour", "hours"), 3_600 * 1_000_000_000),
    **dict.fromkeys(("d", "day", "days"), 86_400 * 1_000_000_000),
}
_BYTES = {
    **dict.fromkeys(("", "b", "byte", "bytes"), 1),
    **{f"{prefix}ib": 1 << 10 * power for power, prefix in enumerate("kmgt", start=1)},
    **{f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", start=1)},
}
_BINARY_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def parse_duration(key: str, value: Any) -> timedelta:
    """
    Read a duration: a whole number of milliseconds, or text such as ``10 min``.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    if isinstance(value, timedelta):
        return value
    expected = "milliseconds, or a number with a unit such as 10 min"
    number, unit = _number_and_unit(key, value, _NANOSECONDS, expected)
    if "." in number:
        raise _refused(key, value, expected)
    try:
        return timedelta(microseconds=int(number) * unit // 1_000)
    except OverflowError as error:
        raise _refused(key, value, expected) from error


def parse_size(key: str, value: Any) -> int:
    """
    Read a size: a whole number of bytes, or text with a binary unit (``20 KiB``) or a decimal one (``20 KB``).

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    expected = "bytes, or a number with a unit: KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)"
    number, unit = _number_and_unit(key, value, _BYTES, expected)
    if "." in number and unit == 1:
        raise _refused(key, value, expected)
    return int(Decimal(number) * unit)


def readable_size(count: int) -> str:
    """Return a number of bytes with a binary unit, such as ``1.5 MiB``; :func:`parse_size` reads it."""
    size, power = float(count), 0
    while size >= 1 << 10 and power < len(_BINARY_UNITS) - 1:
        size, power = size / (1 << 10), power + 1
    return f"{count} B" if power == 0 else f"{size:.1f} {_BINARY_UNITS[power]}"


def _number_and_unit(key: str, value: Any, units: dict[str, int], expected: str) -> tuple[str, int]:
    # By its text: int() alone would take 2.7 as 2 and True as 1.
    found = _NUMBER_AND_UNIT.fullmatch(str(value).strip())
    if found is None or found[2].lower() not in units:
        raise _refused(key, value, expected)
    return found[1], units[found[2].lower()]


def _refused(key: str, value: Any, expected: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)
