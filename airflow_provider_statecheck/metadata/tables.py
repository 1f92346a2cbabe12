"""
Tables ``statecheck_*``, derived from the records that are their rows.

A table has a column for each field of its records, with the name of the field and a type and nullability that follow from
its annotation. The tables have a separate ``MetaData`` and no foreign keys to tables of Airflow. Such a key would block
``airflow db reset``, and would delete the checkpoints of a Dag run together with the run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import datetime
from enum import StrEnum
from itertools import accumulate
from types import NoneType
from typing import Any, Generic, Self, TypeVar, cast, get_args, get_type_hints

from sqlalchemy import (
    BigInteger,
    BindParameter,
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

from airflow_provider_statecheck.checkpoint.codec import of_fields
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    JobRecord,
    OperatorRecord,
    SnapshotRequest,
    StatisticsRecord,
)
from airflow_provider_statecheck.exceptions import AccessDeniedError, CorruptRowError
from airflow_provider_statecheck.metadata.column_types import (
    EnumText,
    Flag,
    Form,
    JsonOf,
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

    @classmethod
    def of(cls, owner: AttemptOwner) -> Self:
        """Return the task instance that owns an attempt."""
        values = dict(owner.airflow)
        names = ("dag_id", "run_id", "task_id")
        return cls(**{name: values[name] for name in names}, map_index=int(values["map_index"]))

    @property
    def coordinates(self) -> tuple[tuple[str, str], ...]:
        """Return the task instance as pairs, as in the owner of an attempt."""
        return tuple((name, str(value)) for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class UserCaller:
    """The user that a read token was issued to."""

    user: str


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
        """Return the attempt that the token is bound to."""
        if self.job_id is None or self.operator_id is None or self.epoch is None:
            return None
        return AttemptRef(job_id=self.job_id, operator_id=self.operator_id, epoch=self.epoch)

    @property
    def task(self) -> Caller:
        """
        Return the task instance that the token was issued to.

        :raises AccessDeniedError: if it was issued to a user.
        """
        if isinstance(self.caller, Caller):
            return self.caller
        raise AccessDeniedError(
            "Expected the token of a task, found one of a user, which only reads one job; call this from a task."
        )


def _caller_of(values: dict[str, Any]) -> Caller | UserCaller:
    # Their fields tell them apart; ``decode`` would need a tag.
    return cast("Caller | UserCaller", of_fields(UserCaller if "user" in values else Caller, values))


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

    :param guards: Columns that an update expects as they were read, besides the primary key.
    """

    def __init__(self, table: Table, record: type[Record], guards: Sequence[str] = ()) -> None:
        self.table = table
        self.c = table.c
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
        """Return the error of the first value that cannot be read, by columns of the table; values of others are ignored."""
        return self._bad_row(values) if any(self.bad_columns(values)) else None

    def bad_columns(self, values: Mapping[str, Any]) -> Iterator[str]:
        """Return the columns whose values cannot be read."""
        return (name for name, form in self._forms.items() if name in values and not form.fits(values[name]))

    def _bad_row(self, values: Mapping[str, Any]) -> CorruptRowError:
        column = next(self.bad_columns(values))
        key = ", ".join(f"{name}={values[name]}" for name in (*self.key_names, "pointer") if name in values)
        return CorruptRowError(
            f"Expected {self._forms[column].description} in column {column} of table {self.table.name}, found a value that "
            f"cannot be read in the row with {key}; correct it, or restore the row from a backup of the database. Only the "
            f"job of the row stops.",
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
    if kind in _PLAIN:
        return _PLAIN[kind]()
    return JsonOf(_caller_of if kind == Caller | UserCaller else json_reader(kind))


_PLAIN: dict[Any, type[TypeEngine[Any]]] = {bool: Flag, float: Float, datetime: UtcDateTime}


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
