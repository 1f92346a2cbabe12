"""One setting of a configuration: its keys, its default, what it takes, and what happens to a value out of range."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Generic, Self, TypeVar, overload

from airflow_provider_statecheck.checkpoint.validation import require
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

log = logging.getLogger(__name__)

Value = TypeVar("Value")
Kind = TypeVar("Kind", bound=StrEnum)


class ConfigOption(Generic[Value]):
    """
    An attribute of a configuration that is checked when it is set, and may be read from a mapping.

    :param key: Its name in a mapping.
    :param default: What holds where nothing is set.
    :param parse: Reads a value, given the name to use in the error.
    :param old_keys: Earlier names, of which the first that is given counts; the present one comes before them.
    :param is_valid: Tells whether a value is in range.
    :param expected: The range in words.
    :param is_lenient: Whether a value out of range in a mapping is replaced by the default, with a warning.
    """

    def __init__(
        self,
        key: str,
        default: Value,
        parse: Callable[[str, Any], Value],
        *,
        old_keys: tuple[str, ...] = (),
        is_valid: Callable[[Any], bool] = lambda _: True,
        expected: str = "",
        is_lenient: bool = False,
    ) -> None:
        self.key = key
        self.default = default
        self.old_keys = old_keys
        self._parse = parse
        self._is_valid = is_valid
        self._expected = expected
        self._is_lenient = is_lenient
        self.name = key

    def __set_name__(self, owner: type, name: str) -> None:
        """Learn the name of the attribute."""
        self.name = name

    @overload
    def __get__(self, config: None, owner: type) -> Self: ...

    @overload
    def __get__(self, config: object, owner: type) -> Value: ...

    def __get__(self, config: object | None, owner: type) -> Self | Value:
        """Return the value, or the option itself where the class is asked."""
        if config is None:
            return self
        value: Value = config.__dict__.get(self.name, self.default)
        return value

    def __set__(self, config: object, value: Any) -> None:
        """
        Check a value and set it; ``None`` goes back to the default.

        :raises InvalidConfigurationError: naming the attribute and the value.
        """
        self._set(config, self.name, value)

    def read(self, config: object, values: Mapping[str, Any]) -> None:
        """
        Set the attribute from a mapping, where that has it.

        :raises InvalidConfigurationError: naming the key and the value.
        """
        key = self.key_in(values)
        if key is None:
            return
        if key != self.key:
            log.warning("%s is the old name of %s; the old one still works.", key, self.key)
        try:
            self._set(config, key, values[key])
        except _OutOfRangeError as error:
            if not self._is_lenient:
                raise
            log.warning("%s The default %s is used.", error, self.default)

    def key_in(self, values: Mapping[str, Any]) -> str | None:
        """Return under which of its names a mapping has it."""
        return next((key for key in (self.key, *self.old_keys) if values.get(key) not in (None, "")), None)

    def checked(self, key: str, value: Any) -> Value:
        """
        Read a value and check its range.

        :param key: What to call it in the error.
        :raises InvalidConfigurationError: naming it and the value.
        """
        parsed = self._parse(key, value)
        if not self._is_valid(parsed):
            raise _OutOfRangeError(f"Expected {key} to be {self._expected}, found {value!r}.", key=key, value=value)
        return parsed

    def _set(self, config: object, key: str, value: Any) -> None:
        if value is None:
            config.__dict__.pop(self.name, None)
        else:
            config.__dict__[self.name] = self.checked(key, value)


class _OutOfRangeError(InvalidConfigurationError):
    pass


def parse_text(key: str, value: Any) -> str:
    """Read text."""
    require(key, value, lambda text: isinstance(text, str), "text")
    return str(value)


def parse_whole_number(key: str, value: Any) -> int:
    """
    Read a whole number.

    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    try:
        return int(str(value))  # by its text, for int() alone would take 2.7 as 2 and True as 1
    except ValueError as error:
        raise _refused(key, value, "a whole number") from error


def parse_number(key: str, value: Any) -> float:
    """
    Read a number.

    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    try:
        return float(str(value))
    except ValueError as error:
        raise _refused(key, value, "a number") from error


def parse_truth(key: str, value: Any) -> bool:
    """
    Read true or false.

    :raises InvalidConfigurationError: for anything else, naming key and value.
    """
    text = str(value).strip().lower()
    require(key, value, lambda _: text in ("true", "false"), "true or false")
    return text == "true"


def one_of(kind: type[Kind]) -> Callable[[str, Any], Kind]:
    """Return what reads a member of an enumeration by its value, in any case and with hyphens or underscores."""

    def parse(key: str, value: Any) -> Kind:
        try:
            return kind(str(value).strip().lower().replace("-", "_"))
        except ValueError as error:
            raise _refused(key, value, f"one of {', '.join(each.name for each in kind)}") from error

    return parse


def _refused(key: str, value: Any, expected: str) -> InvalidConfigurationError:
    return InvalidConfigurationError(f"Expected {key} to be {expected}, found {value!r}.", key=key, value=value)
