"""
Records as rows: types of columns, tables of records, and values that no record can take.

A database restored from a damaged backup, or a statement of an administrator, leaves values in rows that no version of
this package writes. An error of the driver or of a type would name neither the row nor the column, and would end a list
at the first bad row. What cannot be read is therefore kept as a :class:`BadValue` until its row is read as a record.
Numbers and plain texts need no type of their own, so :class:`Form` also tells a text from a number, which SQLite stores
in any column.
"""

from __future__ import annotations

import json
import math
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import cache, partial
from itertools import accumulate
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
    Integer,
    Select,
    String,
    Table,
    bindparam,
    case,
    cast as cast_in_sql,
    or_,
    select,
)
from sqlalchemy.engine import Connection
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.codec import classes_of, decode, form_of, name_of_form, of_fields
from airflow_provider_statecheck.checkpoint.messages import LONGEST_CHECKPOINT
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, TaskCoordinates, TaskState, Transport
from airflow_provider_statecheck.exceptions import CorruptRowError, InvalidConfigurationError
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

Record = TypeVar("Record")
Key = tuple[object, ...]

_HIGHEST = {int: 2**63 - 1, float: LONGEST_CHECKPOINT.total_seconds()}
"""Highest numbers in rows. The floats are durations in seconds."""
_YEARS = range(2, 9999)
"""Years from which a year may be subtracted, and to which one may be added. PostgreSQL also has infinite times."""
_FLAGS = {None: None, 0: False, 1: True}
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


class CheckedType(TypeDecorator[Any]):
    """Base of the types of columns: a value that cannot be read becomes a :class:`BadValue`."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    @override
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        convert = self.impl_instance.result_processor(dialect, coltype)

        # A checkpoint reads hundreds of values, for which SQLAlchemy's function and read_or_bad() are two more calls.
        def read(value: Any) -> Any:
            if value is None or isinstance(value, BadValue):
                return value
            try:
                return self.process_result_value(convert(value) if convert else value, dialect)
            except UNREADABLE:
                return BadValue(value)

        return read


class UtcDateTime(CheckedType):
    """An aware UTC time. SQLite stores no time zone, so it is added on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return None if value is None else value.astimezone(UTC)

    @override
    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        if value is None:
            return None
        if value.year not in _YEARS:
            raise ValueError("at the end of all times")
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class EnumText(CheckedType):
    """
    A member of an enum, stored as its text.

    :param length: Maximum length of the texts.
    """

    impl = String
    cache_ok = True

    def __init__(self, members: type[StrEnum], length: int) -> None:
        super().__init__(length)
        self.members = members

    @override
    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        return None if value is None else value.value

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        return None if value is None else self.members(value)


class Flag(CheckedType):
    """True or false. SQLite stores any number and text, and SQLAlchemy would take all numbers but 0 as true."""

    impl = Boolean
    cache_ok = True

    @override
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return partial(read_or_bad, _FLAGS.__getitem__)


class JsonText(str):
    """JSON of a value, as it is stored."""

    __slots__ = ()


# What another encoder escapes takes more space, and must be looked through for what databases cannot store.
_json_of = json.JSONEncoder(ensure_ascii=False, default=form_of).encode


class JsonOf(CheckedType):
    """
    A value that is stored as JSON.

    :param read: Function that makes the value of what ``json.loads`` returns.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.read = read

    @override
    def bind_processor(self, dialect: Dialect) -> Callable[[Any], JsonText | None]:
        return self.text_of

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.read(value)

    @staticmethod
    def text_of(value: Any) -> JsonText | None:
        """Return the JSON of a value; that of a :meth:`RecordTable.storable` one is already made."""
        return value if value is None or isinstance(value, JsonText) else JsonText(_json_of(value))


class _IsJson(FunctionElement[bool]):
    """Whether a column holds JSON. Only SQLite has columns of JSON with other values, on which its functions fail."""

    inherit_cache = True
    type = Boolean()


compiles(_IsJson)(lambda element, compiler, **_: "1 = 1")
compiles(_IsJson, "sqlite")(lambda element, compiler, **_: f"json_valid({compiler.process(element.clauses)})")


def json_text(column: Any, *path: str | int) -> ColumnElement[str]:
    """
    Return a value in a column of JSON as a text, or as nothing if it is not there.

    A conversion to another type would fail the statement for all rows if one row had a value of another form.
    """
    return case((_IsJson(column), cast_in_sql(column[path].as_string(), String)))


TRUE = ("true", "1")
"""What databases make of the value ``true``."""


def json_reader(kind: Any) -> Callable[[Any], Any]:
    """Return the function that reads a value of a type from JSON."""
    return _READERS.get(kind) or partial(decode, kind)


def _owner_of(values: dict[str, Any]) -> AttemptOwner:
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    task = TaskCoordinates.of(pairs)
    if pairs and (task is None or task.pairs != pairs or task.map_index < -1):
        raise ValueError("coordinates of another form")
    transport = values.get("transport")
    typed = {
        "airflow": pairs,
        "task_state": TaskState(values.get("task_state", "")),
        "transport": None if transport is None else Transport(transport),
    }
    return of_fields(AttemptOwner, values | typed)


def _properties_of(values: dict[str, Any]) -> CheckpointProperties:
    written = values["savepoint_format"]
    typed = {
        "snapshot_type": CheckpointType(values["snapshot_type"]),
        "savepoint_format": None if written is None else SavepointFormat(written),
    }
    return of_fields(CheckpointProperties, values | typed)


def _object_of(values: Any) -> dict[str, Any]:
    if not isinstance(values, dict):
        raise TypeError("not an object")
    return values


def _summary_of(values: Any) -> CheckpointSummary | None:
    return CheckpointSummary.of(_object_of(values))


def _counts_of(values: Any) -> dict[str, int]:
    if not all(type(each) is int for each in _object_of(values).values()):
        raise TypeError("not a count")
    return cast("dict[str, int]", values)


_READERS: dict[Any, Callable[[Any], Any]] = {
    AttemptOwner: _owner_of,
    CheckpointProperties: _properties_of,
    CheckpointSummary: _summary_of,
    dict[str, Any]: _object_of,
    dict[str, int]: _counts_of,
}
"""Functions that read what many rows have."""


@dataclass(frozen=True, slots=True)
class Form:
    """
    The values that a field of a record may have.

    :param kind: Annotation of the field.
    """

    kind: Any
    classes: tuple[type, ...]
    highest: float | None
    """Highest number, of at least 0; ``None`` if the field is no number."""

    @classmethod
    def of(cls, kind: Any) -> Form:
        """Return the form of the values of a field."""
        classes = classes_of(kind)
        return cls(kind, classes, next((_HIGHEST[each] for each in classes if each in _HIGHEST), None))

    def fits(self, value: object) -> bool:
        """Return whether a value is readable and in range."""
        return isinstance(value, self.classes) and (self.highest is None or self.is_in_range(value))

    def is_in_range(self, number: Any) -> bool:
        """Return whether a number is not negative, infinite or too large."""
        return number is None or 0 <= number <= self.highest

    @property
    def description(self) -> str:
        """Which values fit, for an error."""
        names = " or ".join("nothing" if each is NoneType else name_of_form(each) for each in self.classes)
        return f"{names} from 0 to {self.highest}" if self.highest else names


_KEY = "key_"
"""Prefix of the parameters of conditions, which separates them from the values to write."""


def parameter(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """Return a parameter from :func:`keys`."""
    return bindparam(_KEY + name, type_=type_)


def given(column: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that a column equals its parameter from :func:`keys`."""
    return column == parameter(column.name, column.type)


def keys(**values: object) -> dict[str, object]:
    """
    Return the parameters of a statement by their names, which for conditions of :func:`given` are those of columns.
    """
    return {_KEY + name: each for name, each in values.items()}


class RecordTable(Generic[Record]):
    """
    A table with a column of the same name, and with the same values, for each field of a record class.

    :param guards: Columns that an update expects as they were read, besides the primary key.
    """

    def __init__(self, table: Table, record: type[Record], guards: Sequence[str] = ()) -> None:
        self.table = table
        self.c = table.c
        self._types = {column.name: column.type for column in table.c}
        self._record = record
        self.names = tuple(field.name for field in fields(cast("Any", record)))
        hints = get_type_hints(record)
        self._forms = {name: Form.of(hints[name]) for name in self.names}
        self._classes = tuple(form.classes for form in self._forms.values())
        self._numbers = tuple((place, form) for place, form in enumerate(self._forms.values()) if form.highest)
        self.columns = tuple(table.c[name] for name in self.names)
        self.key_names = tuple(column.name for column in table.primary_key)
        self.condition_names = (*self.key_names, *guards)
        self.by_key = select(*self.columns).where(*(given(column) for column in table.primary_key))

    def read(self, values: Sequence[Any]) -> Record:
        """
        Return the values of :attr:`columns` as a record.

        :raises CorruptRowError: if a value cannot be read.
        """
        found = dict(zip(self.names, values, strict=True))
        # Transitions and views read many rows, so the values are compared with their forms only if one of them is bad.
        if not (
            all(map(isinstance, values, self._classes))
            and all(form.is_in_range(values[i]) for i, form in self._numbers)
        ):
            raise self._bad_row(found)
        return self._record(**found)

    def value(self, name: str, value: Any, **key: object) -> Any:
        """
        Return the value of one column.

        :param key: What is known of the key of the row, for the error.
        :raises CorruptRowError: if the value cannot be read.
        """
        if not self._forms[name].fits(value):
            raise self._bad_row(key | {name: value})
        return value

    def problem(self, values: Mapping[str, Any]) -> CorruptRowError | None:
        """
        Return the error of the first value that cannot be read, by columns of the table.

        Values of others are ignored.
        """
        return self._bad_row(values) if any(self.bad_columns(values)) else None

    def bad_columns(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Return the columns whose values cannot be read."""
        return (name for name, form in self._forms.items() if name in values and not form.fits(values[name]))

    def _bad_row(self, values: Mapping[str, Any]) -> CorruptRowError:
        column = next(self.bad_columns(values))
        key = ", ".join(f"{name}={values[name]}" for name in (*self.key_names, "pointer") if name in values)
        return CorruptRowError(
            f"Expected {self._forms[column].description} in column {column} of table {self.table.name}, found a value "
            f"that cannot be read in the row with {key}; correct it, or restore the row from a backup of the database. "
            "Only the job of the row stops.",
            table=self.table.name,
            key=key,
            column=column,
        )

    def key_of(self, record: Record) -> Key:
        """Return the primary key of a record."""
        return tuple(getattr(record, name) for name in self.key_names)

    def values_of(self, record: Record) -> dict[str, Any]:
        """Return the values of the columns for a record."""
        return {name: getattr(record, name) for name in self.names}

    def storable(self, values: dict[str, Any]) -> dict[str, Any]:
        """
        Return values to write, by columns, with JSON as text; values may come from files that any job has written.

        :raises InvalidConfigurationError: if a database cannot store a value; the error names its column.
        """
        return {name: self._storable(name, value) for name, value in values.items()}

    def _storable(self, name: str, value: Any) -> Any:
        column = self._types[name]
        stored = column.text_of(value) if isinstance(column, JsonOf) else value
        expected = _expected_in(column, stored)
        if expected:
            raise InvalidConfigurationError(
                f"Expected column {name} of table {self.table.name} to be {expected}, found another value; nothing was "
                "changed, correct it where it comes from.",
                table=self.table.name,
                column=name,
            )
        return stored

    def changes(self, known: Record, record: Record) -> dict[str, Any]:
        """Return the columns in which a record differs from a known record with the same key."""
        both = ((name, getattr(known, name), getattr(record, name)) for name in self.names)
        return {name: new for name, old, new in both if new != old}

    def with_a_time_after(self, time: BindParameter[Any]) -> Select[Any]:
        """Return the query for the rows of a job with any time later than the given one."""
        times = [column > time for column in self.columns if isinstance(column.type, UtcDateTime)]
        return select(*self.columns).where(given(self.c.job_id), or_(*times))


_UNSTORABLE = re.compile("[\x00\ud800-\udfff]")
"""PostgreSQL rejects U+0000, and every database lone surrogates."""
_UNSTORABLE_IN_JSON = re.compile(r"(?<!\\)(?:\\\\)*\\u0000|[\ud800-\udfff]")
LONGEST_TEXT = 16 * 1024
"""Largest number of characters in a column without a length of its own, such as that of a URI or of a label."""
_LONGEST_JSON = 256 * 1024
_BITS: tuple[tuple[type[TypeEngine[Any]], int], ...] = ((BigInteger, 64), (Integer, 32))


def expected_text(value: str, longest: int | None) -> str | None:
    """Return which text a column of a length can store, if it cannot store a given one."""
    if _UNSTORABLE.search(value):
        return "text without U+0000 and lone surrogates"
    return f"text of at most {longest} characters" if longest is not None and len(value) > longest else None


def expected_number(value: Any, bits: int) -> str | None:
    """Return which number a column of a size can store, if it cannot store a given one."""
    if isinstance(value, float):
        return None if math.isfinite(value) else "a finite number"
    return None if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else f"a whole number of {bits} bits"


def _expected_in(column: TypeEngine[Any], value: Any) -> str | None:
    if value is None or isinstance(value, bool | datetime):
        return None
    if isinstance(value, JsonText):
        return _expected_json(value)
    if isinstance(value, str):
        return expected_text(value, getattr(column, "length", None) or LONGEST_TEXT)
    return expected_number(value, next((bits for kind, bits in _BITS if isinstance(column, kind)), 64))


def _expected_json(text: JsonText) -> str | None:
    if len(text) > _LONGEST_JSON:
        return f"at most {_LONGEST_JSON} characters as JSON"
    # The expression takes longer to search than everything else takes that is done to a row.
    may_be_unstorable = "\\u0000" in text or not text.isascii()
    is_unstorable = may_be_unstorable and _UNSTORABLE_IN_JSON.search(text)
    return "values without U+0000 and lone surrogates" if is_unstorable else None


def split(row: Sequence[Any], *tables: RecordTable[Any]) -> list[Sequence[Any]]:
    """Return the values of each of several joined tables in a row; those of a table without a row are ``None``."""
    ends = list(accumulate(len(table.columns) for table in tables))
    return [row[start:end] for start, end in zip([0, *ends], ends, strict=False)]


@contextmanager
def keeping_bad_values(opened: AbstractContextManager[Connection]) -> Iterator[Connection]:
    """Open a connection whose driver returns what it cannot convert as a :class:`BadValue`."""
    with opened as connection, driver_keeping_bad_values(connection.connection.dbapi_connection):
        yield connection


@contextmanager
def driver_keeping_bad_values(driver: Any) -> Iterator[None]:
    """Let a connection of SQLite or psycopg2 return what it cannot convert as a :class:`BadValue`, within the block."""
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
    try:
        return read(text, cursor)
    except UNREADABLE:
        return BadValue(text)
