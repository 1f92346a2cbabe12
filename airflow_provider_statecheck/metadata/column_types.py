"""Types of columns for the fields of records: UTC times, enums, and records as JSON."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from datetime import UTC, datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, DateTime, String
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, InPlaceRestore
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect


class UtcDateTime(TypeDecorator[datetime]):
    """An aware UTC time. SQLite stores no time zone, so it is added on reading."""

    impl = DateTime(timezone=True)
    cache_ok = True

    @override
    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware time to UTC."""
        return None if value is None else value.astimezone(UTC)

    @override
    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Return an aware UTC time."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class EnumText(TypeDecorator[Any]):
    """
    A member of an enum, stored as its text.

    :param members: The enum.
    :param length: Maximum length of the texts.
    """

    impl = String
    cache_ok = True

    def __init__(self, members: type[StrEnum], length: int) -> None:
        super().__init__(length)
        self.members = members

    @override
    def process_bind_param(self, value: StrEnum | None, dialect: Dialect) -> str | None:
        """Return the text of a member."""
        return None if value is None else value.value

    @override
    def process_result_value(self, value: str | None, dialect: Dialect) -> StrEnum | None:
        """Return the member with a text."""
        return None if value is None else self.members(value)


class JsonOf(TypeDecorator[Any]):
    """
    A value that is stored as JSON.

    :param read: Function that converts the JSON to the value.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, read: Callable[[Any], Any]) -> None:
        super().__init__()
        self.read = read

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the JSON of a value."""
        if isinstance(value, SnapshotSummary):
            return value.to_json()
        if isinstance(value, InPlaceRestore):
            return encode(value)
        if isinstance(value, AttemptOwner | CheckpointProperties):
            # Their enums are texts, and their tuples are lists in JSON.
            return {field.name: getattr(value, field.name) for field in fields(value)}
        return value

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of the JSON."""
        return None if value is None else self.read(value)


def owner_of(values: dict[str, Any]) -> AttemptOwner:
    """Return the owner of an attempt in the JSON of its row."""
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs})


def properties_of(values: dict[str, Any]) -> CheckpointProperties:
    """Return the properties of a snapshot in the JSON of its row."""
    written = values["savepoint_format"]
    typed = {
        "snapshot_type": CheckpointType(values["snapshot_type"]),
        "savepoint_format": None if written is None else SavepointFormat(written),
    }
    return CheckpointProperties(**values | typed)


def restore_of(values: dict[str, Any]) -> InPlaceRestore:
    """Return the restore in place in the JSON of its row."""
    return decode(InPlaceRestore, values)
