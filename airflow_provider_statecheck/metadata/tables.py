"""
Tables ``statecheck_*``, derived from the records that are their rows.

A table has a column for each field of its records, with the name of the field and a type and nullability that follow from
its annotation. The tables have a separate ``MetaData`` and no foreign keys to tables of Airflow. Such a key would block
``airflow db reset``, and would delete the checkpoints of a Dag run together with the run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from enum import StrEnum
from functools import partial
from itertools import accumulate
from types import NoneType
from typing import TYPE_CHECKING, Any, Generic, Self, TypeVar, cast, get_args, get_origin, get_type_hints

from sqlalchemy import (
    JSON,
    BigInteger,
    BindParameter,
    Boolean,
    Column,
    ColumnElement,
    DateTime,
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
from sqlalchemy.types import TypeDecorator, TypeEngine

from airflow_provider_statecheck.checkpoint.codec import decode, encode
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_list import JobFigures
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointType,
    ClaimRecord,
    SavepointFormat,
)
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
    TaskState,
)
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.overriding import override

if TYPE_CHECKING:
    from sqlalchemy.engine import Dialect


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


class UtcDateTime(TypeDecorator[datetime]):
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
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class EnumText(TypeDecorator[Any]):
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


class JsonOf(TypeDecorator[Any]):
    """A value that is stored as JSON."""

    impl = JSON(none_as_null=True)
    cache_ok = True

    def __init__(self, kind: Any) -> None:
        super().__init__()
        self.kind = kind
        self._read = _READERS.get(kind) or partial(decode, kind)

    @override
    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return encode(value)

    @override
    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        return None if value is None else self._read(value)


def _owner_of(values: dict[str, Any]) -> AttemptOwner:
    pairs = tuple((str(key), str(value)) for key, value in values["airflow"])
    return AttemptOwner(**values | {"airflow": pairs, "task_state": TaskState(values.get("task_state", ""))})


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
