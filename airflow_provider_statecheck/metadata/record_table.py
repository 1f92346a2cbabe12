"""Access to tables by primary key, and conversion of rows to records."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import BindParameter, Column, ColumnElement, Select, Table, bindparam, insert, or_, select, update
from sqlalchemy.engine import Connection, Row

from airflow_provider_statecheck.checkpoint.job_list import JobFigures, ListedStatus
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    ClaimRecord,
    SavepointFormat,
)
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    JobRecord,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
    StatisticsRecord,
)
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.metadata import models
from airflow_provider_statecheck.metadata.models import Base, UtcDateTime

Record = TypeVar("Record")

_KEY = "key_"
"""Prefix of the parameters of conditions, which separates them from the values to write."""


def given(column: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that a column equals its parameter from :func:`keys`."""
    return column == bindparam(_KEY + column.name, type_=column.type)


def keys(**values: object) -> dict[str, object]:
    """Return the parameters for conditions of :func:`given`, by column name."""
    return {_KEY + name: value for name, value in values.items()}


def table_of(model: type[Base]) -> Table:
    """Return the table of a model."""
    return cast("Table", model.__table__)


class KeyedTable:
    """
    A table whose rows are read and written by primary key.

    :param model: Model of the table.
    :param write_once: Columns that an update does not change.
    """

    def __init__(self, model: type[Base], write_once: Sequence[str] = ()) -> None:
        self.table = table_of(model)
        self.key_names = tuple(column.name for column in self.table.primary_key)
        self._write_once = frozenset((*self.key_names, *write_once))
        conditions = [given(column) for column in self.table.primary_key]
        self._find = select(*self.table.c).where(*conditions)
        self._insert = insert(self.table)
        self._update = update(self.table).where(*conditions)

    def find(self, connection: Connection, *key: object) -> Row[Any] | None:
        """Return the row of a key, or ``None``."""
        return connection.execute(self._find, self._parameters(key)).one_or_none()

    def insert(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Insert a row."""
        connection.execute(self._insert, dict(values))

    def update(self, connection: Connection, values: Mapping[str, Any]) -> bool:
        """Update the given columns of the row of a key; return ``False`` if there is no such row."""
        written = {name: value for name, value in values.items() if name not in self._write_once}
        key = self._parameters([values[name] for name in self.key_names])
        return connection.execute(self._update, written | key).rowcount == 1

    def save(self, connection: Connection, values: Mapping[str, Any]) -> None:
        """Insert or replace a row; the caller must be the only writer of the row."""
        if not self.update(connection, values):
            self.insert(connection, values)

    def _parameters(self, key: Sequence[object]) -> dict[str, object]:
        return keys(**dict(zip(self.key_names, key, strict=True)))


class RecordTable(KeyedTable, Generic[Record]):
    """
    A table whose columns are the fields of a record class.

    :param model: Model of the table.
    :param record: Record class.
    :param readers: Functions that convert the value of a column to its field, by name of the column.
    """

    def __init__(self, model: type[Base], record: type[Record], **readers: Callable[[Any], Any]) -> None:
        super().__init__(model)
        self._record = record
        self.names = tuple(field.name for field in fields(cast("Any", record)))
        self._readers = tuple(readers.items())
        self.columns = tuple(self.table.c[name] for name in self.names)
        self._find = select(*self.columns).where(*(given(column) for column in self.table.primary_key))

    def read(self, values: Sequence[Any]) -> Record:
        """Return the values of :attr:`columns` as a record."""
        read = dict(zip(self.names, values, strict=True))
        for name, reader in self._readers:
            read[name] = reader(read[name])
        return self._record(**read)

    def key_of(self, record: Record) -> tuple[object, ...]:
        """Return the primary key of a record."""
        return tuple(getattr(record, name) for name in self.key_names)

    def values_of(self, record: Record) -> dict[str, Any]:
        """Return the values of the columns for a record."""
        return {name: _column(getattr(record, name)) for name in self.names}

    def with_a_time_after(self, time: BindParameter[Any]) -> Select[Any]:
        """Return the query for the rows of a job with any time later than the given one."""
        times = [column > time for column in self.columns if isinstance(column.type, UtcDateTime)]
        return select(*self.columns).where(given(self.table.c.job_id), or_(*times))

    def change(self, connection: Connection, known: Record, record: Record) -> None:
        """Update the columns in which a record differs from its row."""
        changes = self.changes(known, record)
        if changes:
            self.update(connection, changes | dict(zip(self.key_names, self.key_of(record), strict=True)))

    def changes(self, known: Record, record: Record) -> dict[str, Any]:
        """Return the columns in which a record differs from a known record with the same key."""
        both = ((name, getattr(known, name), getattr(record, name)) for name in self.names)
        return {name: _column(new) for name, old, new in both if new != old}


def _column(value: Any) -> Any:
    if isinstance(value, StrEnum):
        return value.value
    if isinstance(value, SnapshotSummary):
        return value.to_json()
    if is_dataclass(value):
        # A nested record is stored as one JSON column; its enums are already texts.
        return {field.name: getattr(value, field.name) for field in fields(value)}
    return value


def attempt_record(row: models.Attempt) -> AttemptRecord:
    """Return the row of an attempt as a record."""
    return ATTEMPTS.read([getattr(row, name) for name in ATTEMPTS.names])


def attempt_owner(values: dict[str, Any]) -> AttemptOwner:
    """Return the column of an owner as a record."""
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs})


def _properties(values: dict[str, Any]) -> CheckpointProperties:
    written = values["savepoint_format"]
    typed = {
        "snapshot_type": CheckpointType(values["snapshot_type"]),
        "savepoint_format": None if written is None else SavepointFormat(written),
    }
    return CheckpointProperties(**values | typed)


def _listed_status(value: str | None) -> ListedStatus | None:
    return None if value is None else ListedStatus(value)


JOBS = RecordTable(models.Job, JobRecord)
JOB_FIGURES = RecordTable(models.Job, JobFigures, status=_listed_status)
OPERATORS = RecordTable(models.Operator, OperatorRecord, damaged_snapshots=tuple)
ATTEMPTS = RecordTable(
    models.Attempt,
    AttemptRecord,
    status=AttemptStatus,
    owner=attempt_owner,
    retention=CheckpointRetentionPolicy,
    restored_summary=SnapshotSummary.of,
)
CHECKPOINTS = RecordTable(
    models.Checkpoint, CheckpointRecord, status=CheckpointStatus, properties=_properties, summary=SnapshotSummary.of
)
ACKNOWLEDGEMENTS = RecordTable(models.Acknowledgement, AcknowledgementRecord)
REQUESTS = RecordTable(models.Request, SnapshotRequest, status=RequestStatus, properties=_properties)
ACTIONS = RecordTable(models.Action, ActionRecord, action=JobAction, status=RequestStatus)
CLAIMS = RecordTable(models.Claim, ClaimRecord)
STATISTICS = RecordTable(models.Statistics, StatisticsRecord)
