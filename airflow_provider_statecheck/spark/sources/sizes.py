"""How much an increment reads: the arguments that all sources of files and tables take."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.units import parse_size
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

AUTO = "auto"


def parse_bytes_per_increment(value: str | int | None) -> int | None:
    """
    Return how many bytes an increment reads, ``None`` for ``"auto"`` or where nothing is given.

    :raises InvalidConfigurationError: for what is no size, or less than a byte.
    """
    if value is None or value == AUTO:
        return None
    size = parse_size("bytes_per_increment", value)
    if size < 1:
        raise InvalidConfigurationError(f"Expected bytes_per_increment to be at least a byte, found {value!r}.")
    return size


def require_count(count: object, name: str) -> int:
    """
    Return a number of files, row groups or splits.

    :param name: Which argument it is, for the message.
    :raises InvalidConfigurationError: if it is less than 1, or no number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidConfigurationError(f"Expected {name} to be a number from 1; found {count!r}.")
    return count
