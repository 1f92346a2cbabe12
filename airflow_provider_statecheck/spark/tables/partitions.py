"""Partition values in the names of directories, such as ``day=2024-01-01``."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import unquote

_NULL = "__HIVE_DEFAULT_PARTITION__"
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}


def partition_values(root: str, uri: str) -> dict[str, str | None]:
    """Return the partition values in the directory names between a root and a file; ``None`` for a null value."""
    directories = uri.removeprefix(root).split("/")[:-1]
    pairs = (directory.partition("=") for directory in directories if "=" in directory)
    return {unquote(name): None if value == _NULL else unquote(value) for name, _, value in pairs}


def partition_names(directory: str) -> tuple[str, ...]:
    """Return the partition columns in the name of a directory."""
    return tuple(partition_values("", f"{directory}/"))


def partition_path(values: Mapping[str, str | None]) -> str:
    """Return the name of the directory with partition values; a null value is ``None`` or empty, as in Spark."""
    return "/".join(f"{_escaped(name)}={_escaped(value) if value else _NULL}" for name, value in values.items())


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)
