"""Tables whose rows are records: the columns that hold the fields of a record class."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, Generic, TypeVar, cast

from sqlalchemy import BindParameter, Column, ColumnElement, Select, Table, bindparam, or_, select
from sqlalchemy.types import TypeEngine

from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptRecord,
    CheckpointRecord,
    JobRecord,
    OperatorRecord,
    SnapshotRequest,
    StatisticsRecord,
)
from airflow_provider_statecheck.metadata import models
from airflow_provider_statecheck.metadata.column_types import UtcDateTime
from airflow_provider_statecheck.metadata.models import Base

Record = TypeVar("Record")
Key = tuple[object, ...]

_KEY = "key_"
"""Prefix of the parameters of conditions, which separates them from the values to write."""


def parameter(name: str, type_: TypeEngine[Any] | None = None) -> BindParameter[Any]:
    """Return a parameter from :func:`keys`."""
    return bindparam(_KEY + name, type_=type_)


def given(column: Column[Any]) -> ColumnElement[bool]:
    """Return the condition that a column equals its parameter from :func:`keys`."""
    return column == parameter(column.name, column.type)


def keys(**values: object) -> dict[str, object]:
    """Return the parameters of a statement by their names, which for conditions of :func:`given` are those of columns."""
    return {_KEY + name: each for name, each in values.items()}


def table_of(model: type[Base]) -> Table:
    """Return the table of a model."""
    return cast("Table", model.__table__)


class RecordTable(Generic[Record]):
    """
    A table with a column of the same name, and with the same values, for each field of a record class.

    :param model: Model of the table.
    :param record: Record class.
    :param guards: Columns that an update expects as they were read, besides the primary key.
    """

    def __init__(self, model: type[Base], record: type[Record], guards: Sequence[str] = ()) -> None:
        self.table = table_of(model)
        self._record = record
        self.names = tuple(field.name for field in fields(cast("Any", record)))
        self.columns = tuple(self.table.c[name] for name in self.names)
        self.key_names = tuple(column.name for column in self.table.primary_key)
        self.condition_names = (*self.key_names, *guards)
        self.by_key = select(*self.columns).where(*(given(column) for column in self.table.primary_key))

    def read(self, values: Sequence[Any]) -> Record:
        """Return the values of :attr:`columns` as a record."""
        return self._record(**dict(zip(self.names, values, strict=True)))

    def key_of(self, record: Record) -> Key:
        """Return the primary key of a record."""
        return tuple(getattr(record, name) for name in self.key_names)

    def values_of(self, record: Record) -> dict[str, Any]:
        """Return the values of the columns for a record."""
        return {name: getattr(record, name) for name in self.names}

    def changes(self, known: Record, record: Record) -> dict[str, Any]:
        """Return the columns in which a record differs from a known record with the same key."""
        both = ((name, getattr(known, name), getattr(record, name)) for name in self.names)
        return {name: new for name, old, new in both if new != old}

    def with_a_time_after(self, time: BindParameter[Any]) -> Select[Any]:
        """Return the query for the rows of a job with any time later than the given one."""
        times = [column > time for column in self.columns if isinstance(column.type, UtcDateTime)]
        return select(*self.columns).where(given(self.table.c.job_id), or_(*times))


def split(row: Sequence[Any], *tables: RecordTable[Any]) -> list[Sequence[Any]]:
    """Return the values of each of several joined tables in a row; those of a table without a row are ``None``."""
    ends = list(accumulate(len(table.columns) for table in tables))
    return [row[start:end] for start, end in zip([0, *ends], ends, strict=False)]


JOBS = RecordTable(models.Job, JobRecord)
JOB_FIGURES = RecordTable(models.Job, JobFigures)
OPERATORS = RecordTable(models.Operator, OperatorRecord)
ATTEMPTS = RecordTable(models.Attempt, AttemptRecord)
CHECKPOINTS = RecordTable(models.Checkpoint, CheckpointRecord, guards=("epoch", "status"))
ACKNOWLEDGEMENTS = RecordTable(models.Acknowledgement, AcknowledgementRecord)
REQUESTS = RecordTable(models.Request, SnapshotRequest)
ACTIONS = RecordTable(models.Action, ActionRecord)
CLAIMS = RecordTable(models.Claim, ClaimRecord)
STATISTICS = RecordTable(models.Statistics, StatisticsRecord)
