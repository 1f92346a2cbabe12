"""
Types of the columns of ``statecheck_*``, and the forms of the values that a record takes from them.

A type turns what it cannot read into a :class:`~.bad_values.BadValue`. Numbers and plain texts need no type of their own, so
:class:`Form` also tells a text from a number, which SQLite stores in any column.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from types import NoneType
from typing import TYPE_CHECKING, Any, cast

from sqlalchemy import JSON, Boolean, ColumnElement, DateTime, String, case, cast as cast_in_sql
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import TypeDecorator, TypeEngine

from airflow_provider_statecheck.checkpoint.codec import classes_of, decode, encode, name_of_form, of_fields
from airflow_provider_statecheck.checkpoint.messages import LONGEST_CHECKPOINT
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, TaskState
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.metadata.bad_values import read_or_bad
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect

_HIGHEST = {int: 2**63 - 1, float: LONGEST_CHECKPOINT.total_seconds()}
"""Highest numbers in rows. The floats are durations in seconds."""
_COORDINATES = {"dag_id", "run_id", "task_id", "map_index"}
_YEARS = range(2, 9999)
"""Years from which a year may be subtracted, and to which one may be added. PostgreSQL also has infinite times."""
_FLAGS = {None: None, 0: False, 1: True}


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
        """Return which values fit, for an error."""
        names = " or ".join("nothing" if each is NoneType else name_of_form(each) for each in self.classes)
        return f"{names} from 0 to {self.highest}" if self.highest else names


class CheckedType(TypeDecorator[Any]):
    """Base of the types of columns: a value that cannot be read becomes a :class:`~.bad_values.BadValue`."""

    impl: TypeEngine[Any] | type[TypeEngine[Any]] = String
    cache_ok = True

    @override
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return partial(read_or_bad, super().result_processor(dialect, coltype) or _as_it_is)


def _as_it_is(value: Any) -> Any:
    return value


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
    """True or false. SQLite stores numbers, of which SQLAlchemy would take any but 0 as true, and any text."""

    impl = Boolean
    cache_ok = True

    @override
    def result_processor(self, dialect: Dialect, coltype: object) -> Callable[[Any], Any]:
        return partial(read_or_bad, _FLAGS.__getitem__)


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
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return encode(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self.read(value)


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
    if not dict(pairs).keys() <= _COORDINATES or int(dict(pairs).get("map_index", -1)) < -1:
        raise ValueError("coordinates of another form")
    typed = {"airflow": pairs, "task_state": TaskState(values.get("task_state", ""))}
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


def _summary_of(values: Any) -> SnapshotSummary | None:
    return SnapshotSummary.of(_object_of(values))


def _counts_of(values: Any) -> dict[str, int]:
    if not all(type(each) is int for each in _object_of(values).values()):
        raise TypeError("not a count")
    return cast("dict[str, int]", values)


_READERS: dict[Any, Callable[[Any], Any]] = {
    AttemptOwner: _owner_of,
    CheckpointProperties: _properties_of,
    SnapshotSummary: _summary_of,
    dict[str, Any]: _object_of,
    dict[str, int]: _counts_of,
}
"""Functions that read what many rows have."""
