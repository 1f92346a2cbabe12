"""
Models of the tables ``statecheck_*`` of the coordinator.

They have a separate ``MetaData`` and no foreign keys to tables of Airflow. Such a key would block ``airflow db reset``,
and would delete the checkpoints of a Dag run together with the run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from airflow_provider_statecheck.checkpoint.job_list import ListedStatus
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointRetentionPolicy
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointStatus,
    InPlaceRestore,
    JobAction,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.metadata.column_types import (
    EnumText,
    JsonOf,
    UtcDateTime,
    owner_of,
    properties_of,
    restore_of,
)

_HEX = 32

NAMING_CONVENTION = {
    "ix": "idx_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "pk": "pk_%(table_name)s",
}


class Base(DeclarativeBase):
    """Declarative base of the tables of this package."""

    metadata = MetaData(naming_convention=NAMING_CONVENTION)


# Names are sorted by code points, as on SQLite, and pages of the list of jobs do not depend on the language of a database.
_Name = String(500).with_variant(String(500, collation="C"), "postgresql")


class Job(Base):
    """
    A job. Each transition first updates the version of its row, which serialises the writers of the job.

    The last columns are figures for the list of jobs, which transitions keep up to date. They have no indexes, so that
    PostgreSQL updates them in place.
    """

    __tablename__ = "statecheck_job"

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    name: Mapped[str] = mapped_column(_Name, nullable=False)
    version: Mapped[int] = mapped_column(BigInteger, nullable=False)
    next_checkpoint_id: Mapped[int] = mapped_column(BigInteger, nullable=False)
    seen_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    status: Mapped[ListedStatus | None] = mapped_column(EnumText(ListedStatus, 16))
    checkpoint_id: Mapped[int | None] = mapped_column(BigInteger)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    full_size_bytes: Mapped[int | None] = mapped_column(BigInteger)
    failed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failure: Mapped[str | None] = mapped_column(Text)


class JobDag(Base):
    """A Dag that has attempts of an operator of a job."""

    __tablename__ = "statecheck_job_dag"
    __table_args__ = (Index(None, "dag_id", "job_id"),)

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    operator_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    dag_id: Mapped[str] = mapped_column(String(250), primary_key=True)


class Operator(Base):
    """A stateful step of a job, with its current epoch."""

    __tablename__ = "statecheck_operator"

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    operator_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    uid: Mapped[str] = mapped_column(String(500), nullable=False)
    epoch: Mapped[int] = mapped_column(Integer, nullable=False)
    generation: Mapped[int] = mapped_column(Integer, nullable=False)
    first_run: Mapped[str] = mapped_column(Text, nullable=False)
    damaged_snapshots: Mapped[tuple[str, ...]] = mapped_column(JsonOf(tuple), nullable=False)
    next_restore: Mapped[int | None] = mapped_column(BigInteger)
    pinned_checkpoint: Mapped[int | None] = mapped_column(BigInteger)
    in_place_restore: Mapped[str | None] = mapped_column(String(_HEX))


class Attempt(Base):
    """One try of an operator."""

    __tablename__ = "statecheck_attempt"

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    operator_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    epoch: Mapped[int] = mapped_column(Integer, primary_key=True, autoincrement=False)
    attempt_key: Mapped[str] = mapped_column(String(_HEX), nullable=False, unique=True)
    generation: Mapped[int] = mapped_column(Integer, nullable=False)
    status: Mapped[AttemptStatus] = mapped_column(EnumText(AttemptStatus, 16), nullable=False)
    owner: Mapped[AttemptOwner] = mapped_column(JsonOf(owner_of), nullable=False)
    start_reason: Mapped[str] = mapped_column(Text, nullable=False)
    restored_from: Mapped[int | None] = mapped_column(BigInteger)
    storage_base: Mapped[str] = mapped_column(Text, nullable=False)
    num_retained: Mapped[int] = mapped_column(Integer, nullable=False)
    retained_runs: Mapped[int] = mapped_column(Integer, nullable=False)
    checkpoint_timeout_seconds: Mapped[float] = mapped_column(Float, nullable=False)
    registered_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    retention: Mapped[CheckpointRetentionPolicy] = mapped_column(
        EnumText(CheckpointRetentionPolicy, 32), nullable=False
    )
    is_restore_chosen: Mapped[bool] = mapped_column(Boolean, nullable=False)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    message: Mapped[str] = mapped_column(Text, nullable=False)
    restored_summary: Mapped[SnapshotSummary | None] = mapped_column(JsonOf(SnapshotSummary.of))


class Checkpoint(Base):
    """A checkpoint of an operator. Its state is on storage, not in the database."""

    __tablename__ = "statecheck_checkpoint"
    __table_args__ = (
        Index(None, "job_id", "operator_id", "discarded_at"),
        # PostgreSQL would truncate the name of the naming convention.
        Index("idx_statecheck_checkpoint_completed", "job_id", "operator_id", "generation", "completed_at"),
        # This partial index has few entries even with a long history, so every planner prefers it.
        Index(
            "idx_statecheck_checkpoint_undiscarded",
            "job_id",
            "operator_id",
            postgresql_where=text("discarded_at IS NULL"),
            sqlite_where=text("discarded_at IS NULL"),
        ),
    )

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    operator_id: Mapped[str] = mapped_column(String(_HEX), nullable=False)
    epoch: Mapped[int] = mapped_column(Integer, nullable=False)
    generation: Mapped[int] = mapped_column(Integer, nullable=False)
    status: Mapped[CheckpointStatus] = mapped_column(EnumText(CheckpointStatus, 16), nullable=False)
    request_key: Mapped[str] = mapped_column(String(_HEX), nullable=False, unique=True)
    location: Mapped[str] = mapped_column(Text, nullable=False)
    run_key: Mapped[str] = mapped_column(Text, nullable=False)
    triggered_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    properties: Mapped[CheckpointProperties] = mapped_column(JsonOf(properties_of), nullable=False)
    is_periodic: Mapped[bool] = mapped_column(Boolean, nullable=False)
    finalizer: Mapped[str | None] = mapped_column(String(_HEX))
    lease_until: Mapped[datetime | None] = mapped_column(UtcDateTime)
    completed_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    discarded_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    metadata_uri: Mapped[str | None] = mapped_column(Text)
    metadata_size: Mapped[int] = mapped_column(BigInteger, nullable=False)
    metadata_sha256: Mapped[str] = mapped_column(String(64), nullable=False)
    state_size_bytes: Mapped[int] = mapped_column(BigInteger, nullable=False)
    full_size_bytes: Mapped[int] = mapped_column(BigInteger, nullable=False)
    counts: Mapped[dict[str, int]] = mapped_column(JSON, nullable=False)
    summary: Mapped[SnapshotSummary | None] = mapped_column(JsonOf(SnapshotSummary.of))
    failure_reason: Mapped[str | None] = mapped_column(String(64))
    failure_message: Mapped[str] = mapped_column(Text, nullable=False)
    unusable_reason: Mapped[str | None] = mapped_column(Text)
    has_open_commit: Mapped[bool] = mapped_column(Boolean, nullable=False)


class Acknowledgement(Base):
    """The acknowledgement of one operator in an aligned checkpoint of several operators."""

    __tablename__ = "statecheck_acknowledgement"

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    checkpoint_id: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    operator_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    attempt_id: Mapped[str] = mapped_column(String(600), nullable=False)
    is_finished: Mapped[bool] = mapped_column(Boolean, nullable=False)
    manifest_uri: Mapped[str | None] = mapped_column(Text)
    manifest_size: Mapped[int] = mapped_column(BigInteger, nullable=False)
    manifest_sha256: Mapped[str] = mapped_column(String(64), nullable=False)
    state_size_bytes: Mapped[int] = mapped_column(BigInteger, nullable=False)
    full_size_bytes: Mapped[int] = mapped_column(BigInteger, nullable=False)
    metrics: Mapped[dict[str, int]] = mapped_column(JSON, nullable=False)
    acknowledged_at: Mapped[datetime | None] = mapped_column(UtcDateTime)


class Request(Base):
    """A request for a checkpoint or savepoint."""

    __tablename__ = "statecheck_request"
    __table_args__ = (Index(None, "job_id", "operator_id", "status"), Index(None, "job_id", "requested_at"))

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    request_key: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    operator_id: Mapped[str] = mapped_column(String(_HEX), nullable=False)
    properties: Mapped[CheckpointProperties] = mapped_column(JsonOf(properties_of), nullable=False)
    target: Mapped[str | None] = mapped_column(Text)
    is_periodic: Mapped[bool] = mapped_column(Boolean, nullable=False)
    requested_by: Mapped[str] = mapped_column(Text, nullable=False)
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    status: Mapped[RequestStatus] = mapped_column(EnumText(RequestStatus, 16), nullable=False)
    checkpoint_id: Mapped[int | None] = mapped_column(BigInteger)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    failure_reason: Mapped[str | None] = mapped_column(String(64))
    failure_message: Mapped[str] = mapped_column(Text, nullable=False)


class Action(Base):
    """An action on the state of a job that a user requested on its page."""

    __tablename__ = "statecheck_action"
    __table_args__ = (Index(None, "job_id", "requested_at"),)

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    request_key: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    action: Mapped[JobAction] = mapped_column(EnumText(JobAction, 16), nullable=False)
    operator_id: Mapped[str | None] = mapped_column(String(_HEX))
    checkpoint_id: Mapped[int | None] = mapped_column(BigInteger)
    run_key: Mapped[str] = mapped_column(Text, nullable=False)
    restore: Mapped[InPlaceRestore | None] = mapped_column(JsonOf(restore_of))
    requested_by: Mapped[str] = mapped_column(Text, nullable=False)
    requested_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    status: Mapped[RequestStatus] = mapped_column(EnumText(RequestStatus, 16), nullable=False)
    ended_at: Mapped[datetime | None] = mapped_column(UtcDateTime)
    message: Mapped[str] = mapped_column(Text, nullable=False)


class Claim(Base):
    """A claimed snapshot and its new owner. The key is the hash of the pointer, which is too long for a key."""

    __tablename__ = "statecheck_claim"

    pointer_sha256: Mapped[str] = mapped_column(String(64), primary_key=True)
    pointer: Mapped[str] = mapped_column(Text, nullable=False)
    job_id: Mapped[str] = mapped_column(String(_HEX), nullable=False)
    operator_id: Mapped[str] = mapped_column(String(_HEX), nullable=False)
    claimed_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)


class Statistics(Base):
    """Checkpoint statistics of an operator, which outlive the rows of its checkpoints."""

    __tablename__ = "statecheck_statistics"

    job_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    operator_id: Mapped[str] = mapped_column(String(_HEX), primary_key=True)
    content: Mapped[dict[str, Any]] = mapped_column(JSON, nullable=False)


class Token(Base):
    """A token of the API, stored as a hash."""

    __tablename__ = "statecheck_token"

    token_hash: Mapped[str] = mapped_column(String(64), primary_key=True)
    caller: Mapped[dict[str, Any]] = mapped_column(JSON, nullable=False)
    job_id: Mapped[str | None] = mapped_column(String(_HEX))
    operator_id: Mapped[str | None] = mapped_column(String(_HEX))
    epoch: Mapped[int | None] = mapped_column(Integer)
    attempt_key: Mapped[str | None] = mapped_column(String(_HEX))
    is_read_only: Mapped[bool] = mapped_column(Boolean, nullable=False)
    created_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False)
    expires_at: Mapped[datetime] = mapped_column(UtcDateTime, nullable=False, index=True)
