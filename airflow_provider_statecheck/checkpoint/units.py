"""Durations and sizes as people write them: a bare number, or one with a unit."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_NUMBER_AND_UNIT = re.compile(r"(-?[0-9]+)\s*([a-zµ]*)", re.IGNORECASE)
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
    **dict.fromkeys(("k", "kb", "kib", "kibibytes"), 1 << 10),
    **dict.fromkeys(("m", "mb", "mib", "mebibytes"), 1 << 20),
    **dict.fromkeys(("g", "gb", "gib", "gibibytes"), 1 << 30),
    **dict.fromkeys(("t", "tb", "tib", "tebibytes"), 1 << 40),
}


def parse_duration(key: str, value: Any) -> timedelta:
    """
    Read a duration: a whole number of milliseconds, or text such as ``10 min``.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    if isinstance(value, timedelta):
        return value
    expected = "milliseconds, or a number with a unit such as 10 min"
    nanoseconds = _amount(key, value, _NANOSECONDS, expected)
    try:
        return timedelta(microseconds=nanoseconds // 1_000)
    except OverflowError as error:
        raise _refused(key, value, expected) from error


def parse_size(key: str, value: Any) -> int:
    """
    Read a size: a whole number of bytes, or text such as ``20 kb``, whose units are powers of 1024.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    return _amount(key, value, _BYTES, "bytes, or a number with a unit such as 20 kb")


def _amount(key: str, value: Any, units: dict[str, int], expected: str) -> int:
    # By its text: int() alone would take 2.7 as 2 and True as 1.
    found = _NUMBER_AND_UNIT.fullmatch(str(value).strip())
    if found is None or found[2].lower() not in units:
        raise _refused(key, value, expected)
    return int(found[1]) * units[found[2].lower()]


def _refused(key: str, value: Any, expected: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)
