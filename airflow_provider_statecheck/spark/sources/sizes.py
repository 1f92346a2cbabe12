"""Sizes as people write them."""

from __future__ import annotations

import re

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_size(size: str | int, name: str) -> int:
    """
    Return a size in bytes; ``"1 GiB"`` is 1024³ of them, ``"1 GB"`` is 1000³.

    :param name: Which argument it is, for the message.
    :raises InvalidConfigurationError: if it is no size, or none of a byte at least.
    """
    found = size if isinstance(size, int) and not isinstance(size, bool) else _parsed(size)
    if found is None or found < 1:
        raise InvalidConfigurationError(
            f"Expected {name} to be a number of bytes, or a text such as '256 MiB'; found {size!r}."
        )
    return found


def require_count(count: object, name: str) -> int:
    """
    Return a number of files, row groups or splits.

    :param name: Which argument it is, for the message.
    :raises InvalidConfigurationError: if it is less than 1, or no number.
    """
    if isinstance(count, bool) or not isinstance(count, int) or count < 1:
        raise InvalidConfigurationError(f"Expected {name} to be a number from 1; found {count!r}.")
    return count


def _parsed(size: object) -> int | None:
    match = _SIZE.fullmatch(size) if isinstance(size, str) else None
    if match is None:
        return None
    number, power, binary, _ = match.groups()
    return int(float(number) * (1024 if binary else 1000) ** _POWERS[power.lower()])
