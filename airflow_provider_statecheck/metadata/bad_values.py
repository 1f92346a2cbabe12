"""
Values in rows that no version of this package writes, and that cannot be read.

A database restored from a damaged backup, or a statement of an administrator, leaves such values. An error of the driver or of a
type would name neither the row nor the column, and would end a list at the first bad row. A bad value is therefore kept as a
:class:`BadValue` until its row is read as a record.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from typing import Any

from sqlalchemy.engine import Connection

UNREADABLE = (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError)
"""Errors of the conversion of a bad value."""


@dataclass(frozen=True, slots=True)
class BadValue:
    """A value of a row that cannot be read."""

    found: object = field(repr=False)


def read_or_bad(read: Callable[[Any], Any], value: Any) -> Any:
    """Return what a function makes of a value, or a :class:`BadValue` if it cannot."""
    try:
        return value if isinstance(value, BadValue) else read(value)
    except UNREADABLE:
        return BadValue(value)


@contextmanager
def keeping_bad_values(opened: AbstractContextManager[Connection]) -> Iterator[Connection]:
    """Open a connection whose driver returns what it cannot convert as a :class:`BadValue`."""
    with opened as connection, driver_keeping_bad_values(connection.connection.dbapi_connection):
        yield connection


@contextmanager
def driver_keeping_bad_values(driver: Any) -> Iterator[None]:
    """Let a connection of SQLite or psycopg2 return what it cannot convert as a :class:`BadValue`, until the end of the block."""
    if isinstance(driver, sqlite3.Connection):
        known = driver.text_factory
        driver.text_factory = _text
        try:
            yield
        finally:
            driver.text_factory = known
    elif hasattr(driver, "string_types"):
        known_types = dict(driver.string_types)
        driver.string_types.update(_postgres_types())
        try:
            yield
        finally:
            driver.string_types.clear()
            driver.string_types.update(known_types)
    else:
        yield


def _text(data: bytes) -> str | BadValue:
    try:
        return data.decode()
    except UnicodeDecodeError:
        return BadValue(data)


@cache
def _postgres_types() -> dict[int, Any]:
    from psycopg2 import extensions  # type: ignore[import-untyped]

    def kept(kind: Any, read: Callable[[Any, Any], Any]) -> dict[int, Any]:
        form = extensions.new_type(kind.values, kind.name, partial(_converted, read))
        return dict.fromkeys(kind.values, form)

    # PostgreSQL has years that Python has not, and JSON of any depth and with numbers of any length.
    times = kept(extensions.PYDATETIMETZ, extensions.PYDATETIMETZ)
    return times | kept(extensions.JSON, lambda text, _: None if text is None else json.loads(text))


def _converted(read: Callable[[Any, Any], Any], text: str | None, cursor: Any) -> Any:
    return read_or_bad(lambda value: read(value, cursor), text)
