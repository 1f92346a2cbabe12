"""Configuration options: keys, defaults, and parsing of durations, sizes and URIs."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from configparser import ConfigParser
from datetime import timedelta
from decimal import Decimal
from enum import StrEnum
from typing import Any, Generic, NamedTuple, Self, TypeVar, overload
from urllib.parse import urlsplit

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=StrEnum)


class Range(NamedTuple):
    """Values that a setting may have."""

    includes: Callable[[Any], bool]
    description: str
    """Description for errors."""


ANY = Range(lambda _: True, "")
POSITIVE = Range(lambda n: n >= 1, "at least 1")
NOT_NEGATIVE = Range(lambda n: n >= 0, "0 or more")


class ConfigOption(Generic[Value]):
    """
    Descriptor of a setting that is validated on assignment and can be read from a mapping.

    :param parse: Parser of a value; its first argument is the name for the error.
    :param within: Values in range.
    :param old_keys: Deprecated keys in order of precedence, after ``key``.
    :param is_lenient: Whether the default replaces a value out of range in a mapping, with a warning.
    """

    def __init__(
        self,
        key: str,
        default: Value,
        parse: Callable[[str, Any], Value],
        within: Range = ANY,
        *,
        old_keys: tuple[str, ...] = (),
        is_lenient: bool = False,
    ) -> None:
        self.key = key
        self.default = default
        self.old_keys = old_keys
        self._parse = parse
        self._range = within
        self._is_lenient = is_lenient
        self.name = key

    def __set_name__(self, owner: type, name: str) -> None:
        """Store the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...

    @overload
    def __get__(self, config: object, owner: type) -> Value: ...

    def __get__(self, config: object | None, owner: type) -> Self | Value:
        """Return the value, or the option itself on access through the class."""
        if config is None:
            return self
        value: Value = config.__dict__.get(self.name, self.default)
        return value

    def __set__(self, config: object, value: Any) -> None:
        """
        Validate and store a value; ``None`` resets it to the default.

        :raises InvalidConfigurationError: if the value is invalid.
        """
        self._set(config, self.name, value)

    def read(self, config: object, values: Mapping[str, Any]) -> None:
        """
        Set the attribute from a mapping that contains one of its keys.

        :raises InvalidConfigurationError: if the value is invalid.
        """
        key = self.key_in(values)
        if key is None:
            return
        if key != self.key:
            log.warning("Setting %s is deprecated; use %s.", key, self.key)
        try:
            self._set(config, key, values[key])
        except _OutOfRangeError as error:
            if not self._is_lenient:
                raise
            log.warning("%s Using the default %s.", error, self.default)

    @property
    def keys(self) -> tuple[str, ...]:
        """All keys of the option, the current one first."""
        return (self.key, *self.old_keys)

    def key_in(self, values: Mapping[str, Any]) -> str | None:
        """Return the first key of the option with a value in a mapping."""
        return next((key for key in self.keys if values.get(key) not in (None, "")), None)

    def checked(self, key: str, value: Any) -> Value:
        """
        Parse and validate a value.

        :param key: Name of the setting, for the error.
        :raises InvalidConfigurationError: if the value is invalid.
        """
        parsed = self._parse(key, value)
        if not self._range.includes(parsed):
            raise _OutOfRangeError(
                f"Expected {key} to be {self._range.description}, found {value!r}.", key=key, value=value
            )
        return parsed

    def _set(self, config: object, key: str, value: Any) -> None:
        if value is None:
            config.__dict__.pop(self.name, None)
        else:
            config.__dict__[self.name] = self.checked(key, value)


class _OutOfRangeError(InvalidConfigurationError):
    pass


def parse_text(key: str, value: Any) -> str:
    """
    Parse text.

    :raises InvalidConfigurationError: if the value is not text.
    """
    require(key, value, lambda text: isinstance(text, str), "text")
    return str(value)


def parse_storage(key: str, value: Any) -> Any:
    """
    Parse a checkpoint storage: its name, the URI of its directory, or an object.

    :raises InvalidConfigurationError: if a URI is not that of a directory, or the value is data.
    """
    if isinstance(value, int | float | bytes | list | tuple | dict):
        raise _invalid(key, value, "text, or an object that stores checkpoints")
    if not isinstance(value, str):
        return value
    return parse_directory(key, value) if "://" in value else parse_text(key, value)


def parse_whole_number(key: str, value: Any) -> int:
    """
    Parse a whole number.

    :raises InvalidConfigurationError: if the value is not a whole number.
    """
    try:
        return int(str(value))  # int() without str() would accept 2.7 and True
    except ValueError as error:
        raise _invalid(key, value, "a whole number") from error


def parse_number(key: str, value: Any) -> float:
    """
    Parse a number.

    :raises InvalidConfigurationError: if the value is not a number.
    """
    try:
        return float(str(value))
    except ValueError as error:
        raise _invalid(key, value, "a number") from error


def parse_truth(key: str, value: Any) -> bool:
    """
    Parse ``true`` or ``false``, or another word for them in Airflow's configuration, in upper or lower case.

    :raises InvalidConfigurationError: if the value is neither.
    """
    states = ConfigParser.BOOLEAN_STATES
    text = str(value).strip().lower()
    require(key, value, lambda _: text in states, "true or false")
    return states[text]


def one_of(kind: type[Kind], shown: Callable[[Kind], str] = lambda member: member.name) -> Callable[[str, Any], Kind]:
    """
    Return a parser for members of an enumeration, which ignores case and accepts hyphens for underscores.

    :param shown: Returns the text of a member for the error; its name by default.
    """

    def parse(key: str, value: Any) -> Kind:
        try:
            return kind(str(value).strip().lower().replace("-", "_"))
        except ValueError as error:
            raise _invalid(key, value, f"one of {', '.join(map(shown, kind))}") from error

    return parse


def _invalid(key: str, value: Any, expected: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)


_CREDENTIALS = re.compile(r"//.*@")


def parse_directory(key: str, value: Any) -> str:
    """
    Parse the URI of a directory.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: if the URI has no scheme or no path; the error masks credentials.
    """
    uri = str(value)
    if not _is_below_a_root(uri):
        shown = _CREDENTIALS.sub("//***@", uri.partition("?")[0])
        raise InvalidConfigurationError(
            f"Expected {key} to be the URI of a directory with a path, such as file:///data/checkpoints, found "
            f"{shown!r}.",
            key=key,
            value=shown,
        )
    return uri


def _is_below_a_root(uri: str) -> bool:
    try:
        parts = urlsplit(uri)
    except ValueError:
        return False
    return bool(parts.scheme) and "://" in uri and bool(parts.path.strip("/"))


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
    Parse a duration: a whole number of milliseconds, or text such as ``10 min``.

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: if the value is not a duration.
    """
    if isinstance(value, timedelta):
        return value
    expected = "milliseconds, or a number with a unit such as 10 min"
    number, unit = _number_and_unit(key, value, _NANOSECONDS, expected)
    if "." in number:
        raise _invalid(key, value, expected)
    try:
        return timedelta(microseconds=int(number) * unit // 1_000)
    except OverflowError as error:
        raise _invalid(key, value, expected) from error


def parse_size(key: str, value: Any) -> int:
    """
    Parse a size: a whole number of bytes, or text with a binary unit (``20 KiB``) or a decimal unit (``20 KB``).

    :param key: Name of the setting, for the error.
    :raises InvalidConfigurationError: if the value is not a size.
    """
    expected = "bytes, or a number with a unit: KiB, MiB, GiB, TiB (powers of 1024) or KB, MB, GB, TB (powers of 1000)"
    number, unit = _number_and_unit(key, value, _BYTES, expected)
    if "." in number and unit == 1:
        raise _invalid(key, value, expected)
    return int(Decimal(number) * unit)


def readable_size(count: int) -> str:
    """Format a number of bytes with a binary unit, such as ``1.5 MiB``, for :func:`parse_size`."""
    size, power = float(count), 0
    while size >= 1 << 10 and power < len(_BINARY_UNITS) - 1:
        size, power = size / (1 << 10), power + 1
    return f"{count} B" if power == 0 else f"{size:.1f} {_BINARY_UNITS[power]}"


def _number_and_unit(key: str, value: Any, units: dict[str, int], expected: str) -> tuple[str, int]:
    match = _NUMBER_AND_UNIT.fullmatch(str(value).strip())
    if match is None or match[2].lower() not in units:
        raise _invalid(key, value, expected)
    return match[1], units[match[2].lower()]
