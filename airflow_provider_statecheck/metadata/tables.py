"""
Tables ``statecheck_*`` of the coordinator, derived from the records that are their rows.

A table has a column for each field of its records, with the name of the field and a type and nullability that follow from
its annotation. They have a separate ``MetaData`` and no foreign keys to tables of Airflow. Such a key would block
``airflow db reset``, and would delete the checkpoints of a Dag run together with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from types import NoneType
from typing import Any, Generic, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    Float,
    Index,
    Integer,
    MetaData,
    Select,
    String,
    Table,
    Text,
    bindparam,
    or_,
    select,
    text,
)
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
from airflow_provider_statecheck.metadata.column_types import EnumText, JsonOf, UtcDateTime
from airflow_provider_statecheck.metadata.token_records import TokenRecord

Record = TypeVar("Record")
Key = tuple[object, ...]

METADATA = MetaData(
    naming_convention={
        "ix": "idx_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

TEXT_LENGTHS = {
    **dict.fromkeys(
        ("job_id", "operator_id", "attempt_key", "request_key", "finalizer", "failed_by", "in_place_restore"), 32
    ),
    **dict.fromkeys(("metadata_sha256", "manifest_sha256", "pointer_sha256", "token_hash", "failure_reason"), 64),
    "name": 500,
    "uid": 500,
    "attempt_id": 600,
    "dag_id": 250,
    "retention": 32,
    "status": 16,
    "action": 16,
}
"""Maximum lengths of texts, by column; others have none."""
SMALL_NUMBERS = {"epoch", "generation", "num_retained", "retained_runs"}
"""Columns with whole numbers of 32 bits; others have 64 bits."""

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


class RecordTable(Generic[Record]):
    """
    A table with a column of the same name, and with the same values, for each field of a record class.

    :param table: The table, which may have other columns too.
    :param record: Record class.
    :param guards: Columns that an update expects as they were read, besides the primary key.
    """

    def __init__(self, table: Table, record: type[Record], guards: Sequence[str] = ()) -> None:
        self.table = table
        self.c = table.c
        self._record = record
        self.names = tuple(field.name for field in fields(cast("Any", record)))
        self.columns = tuple(table.c[name] for name in self.names)
        self.key_names = tuple(column.name for column in table.primary_key)
        self.condition_names = (*self.key_names, *guards)
        self.by_key = select(*self.columns).where(*(given(column) for column in table.primary_key))

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
        return select(*self.columns).where(given(self.c.job_id), or_(*times))


def split(row: Sequence[Any], *tables: RecordTable[Any]) -> list[Sequence[Any]]:
    """Return the values of each of several joined tables in a row; those of a table without a row are ``None``."""
    ends = list(accumulate(len(table.columns) for table in tables))
    return [row[start:end] for start, end in zip([0, *ends], ends, strict=False)]


def _table(name: str, kinds: Mapping[str, Any], key: Sequence[str], *indexes: Index, unique: str = "") -> Table:
    """
    Return a table.

    :param kinds: Types of the values, by column.
    :param key: Columns of the primary key.
    :param unique: Column whose values occur once.
    """
    columns = (_column(name, kind, is_key=name in key, is_unique=name == unique) for name, kind in kinds.items())
    return Table(f"statecheck_{name}", METADATA, *columns, *indexes)


def _column(name: str, kind: Any, *, is_key: bool, is_unique: bool) -> Column[Any]:
    choices = get_args(kind)
    is_optional = NoneType in choices
    type_ = _type_of(name, choices[0] if is_optional else kind)
    return Column(name, type_, primary_key=is_key, autoincrement=False, nullable=is_optional, unique=is_unique or None)


def _type_of(name: str, kind: Any) -> TypeEngine[Any]:
    kind = getattr(kind, "__supertype__", kind)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        return EnumText(kind, TEXT_LENGTHS[name])
    if kind is str:
        return _text_of(name)
    if kind is int:
        return Integer() if name in SMALL_NUMBERS else BigInteger()
    return _PLAIN[kind]() if kind in _PLAIN else JSON() if get_origin(kind) is dict else JsonOf(kind)


_PLAIN: dict[Any, type[TypeEngine[Any]]] = {bool: Boolean, float: Float, datetime: UtcDateTime}


def _text_of(name: str) -> TypeEngine[str]:
    if name not in TEXT_LENGTHS:
        return Text()
    plain = String(TEXT_LENGTHS[name])
    # Names are sorted by code points, as on SQLite, and pages of the list of jobs do not depend on the language of a database.
    return plain.with_variant(String(plain.length, collation="C"), "postgresql") if name == "name" else plain


_kinds = get_type_hints
_OF_OPERATOR = ("job_id", "operator_id")
_OF_REQUEST = ("job_id", "request_key")

# The figures have no indexes, so that PostgreSQL updates them in place.
_job = _table("job", _kinds(JobRecord) | _kinds(JobFigures), ("job_id",))
JOBS = RecordTable(_job, JobRecord)
JOB_FIGURES = RecordTable(_job, JobFigures)
"""Figures for the list of jobs, which transitions keep up to date in the rows of the jobs."""
_dag_key = (*_OF_OPERATOR, "dag_id")
JOB_DAGS = _table("job_dag", dict.fromkeys(_dag_key, str), _dag_key, Index(None, "dag_id", "job_id"))
"""Dags that have attempts of an operator of a job."""
OPERATORS = RecordTable(_table("operator", _kinds(OperatorRecord), _OF_OPERATOR), OperatorRecord)
ATTEMPTS = RecordTable(
    _table("attempt", _kinds(AttemptRecord), (*_OF_OPERATOR, "epoch"), unique="attempt_key"), AttemptRecord
)
_IS_UNDISCARDED = text("discarded_at IS NULL")
CHECKPOINTS = RecordTable(
    _table(
        "checkpoint",
        _kinds(CheckpointRecord),
        ("job_id", "checkpoint_id"),
        Index(None, *_OF_OPERATOR, "discarded_at"),
        # PostgreSQL would truncate the name of the naming convention.
        Index("idx_statecheck_checkpoint_completed", *_OF_OPERATOR, "generation", "completed_at"),
        # This partial index has few entries even with a long history, so every planner prefers it.
        Index(
            "idx_statecheck_checkpoint_undiscarded",
            *_OF_OPERATOR,
            postgresql_where=_IS_UNDISCARDED,
            sqlite_where=_IS_UNDISCARDED,
        ),
        unique="request_key",
    ),
    CheckpointRecord,
    guards=("epoch", "status"),
)
ACKNOWLEDGEMENTS = RecordTable(
    _table("acknowledgement", _kinds(AcknowledgementRecord), ("job_id", "checkpoint_id", "operator_id")),
    AcknowledgementRecord,
)
REQUESTS = RecordTable(
    _table(
        "request",
        _kinds(SnapshotRequest),
        _OF_REQUEST,
        Index(None, *_OF_OPERATOR, "status"),
        Index(None, "job_id", "requested_at"),
    ),
    SnapshotRequest,
)
ACTIONS = RecordTable(
    _table("action", _kinds(ActionRecord), _OF_REQUEST, Index(None, "job_id", "requested_at")), ActionRecord
)
# A pointer is too long for a key; its hash is the key.
CLAIMS = RecordTable(_table("claim", {"pointer_sha256": str} | _kinds(ClaimRecord), ("pointer_sha256",)), ClaimRecord)
STATISTICS = RecordTable(_table("statistics", _kinds(StatisticsRecord), _OF_OPERATOR), StatisticsRecord)
TOKENS = RecordTable(_table("token", _kinds(TokenRecord), ("token_hash",), Index(None, "expires_at")), TokenRecord)
