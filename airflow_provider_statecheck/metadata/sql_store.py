"""The rows of all jobs in a database: SQLite, PostgreSQL, and SQL that MySQL takes too."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime

from sqlalchemy import case, delete, exists, select, update
from sqlalchemy.engine import CursorResult, Engine
from sqlalchemy.exc import IntegrityError
from sqlalchemy.orm import Session

from airflow_provider_statecheck.checkpoint.acknowledgements import AcknowledgementRecord
from airflow_provider_statecheck.checkpoint.claims import ClaimRecord
from airflow_provider_statecheck.checkpoint.clock import Clock, SystemClock
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError
from airflow_provider_statecheck.metadata import mapping
from airflow_provider_statecheck.metadata.models import (
    Acknowledgement,
    Attempt,
    Base,
    Checkpoint,
    Claim,
    Job,
    Operator,
    Request,
    StateHandleLock,
    StateHandleRow,
    Statistics,
    Token,
)
from airflow_provider_statecheck.metadata.outcomes import committing, executing

_HAS_ATTEMPT = exists().where(Attempt.job_id == Job.job_id)
"""A job without any was removed, or its first registration never came to its end."""

_OPEN_REQUEST = tuple(status.value for status in RequestStatus if status.is_open)


class SqlJobTransaction:
    """One transition of one job, inside a session that already holds the job's row."""

    def __init__(self, session: Session, job: Job) -> None:
        self._session = session
        self._job = job

    @property
    def now(self) -> datetime:
        """Return the time of this transition."""
        return self._job.seen_at

    @property
    def session(self) -> Session:
        """Return the session, for rows that change together with the job's."""
        return self._session

    @property
    def job(self) -> JobRecord:
        """Return the job's row."""
        return mapping.job_record(self._job)

    def draw_checkpoint_id(self) -> int:
        """Return the next id of the job."""
        drawn = self._job.next_checkpoint_id
        self._job.next_checkpoint_id = drawn + 1
        return drawn

    def operator(self, operator_id: OperatorId) -> OperatorRecord | None:
        """Return an operator of the job."""
        row = self._session.get(Operator, (self._job.job_id, operator_id))
        return None if row is None else mapping.operator_record(row)

    def save_operator(self, record: OperatorRecord) -> None:
        """Insert or replace an operator."""
        self._merge(Operator, record)

    def attempt(self, operator_id: OperatorId, epoch: int) -> AttemptRecord | None:
        """Return an attempt by its epoch."""
        row = self._session.get(Attempt, (self._job.job_id, operator_id, epoch))
        return None if row is None else mapping.attempt_record(row)

    def attempt_by_key(self, attempt_key: str) -> AttemptRecord | None:
        """Return an attempt by the key its client made."""
        query = select(Attempt).where(Attempt.job_id == self._job.job_id, Attempt.attempt_key == attempt_key)
        row = self._session.scalars(query).one_or_none()
        return None if row is None else mapping.attempt_record(row)

    def save_attempt(self, record: AttemptRecord) -> None:
        """Insert or replace an attempt."""
        self._merge(Attempt, record)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of the job."""
        row = self._session.get(Checkpoint, (self._job.job_id, checkpoint_id))
        return None if row is None else mapping.checkpoint_record(row)

    def checkpoint_by_request(self, request_key: str) -> CheckpointRecord | None:
        """Return a checkpoint by the key its client made."""
        query = select(Checkpoint).where(Checkpoint.job_id == self._job.job_id, Checkpoint.request_key == request_key)
        row = self._session.scalars(query).one_or_none()
        return None if row is None else mapping.checkpoint_record(row)

    def open_checkpoints(self, operator_id: OperatorId) -> list[CheckpointRecord]:
        """Return the checkpoints of an operator that are pending, completed or await their discard."""
        query = (
            select(Checkpoint)
            .where(
                Checkpoint.job_id == self._job.job_id,
                Checkpoint.operator_id == operator_id,
                Checkpoint.discarded_at.is_(None),
            )
            .order_by(Checkpoint.checkpoint_id)
        )
        return [mapping.checkpoint_record(row) for row in self._session.scalars(query)]

    def has_completed(self, operator_id: OperatorId, generation: int) -> bool:
        """Tell whether a generation ever completed a checkpoint."""
        query = exists().where(
            Checkpoint.job_id == self._job.job_id,
            Checkpoint.operator_id == operator_id,
            Checkpoint.generation == generation,
            Checkpoint.completed_at.is_not(None),
        )
        return bool(self._session.scalar(select(query)))

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        """Insert a checkpoint."""
        self._session.add(Checkpoint(**mapping.columns_of(record)))
        self._session.flush()

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        """Replace a checkpoint if its status is still the expected one."""
        statement = (
            update(Checkpoint)
            .where(
                Checkpoint.job_id == record.job_id,
                Checkpoint.checkpoint_id == record.checkpoint_id,
                Checkpoint.epoch == record.epoch,
                Checkpoint.status == expected.value,
            )
            .values(**mapping.columns_of(record))
        )
        if _rows_changed(self._session, statement) != 1:
            raise CoordinatorError(
                f"Expected checkpoint {record.checkpoint_id} to be {expected.value} in epoch {record.epoch}, "
                f"but another writer changed it; load it again.",
                checkpoint_id=record.checkpoint_id,
            )

    def acknowledgements(self, checkpoint_id: int) -> list[AcknowledgementRecord]:
        """Return the parts that operators have in an aligned checkpoint."""
        query = (
            select(Acknowledgement)
            .where(Acknowledgement.job_id == self._job.job_id, Acknowledgement.checkpoint_id == checkpoint_id)
            .order_by(Acknowledgement.operator_id)
        )
        return [mapping.acknowledgement_record(row) for row in self._session.scalars(query)]

    def save_acknowledgement(self, record: AcknowledgementRecord) -> None:
        """Insert or replace the part of an operator."""
        self._merge(Acknowledgement, record)

    def request(self, request_key: str) -> SnapshotRequest | None:
        """Return a request by the key its client made."""
        row = self._session.get(Request, (self._job.job_id, request_key))
        return None if row is None else mapping.request_record(row)

    def open_requests(self, operator_id: OperatorId) -> list[SnapshotRequest]:
        """Return the requests to an operator that have not ended."""
        query = (
            select(Request)
            .where(
                Request.job_id == self._job.job_id,
                Request.operator_id == operator_id,
                Request.status.in_(_OPEN_REQUEST),
            )
            .order_by(Request.requested_at, Request.request_key)
        )
        return [mapping.request_record(row) for row in self._session.scalars(query)]

    def save_request(self, record: SnapshotRequest) -> None:
        """Insert or replace a request."""
        self._merge(Request, record)

    def remove_requests(self, request_keys: tuple[str, ...]) -> None:
        """Remove the rows of requests."""
        for key in request_keys:
            self._remove(Request, request_key=key)

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return who claimed a snapshot, of whatever job."""
        row = self._session.get(Claim, _digest(pointer))
        return None if row is None else mapping.claim_record(row)

    def save_claim(self, record: ClaimRecord) -> None:
        """Insert a claim."""
        self._session.add(Claim(pointer_sha256=_digest(record.pointer), **mapping.columns_of(record)))
        try:
            self._session.flush()
        except IntegrityError as error:
            raise CoordinatorError(
                f"The snapshot {record.pointer} was claimed by another job; restore without a claim."
            ) from error

    def statistics(self, operator_id: OperatorId) -> StatisticsRecord | None:
        """Return what is kept of an operator's checkpoints."""
        row = self._session.get(Statistics, (self._job.job_id, operator_id))
        return None if row is None else mapping.statistics_record(row)

    def save_statistics(self, record: StatisticsRecord) -> None:
        """Insert or replace what is kept of an operator's checkpoints."""
        self._merge(Statistics, record)

    def view(self) -> JobView:
        """Return all rows of the job as this transition left them so far."""
        return _view(self._session, self._job, self.now)

    def remove_checkpoints(self, checkpoint_ids: tuple[int, ...]) -> None:
        """Remove the rows of checkpoints."""
        for checkpoint_id in checkpoint_ids:
            for table in (Acknowledgement, Checkpoint):
                self._remove(table, checkpoint_id=checkpoint_id)

    def remove_attempts(self, attempts: tuple[AttemptRef, ...]) -> None:
        """Remove the rows of attempts and of the tokens that mean them."""
        for attempt in attempts:
            # A token without its attempt's row would no longer be known to be revoked.
            for table in (Token, Attempt):
                self._remove(table, operator_id=attempt.operator_id, epoch=attempt.epoch)

    def remove_job(self) -> None:
        """Remove all of the job but what counts and what it claimed."""
        for table in (
            Token,
            Acknowledgement,
            Request,
            Statistics,
            Checkpoint,
            Attempt,
            StateHandleLock,
            StateHandleRow,
        ):
            self._remove(table)

    def _merge(self, table: type[Base], record: object) -> None:
        self._session.merge(table(**mapping.columns_of(record)))
        self._session.flush()

    def _remove(self, table: type[Base], **keys: object) -> None:
        statement = delete(table).filter_by(job_id=self._job.job_id, **keys)
        self._session.execute(statement.execution_options(synchronize_session=False))


class SqlJobStore:
    """
    Rows in the tables ``statecheck_*``.

    :param engine: The database; its tables exist.
    :param clock: Where time comes from.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self._engine = engine
        self._clock = clock or SystemClock()

    @contextmanager
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[SqlJobTransaction]:
        """Begin a transition of a job with a write to its row, so that no other writer is between read and commit."""
        if create_as is not None:
            self._ensure_job(job_id, create_as)
        with Session(self._engine) as session:
            with executing():
                transaction = self._begin(session, job_id, create_as)
                yield transaction
                session.flush()
            with committing():
                session.commit()

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        with executing(), Session(self._engine) as session:
            rows = session.scalars(select(Job).where(_HAS_ATTEMPT).order_by(Job.seen_at.desc()))
            return tuple(mapping.job_record(row) for row in rows)

    def describe(self, job_id: JobId) -> JobView:
        """Return all rows of a job."""
        with executing(), Session(self._engine) as session:
            job = session.scalar(select(Job).where(Job.job_id == job_id, _HAS_ATTEMPT))
            if job is None:
                raise _no_such_job(job_id)
            return _view(session, job, self._clock.now())

    def _begin(self, session: Session, job_id: JobId, create_as: str | None) -> SqlJobTransaction:
        now = self._clock.now()
        seen_at = case((Job.seen_at > now, Job.seen_at), else_=now)
        meant = (Job.job_id == job_id,) if create_as is not None else (Job.job_id == job_id, _HAS_ATTEMPT)
        statement = (update(Job).where(*meant).values(version=Job.version + 1, seen_at=seen_at)).execution_options(
            synchronize_session=False
        )
        if _rows_changed(session, statement) != 1:
            raise _no_such_job(job_id)
        return SqlJobTransaction(session, session.get_one(Job, job_id))

    def _ensure_job(self, job_id: JobId, name: str) -> None:
        with executing(), Session(self._engine) as session:
            if session.get(Job, job_id) is not None:
                return
            now = self._clock.now()
            session.add(Job(job_id=job_id, name=name, version=0, next_checkpoint_id=1, seen_at=now, created_at=now))
            try:
                session.commit()
            except IntegrityError:
                # Another process created it in between; that row is as good as ours.
                session.rollback()


def _view(session: Session, job: Job, now: datetime) -> JobView:
    operators = session.scalars(select(Operator).where(Operator.job_id == job.job_id).order_by(Operator.uid))
    attempts = session.scalars(
        select(Attempt).where(Attempt.job_id == job.job_id).order_by(Attempt.operator_id, Attempt.epoch)
    )
    checkpoints = session.scalars(
        select(Checkpoint).where(Checkpoint.job_id == job.job_id).order_by(Checkpoint.checkpoint_id)
    )
    requests = session.scalars(
        select(Request).where(Request.job_id == job.job_id).order_by(Request.requested_at, Request.request_key)
    )
    statistics = session.scalars(
        select(Statistics).where(Statistics.job_id == job.job_id).order_by(Statistics.operator_id)
    )
    return JobView(
        job=mapping.job_record(job),
        operators=tuple(mapping.operator_record(row) for row in operators),
        attempts=tuple(mapping.attempt_record(row) for row in attempts),
        checkpoints=tuple(mapping.checkpoint_record(row) for row in checkpoints),
        read_at=max(now, job.seen_at),
        requests=tuple(mapping.request_record(row) for row in requests),
        statistics=tuple(mapping.statistics_record(row) for row in statistics),
    )


def _digest(pointer: str) -> str:
    return hashlib.sha256(pointer.encode()).hexdigest()


def _rows_changed(session: Session, statement: object) -> int:
    result = session.execute(statement)  # type: ignore[call-overload]
    return result.rowcount if isinstance(result, CursorResult) else 0


def _no_such_job(job_id: JobId) -> CheckpointNotFoundError:
    return CheckpointNotFoundError(f"There is no job {job_id}; it has never registered an attempt.", job_id=job_id)
