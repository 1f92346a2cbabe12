"""
Tables ``statecheck_*``, derived from the records that are their rows.

A table has a column for each field of its records, with the name of the field and a type and nullability that follow
from its annotation. The tables have a separate ``MetaData`` and no foreign keys to tables of Airflow. Such a key would
block ``airflow db reset``, and would delete the checkpoints of a Dag run together with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from types import NoneType
from typing import Any, Self, cast, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    Column,
    ColumnElement,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    text,
)
from sqlalchemy.types import TypeEngine

from airflow_provider_statecheck.checkpoint.codec import of_fields
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptRecord,
    CheckpointRecord,
    CheckpointRequest,
    JobRecord,
    OperatorRecord,
    StatisticsRecord,
    TaskCoordinates,
)
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.metadata.record_rows import (
    EnumText,
    Flag,
    JsonOf,
    RecordTable,
    UtcDateTime,
    json_reader,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """The task instance that a token was issued to."""

    dag_id: str
    run_id: str
    task_id: str
    map_index: int = -1
    ti_id: str = field(default="", compare=False)
    """Id of the try in Airflow; empty for a token of an earlier version, or of a test run."""
    login: str = field(default="", compare=False, repr=False)
    """The user who obtained the token, in a form that only the api-server reads; empty if the task did."""

    @classmethod
    def of(cls, task: TaskCoordinates) -> Self:
        """Return the task instance that has an attempt."""
        return cls(**task._asdict())

    @property
    def coordinates(self) -> TaskCoordinates:
        """The task instance."""
        return TaskCoordinates(self.dag_id, self.run_id, self.task_id, self.map_index)

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Names and values, as in the owner of an attempt and in the row of a token."""
        return self.coordinates.pairs


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCaller:
    """The user that a read token was issued to."""

    user: str
    login: str = field(default="", compare=False, repr=False)
    """The user as in :attr:`Caller.login`; empty for a token of an earlier version."""

    @property
    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Name and value, as in the row of a token."""
        return (("user", self.user),)


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenRecord:
    """A token."""

    token_hash: str
    caller: Caller | UserCaller
    created_at: datetime
    expires_at: datetime
    job_id: JobId | None = None
    """The only job that the token can access, or ``None`` before the registration."""
    operator_id: OperatorId | None = None
    epoch: int | None = None
    attempt_key: str | None = None
    """The key of the registration that the token is reserved for."""
    is_read_only: bool = False

    @property
    def attempt(self) -> AttemptRef | None:
        """The attempt that the token is bound to."""
        if self.job_id is None or self.operator_id is None or self.epoch is None:
            return None
        return AttemptRef(job_id=self.job_id, operator_id=self.operator_id, epoch=self.epoch)

    @property
    def task(self) -> Caller:
        """
        The task instance that the token was issued to.

        :raises AccessDeniedError: if it was issued to a user.
        """
        if isinstance(self.caller, Caller):
            return self.caller
        raise AccessDeniedError(
            "Expected the token of a task, found one of a user, which only reads one job; call this from a task."
        )


def caller_of(values: dict[str, Any]) -> Caller | UserCaller:
    """Return the caller whose fields the row of a token has."""
    # Their fields tell them apart; ``decode`` would need a tag.
    return cast("Caller | UserCaller", of_fields(UserCaller if "user" in values else Caller, values))


VERSION_TABLE = "alembic_version_statecheck"
"""Table with the revision of the others."""

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
    if kind in _PLAIN:
        return _PLAIN[kind]()
    return JsonOf(caller_of if kind == Caller | UserCaller else json_reader(kind))


_PLAIN: dict[Any, type[TypeEngine[Any]]] = {bool: Flag, float: Float, datetime: UtcDateTime}


def _text_of(name: str) -> TypeEngine[str]:
    if name not in TEXT_LENGTHS:
        return Text()
    plain = String(TEXT_LENGTHS[name])
    # Names are sorted by code points, as on SQLite, and pages of the list of jobs do not depend on the language of a
    # database.
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
        _kinds(CheckpointRequest),
        _OF_REQUEST,
        Index(None, *_OF_OPERATOR, "status"),
        Index(None, "job_id", "requested_at"),
    ),
    CheckpointRequest,
)
ACTIONS = RecordTable(
    _table("action", _kinds(ActionRecord), _OF_REQUEST, Index(None, "job_id", "requested_at")), ActionRecord
)
# A pointer is too long for a key; its hash is the key.
CLAIMS = RecordTable(_table("claim", {"pointer_sha256": str} | _kinds(ClaimRecord), ("pointer_sha256",)), ClaimRecord)
STATISTICS = RecordTable(_table("statistics", _kinds(StatisticsRecord), _OF_OPERATOR), StatisticsRecord)
TOKENS = RecordTable(_table("token", _kinds(TokenRecord), ("token_hash",), Index(None, "expires_at")), TokenRecord)


def is_of_job(rows: Any) -> ColumnElement[bool]:
    """Return the condition that rows are of the whole job, as :attr:`OfOperator.is_of_job`."""
    is_of: ColumnElement[bool] = rows.operator_id == ALIGNED_OPERATOR_ID
    return is_of
