"""
Names of directories with the values of partition columns, such as ``day=2026-11-21``.

They are read and written as by Spark, whose code in a name is one character, not one byte of UTF-8. Other writers
encode otherwise: a table that has the values in its log takes them from there.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

NULL_PARTITION = "__HIVE_DEFAULT_PARTITION__"
"""Value in the name of a directory that stands for null."""
_ESCAPED = frozenset("\"#%'*/:=?\\{}[]^<>| \x7f") | {chr(code) for code in range(32)}
_CODE = re.compile(r"%([0-9A-Fa-f]{2})")

PartitionValues = Mapping[str, str | None]


def partition_values(base: str, uri: str) -> dict[str, str | None]:
    """Return the partition values in the directory names between a base and a file; ``None`` for a null value."""
    return decoded_values(raw_partition_values(base, uri))


def decoded_values(raw: Mapping[str, str]) -> dict[str, str | None]:
    """Decode partition values as they are written in the names of directories."""
    return {name: None if value == NULL_PARTITION else unescaped(value) for name, value in raw.items()}


def raw_partition_values(base: str, uri: str) -> dict[str, str]:
    """Return the partition values in the directory names between a base and a file as they are written there."""
    pairs: list[tuple[str, str]] = []
    for directory in reversed(uri.removeprefix(f"{base}/").split("/")[:-1]):
        name, equals, value = directory.partition("=")
        if equals:
            pairs.append((unescaped(name), value))
        elif pairs:
            # Spark, too, looks for a first directory with a value, and then for one directly above the other.
            break
    return dict(reversed(pairs))


def partition_names(base: str, uri: str) -> tuple[str, ...]:
    """Return the partition columns in the directory names between a base and a file."""
    return tuple(raw_partition_values(base, uri))


def partition_path(values: PartitionValues) -> str:
    """Return the name of the directory with partition values; a null value is ``None`` or empty, as in Spark."""
    return "/".join(
        f"{_escaped(name)}={_escaped_value(value) if value else NULL_PARTITION}" for name, value in values.items()
    )


def _escaped_value(value: str) -> str:
    # A code lets the text that stands for null differ from null.
    return f"%{ord(value[0]):02X}{value[1:]}" if value == NULL_PARTITION else _escaped(value)


def unescaped(text: str) -> str:
    """Decode a name or a value in the name of a directory."""
    return _CODE.sub(lambda found: chr(int(found[1], 16)), text)


def _escaped(text: str) -> str:
    return "".join(f"%{ord(character):02X}" if character in _ESCAPED else character for character in text)


# Spark reads the digits of other alphabets as text.
_INTEGER = re.compile(r"-?\d{1,19}", re.ASCII)
_DOUBLE = re.compile(r"-?\d{1,15}\.\d{1,15}", re.ASCII)
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
_TIME = re.compile(r"\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(\.\d{1,6})?", re.ASCII)
_BITS = {"tinyint": 8, "smallint": 16, "int": 32, "bigint": 64}


def is_cast_like_a_directory(raw: str, data_type: DataType) -> bool:
    """
    Return whether a cast of the decoded text gives the value that Spark reads from the name of a directory.

    Spark parses such names by rules of their own: ``300`` as a tinyint is 44, and a binary value is not decoded.
    """
    kind, text = data_type.simpleString(), unescaped(raw)
    if raw == NULL_PARTITION or kind == "string":
        return bool(raw)
    if kind in ("timestamp", "timestamp_ntz"):
        return _is_valid(_TIME, text, datetime.datetime.fromisoformat)
    return raw == text and _is_plain(text, kind)


def _is_plain(text: str, kind: str) -> bool:
    if kind in _BITS:
        limit = 1 << _BITS[kind] - 1
        return bool(_INTEGER.fullmatch(text)) and -limit <= int(text) < limit
    if kind == "date":
        return _is_valid(_DATE, text, datetime.date.fromisoformat)
    return bool(_DOUBLE.fullmatch(text)) if kind == "double" else kind == "boolean" and text in ("true", "false")


def _is_valid(pattern: re.Pattern[str], text: str, parse: Any) -> bool:
    with suppress(ValueError):
        return bool(pattern.fullmatch(text)) and parse(text) is not None
    return False
