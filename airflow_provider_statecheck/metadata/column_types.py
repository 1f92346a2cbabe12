"""Types of columns for the fields of records: UTC times, enums, and records as JSON."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import JSON, DateTime, String
from sqlalchemy.types import TypeDecorator
from typing_extensions import override

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.metadata.token_records import Caller, UserCaller

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

    :param kind: Type of the value.
    """

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._read = _READERS.get(kind) or partial(decode, kind)

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        """Return the JSON of a value."""
        return encode(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        """Return the value of the JSON."""
        return None if value is None else self._read(value)


def _owner_of(values: dict[str, Any]) -> AttemptOwner:
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs})


def _properties_of(values: dict[str, Any]) -> CheckpointProperties:
    written = values["savepoint_format"]
    typed = {
        "snapshot_type": CheckpointType(values["snapshot_type"]),
        "savepoint_format": None if written is None else SavepointFormat(written),
    }
    return CheckpointProperties(**values | typed)


def _caller_of(values: dict[str, Any]) -> Caller | UserCaller:
    return UserCaller(**values) if "user" in values else Caller(**values)


_READERS: dict[Any, Any] = {
    AttemptOwner: _owner_of,
    CheckpointProperties: _properties_of,
    SnapshotSummary: SnapshotSummary.of,
    Caller | UserCaller: _caller_of,
}
"""Functions that read what many rows have, in a fraction of the time of ``decode``, and what it cannot tell apart."""
