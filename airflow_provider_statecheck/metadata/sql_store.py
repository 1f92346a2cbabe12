"""
Job store in a database: transactions on the rows of a job.

SQLite and PostgreSQL are supported; the statements are also valid for MySQL.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Iterator, Sequence, Set as AbstractSet
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import datetime
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, Table, insert
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import IntegrityError

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.ids import (
    ALIGNED_OPERATOR_ID,
    JobId,
    OperatorId,
    canonical_uri,
    task_uids_of,
)
from airflow_provider_statecheck.checkpoint.job_list import JobList, JobsPage
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord, already_claimed
from airflow_provider_statecheck.checkpoint.records import (
    SHORTEST_STEP,
    AcknowledgementRecord,
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    Clock,
    JobRecord,
    OperatorRecord,
    RowsVersion,
    StatisticsRecord,
    SystemClock,
    clamp_times,
    is_too_far_ahead,
)
from airflow_provider_statecheck.checkpoint.store import (
    CheckpointPage,
    EndedAttempts,
    EndedCheckpoints,
    FirstRead,
    JobView,
    LatestCheckpoints,
    no_such_job,
)
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.job_lists import job_list, listed_jobs
from airflow_provider_statecheck.metadata.job_views import (
    FiguresOfTransition,
    JobVersions,
    latest_of,
    version_of,
    view_of,
)
from airflow_provider_statecheck.metadata.record_rows import Record, RecordTable, keeping_bad_values, keys
from airflow_provider_statecheck.metadata.tables import (
    ACKNOWLEDGEMENTS,
    ACTIONS,
    ATTEMPTS,
    CHECKPOINTS,
    CLAIMS,
    JOB_DAGS,
    JOBS,
    OPERATORS,
    REQUESTS,
    STATISTICS,
    TOKENS,
)
from airflow_provider_statecheck.metadata.unit_of_work import (
    Begun,
    FirstRows,
    UnitOfWork,
    Write,
    begin,
    commit,
    committing,
    executing,
)

log = logging.getLogger(__name__)

Value = TypeVar("Value")
_VALUES_PER_STATEMENT = 1000
"""Databases limit the number of parameters of a statement."""

_READS_WITHOUT_LOCK = 3
"""Number of times to read for a consistent view before the reader locks the job."""


class SqlJobStore:
    """
    ``JobStore`` in the tables ``statecheck_*``.

    :param engine: Database that has the tables.
    :param clock: Clock for times. The default is the system clock.
    """

    def __init__(self, engine: Engine, clock: Clock | None = None) -> None:
        self.engine = engine
        self._clock = clock or SystemClock()

    @contextmanager
    def transaction(
        self, job_id: JobId, *, create_as: str | None = None, reads: FirstRead | None = None
    ) -> Iterator[SqlJobTransaction]:
        if create_as is not None:
            self.ensure_job(job_id, create_as)
        with executing():
            opened = self._connect()
        with opened as connection:
            with executing():
                transition = self._begin(connection, job_id, is_known=create_as is None, reads=reads)
                yield transition
                transition.finish()
            with committing():
                self._commit(connection)

    def claim(self, pointer: str) -> ClaimRecord | None:
        return self._row(CLAIMS, CLAIMS.by_key, pointer_sha256=_digest(pointer))

    def jobs(self) -> tuple[JobRecord, ...]:
        with executing(), self._connect() as connection:
            return listed_jobs(connection)

    def dag_ids(self, *, beside: str | None = None) -> frozenset[str]:
        query = statements.DAG_IDS if beside is None else statements.DAG_IDS_BESIDE
        with executing(), self._connect() as connection:
            found = connection.scalars(query, {} if beside is None else keys(dag_id=beside))
            # A Dag that cannot be read hides its jobs from users who may not read all Dags.
            return frozenset(dag_id for dag_id in found if isinstance(dag_id, str))

    def jobs_of_run(self, dag_id: str, run_id: str) -> tuple[JobId, ...]:
        with executing(), self._connect() as connection:
            found = connection.scalars(statements.JOBS_OF_RUN, keys(dag_id=dag_id, run_id=run_id))
            return tuple(JobId(job_id) for job_id in found)

    def job_overviews(self, page: JobsPage) -> JobList:
        with executing(), self._connect() as connection:
            return job_list(connection, page)

    def describe(self, job_id: JobId) -> JobView:
        for _ in range(_READS_WITHOUT_LOCK):
            view = self._read_view(job_id)
            if view is not None:
                return view
        # Transitions were committed during each read, so this read locks the job.
        with self.transaction(job_id) as tx:
            return tx.view()

    def request(self, job_id: JobId, request_key: str) -> CheckpointRequest | None:
        return self._row(REQUESTS, REQUESTS.by_key, job_id=job_id, request_key=request_key)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        return self._row(CHECKPOINTS, CHECKPOINTS.by_key, job_id=job_id, checkpoint_id=checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        with executing(), self._connect() as connection:
            rows = connection.execute(statements.page_of(page), keys(job_id=job_id))
            return tuple(CHECKPOINTS.read(row) for row in rows)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        latest = self._row(CHECKPOINTS, statements.LATEST_CHECKPOINT, job_id=job_id, operator_id=operator_id)
        if latest is None and self._row(JOBS, statements.VISIBLE_JOB, job_id=job_id) is None:
            raise no_such_job(job_id)
        return latest

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        with executing():
            if known_version is not None and known_version == self._version(job_id):
                return None
            with self._connect() as connection:
                latest = latest_of(connection, job_id)
        if latest is None:
            raise no_such_job(job_id)
        return latest

    def _row(self, table: RecordTable[Record], query: Select[Any], **values: object) -> Record | None:
        with executing(), self._connect() as connection:
            row = connection.execute(query, keys(**values)).one_or_none()
        return None if row is None else table.read(row)

    def _version(self, job_id: JobId) -> RowsVersion | None:
        return self._versions.read(job_id)

    @cached_property
    def _versions(self) -> JobVersions:
        return JobVersions(self.engine)

    def _read_view(self, job_id: JobId) -> JobView | None:
        with executing(), self._connect() as connection:
            before = self._visible_job(connection, job_id)
            view = view_of(connection, before, self._clock.now())
            # Each transition increments the version; an equal one means that none was committed between the statements.
            return view if version_of(connection, job_id) == before.rows_version else None

    def _visible_job(self, connection: Connection, job_id: JobId) -> JobRecord:
        row = connection.execute(statements.VISIBLE_JOB, keys(job_id=job_id)).one_or_none()
        if row is None:
            raise no_such_job(job_id)
        return JOBS.read(row)

    def _connect(self) -> AbstractContextManager[Connection]:
        return keeping_bad_values(self.engine.connect())

    def _commit(self, connection: Connection) -> None:
        commit(connection)

    def _begin(
        self, connection: Connection, job_id: JobId, *, is_known: bool, reads: FirstRead | None
    ) -> SqlJobTransaction:
        now = self._clock.now()
        begun = begin(connection, job_id, now, is_known=is_known, reads=reads)
        if begun is None:
            raise no_such_job(job_id)
        transition = SqlJobTransaction(connection, begun)
        is_behind = transition.now > now
        if is_too_far_ahead(transition.now, now):
            transition.set_back(now)
        if is_behind:
            transition.pass_time()
        return transition

    def ensure_job(self, job_id: JobId, name: str) -> None:
        """Add the row of a job that has none, in a transaction of its own."""
        with executing(), self._connect() as connection:
            if connection.execute(JOBS.by_key, keys(job_id=job_id)).one_or_none() is not None:
                return
            now = self._clock.now()
            job = JobRecord(job_id=job_id, name=name, version=0, next_checkpoint_id=1, seen_at=now, created_at=now)
            try:
                connection.execute(insert(JOBS.table), JOBS.storable(JOBS.values_of(job)))
            except IntegrityError:
                return  # another process created the same row
            self._commit(connection)


class JoinedSqlJobStore(SqlJobStore):
    """
    ``SqlJobStore`` within an open transaction, which the caller commits or rolls back.

    :param clock: Clock for times. The default is the system clock.
    """

    def __init__(self, connection: Connection, clock: Clock | None = None) -> None:
        super().__init__(connection.engine, clock)
        self._connection = connection

    def _connect(self) -> AbstractContextManager[Connection]:
        return keeping_bad_values(nullcontext(self._connection))

    def _version(self, job_id: JobId) -> RowsVersion | None:
        return version_of(self._connection, job_id)

    def _commit(self, connection: Connection) -> None:
        """Leave the commit to the caller."""


class SqlJobTransaction:
    """A transition of a job, on a connection that holds the lock on the job's row."""

    def __init__(self, connection: Connection, begun: Begun) -> None:
        self._connection = connection
        self._begun = self._job = begun.job
        self._rows = UnitOfWork(connection, begun.job.job_id)
        self._figures = FiguresOfTransition(self._rows, begun.figures)
        self._unused_key: str | None = None
        if begun.rows is not None:
            self._hold_first(begun.rows)

    @property
    def now(self) -> datetime:
        return self._job.seen_at

    @property
    def job(self) -> JobRecord:
        return self._job

    def set_back(self, now: datetime) -> None:
        """Move the times of the job and its rows back to the current time, as the first call of the transition."""
        job = self._job
        log.warning("Job %s: reset its time, which was %s ahead of the clock", job.name, job.seen_at - now)
        for table, query in statements.DATED_LATER.items():
            for record in self._rows.read(table, query, now=now):
                self._rows.save(table, clamp_times(record, job.seen_at, now))
        self._job = replace(job, seen_at=now)
        self._figures.times_changed()

    def pass_time(self) -> None:
        """Let the time of the job increase although the clock is behind it, before anything uses the time."""
        self._job = replace(self._job, seen_at=self._job.seen_at + SHORTEST_STEP)

    def finish(self) -> None:
        """Write what the transition has changed, as its last call."""
        changes = self._figures.changes() | JOBS.changes(self._begun, self._job)
        self._rows.flush(*([Write(JOBS, changes, {"job_id": self._job.job_id})] if changes else []))

    def draw_checkpoint_id(self) -> int:
        checkpoint_id = self._job.next_checkpoint_id
        self.set_next_checkpoint_id(checkpoint_id + 1)
        return checkpoint_id

    def set_next_checkpoint_id(self, checkpoint_id: int) -> None:
        self._job = replace(self._job, next_checkpoint_id=checkpoint_id)

    def operator(self, operator_id: OperatorId) -> OperatorRecord | None:
        if not self._rows.holds(OPERATORS, operator_id):
            self._read_operator(operator_id)
        return self._rows.get(OPERATORS, operator_id)

    def operators_besides(self, task_uids: AbstractSet[str]) -> list[tuple[OperatorRecord, AttemptRecord | None]]:
        operators = self._rows.read(OPERATORS, statements.ALL_OPERATORS)
        besides = [o for o in operators if task_uids.isdisjoint(task_uids_of(o.uid))]
        if besides:
            self._rows.read(ATTEMPTS, statements.NEWEST_ATTEMPTS)
        return [(o, self.attempt(o.operator_id, o.epoch)) for o in besides]

    def save_operator(self, record: OperatorRecord) -> None:
        self._figures.operator_saved(self.operator(record.operator_id), record)
        self._rows.save(OPERATORS, record)

    def attempt(self, operator_id: OperatorId, epoch: int) -> AttemptRecord | None:
        return self._rows.get(ATTEMPTS, operator_id, epoch)

    def attempt_by_key(self, attempt_key: str) -> AttemptRecord | None:
        return next(iter(self._rows.read(ATTEMPTS, statements.ATTEMPT_BY_KEY, attempt_key=attempt_key)), None)

    def last_attempt_of_run(self, operator_id: OperatorId, run_key: str) -> AttemptRecord | None:
        found = self._rows.read(ATTEMPTS, statements.LAST_ATTEMPT_OF_RUN, operator_id=operator_id, run_key=run_key)
        return next(iter(found), None)

    def owners(self, operator_id: OperatorId) -> tuple[AttemptOwner, ...]:
        found = self._rows.values(ATTEMPTS, "owner", statements.OWNERS_OF_OPERATOR, operator_id=operator_id)
        return tuple(found)

    def storage_bases(self, operator_id: OperatorId) -> tuple[str, ...]:
        return tuple(sorted(self._rows.values(ATTEMPTS, "storage_base", statements.storage_bases(operator_id))))

    def ended_attempts(self, wanted: EndedAttempts, limit: int | None) -> tuple[int, ...]:
        return tuple(self._rows.values(ATTEMPTS, "epoch", statements.ended_attempts(wanted, limit)))

    def save_attempt(self, record: AttemptRecord) -> None:
        known = self.attempt(record.operator_id, record.epoch)
        self._figures.attempt_saved(known, known or self.attempt(record.operator_id, record.epoch - 1), record)
        self._rows.save(ATTEMPTS, record)

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord | None:
        return self._rows.get(CHECKPOINTS, checkpoint_id)

    def checkpoint_by_request(self, request_key: str) -> CheckpointRecord | None:
        if request_key == self._unused_key:
            return None
        checkpoints = self._rows.read(CHECKPOINTS, statements.CHECKPOINT_BY_REQUEST, request_key=request_key)
        return next(iter(checkpoints), None)

    def summary(self, checkpoint_id: int) -> CheckpointSummary | None:
        found = self._rows.values(CHECKPOINTS, "summary", statements.SUMMARY_OF, checkpoint_id=checkpoint_id)
        return next(iter(found), None)

    def open_checkpoints(self, operator_id: OperatorId) -> list[CheckpointRecord]:
        if not self._rows.is_complete(CHECKPOINTS, operator_id):
            self._read_operator(operator_id)
        rows = (c for c in self._rows.held(CHECKPOINTS) if c.operator_id == operator_id and c.discarded_at is None)
        return sorted(rows, key=lambda c: c.checkpoint_id)

    def discarded_checkpoints(self, wanted: EndedCheckpoints, limit: int | None, skipped: int = 0) -> tuple[int, ...]:
        query = statements.discarded_checkpoints(wanted, limit, skipped)
        return tuple(self._rows.values(CHECKPOINTS, "checkpoint_id", query))

    def has_completed(self, operator_id: OperatorId, generation: int | None = None) -> bool:
        if generation is None:
            return bool(self._rows.execute(statements.HAS_EVER_COMPLETED, operator_id=operator_id).scalar())
        found = self._rows.execute(statements.HAS_COMPLETED, operator_id=operator_id, generation=generation)
        return bool(found.scalar())

    def advanced_runs(self, operator_id: OperatorId, generation: int) -> frozenset[str]:
        values = {"operator_id": operator_id, "generation": generation}
        return frozenset(self._rows.values(CHECKPOINTS, "run_key", statements.ADVANCED_RUNS, **values))

    def last_checkpoints_of_runs(self, operator_id: OperatorId, generation: int) -> dict[str, int]:
        rows = self._rows.execute(statements.last_checkpoints_of_runs(operator_id, generation))
        job = {"job_id": self._job.job_id}
        return {
            CHECKPOINTS.value("run_key", run, **job): CHECKPOINTS.value("checkpoint_id", last, **job)
            for run, last in map(tuple, rows)
        }

    def runs_of(self, checkpoint_ids: Sequence[int]) -> frozenset[str]:
        queries = map(statements.runs_of, _parts(checkpoint_ids))
        return frozenset(run for query in queries for run in self._rows.values(CHECKPOINTS, "run_key", query))

    def are_in_state(self, generation: int, checkpoint_ids: AbstractSet[int]) -> bool:
        queries = (statements.count_in_state(generation, some) for some in _parts(sorted(checkpoint_ids)))
        found = sum(self._rows.execute(query).scalar_one() for query in queries)
        return bool(found == len(checkpoint_ids))

    def completed_after(self, operator_id: OperatorId, generation: int, checkpoint_id: int) -> list[CheckpointRecord]:
        values = {"operator_id": operator_id, "generation": generation, "checkpoint_id": checkpoint_id}
        return self._rows.read(CHECKPOINTS, statements.COMPLETED_AFTER, **values)

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        self._figures.checkpoint_saved(None, record, self.operator)
        self._rows.add(CHECKPOINTS, record)
        self._rows.complete(ACKNOWLEDGEMENTS, record.checkpoint_id)

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        known = self.checkpoint(record.checkpoint_id)
        if known is None or (known.status, known.epoch) != (expected, record.epoch):
            raise CoordinatorError(
                f"Expected checkpoint {record.checkpoint_id} to be {expected.value} in epoch {record.epoch}, found "
                "that another writer changed it; read it again.",
                checkpoint_id=record.checkpoint_id,
            )
        if record.summary is None and known.summary is not None:
            # A record of open_checkpoints lacks its figures, and no transition removes them.
            record = replace(record, summary=known.summary)
        self._figures.checkpoint_saved(known, record, self.operator)
        self._rows.save(CHECKPOINTS, record)

    def acknowledgements(self, checkpoint_id: int) -> list[AcknowledgementRecord]:
        self._rows.read_once(ACKNOWLEDGEMENTS, statements.ACKNOWLEDGEMENTS_OF, checkpoint_id=checkpoint_id)
        rows = (row for row in self._rows.held(ACKNOWLEDGEMENTS) if row.checkpoint_id == checkpoint_id)
        return sorted(rows, key=lambda row: row.operator_id)

    def save_acknowledgement(self, record: AcknowledgementRecord) -> None:
        self._rows.read_once(ACKNOWLEDGEMENTS, statements.ACKNOWLEDGEMENTS_OF, checkpoint_id=record.checkpoint_id)
        self._rows.miss(ACKNOWLEDGEMENTS, record.checkpoint_id, record.operator_id)
        self._rows.save(ACKNOWLEDGEMENTS, record)

    def request(self, request_key: str) -> CheckpointRequest | None:
        return self._rows.get(REQUESTS, request_key)

    def open_requests(self, operator_id: OperatorId) -> list[CheckpointRequest]:
        if not self._rows.is_complete(REQUESTS, operator_id):
            self._rows.read(REQUESTS, statements.OPEN_REQUESTS, operator_id=operator_id)
            self._requests_are_held(operator_id)
        rows = (r for r in self._rows.held(REQUESTS) if r.operator_id == operator_id and r.status.is_open)
        return sorted(rows, key=lambda r: (r.requested_at, r.request_key))

    def checkpoints_of_job(self) -> list[CheckpointRecord]:
        return self.open_checkpoints(ALIGNED_OPERATOR_ID)

    def requests_of_job(self) -> list[CheckpointRequest]:
        return self.open_requests(ALIGNED_OPERATOR_ID)

    def ended_requests(self, operator_id: OperatorId, before: datetime, limit: int | None) -> tuple[str, ...]:
        query = statements.ended_requests(operator_id, before, limit)
        return tuple(self._rows.values(REQUESTS, "request_key", query))

    def save_request(self, record: CheckpointRequest) -> None:
        self._rows.save(REQUESTS, record)

    def remove_requests(self, request_keys: tuple[str, ...]) -> None:
        self._remove_each(REQUESTS.table, "request_key", request_keys)

    def action(self, request_key: str) -> ActionRecord | None:
        return self._rows.get(ACTIONS, request_key)

    def open_actions(self, operator_id: OperatorId) -> list[ActionRecord]:
        return self._rows.read(ACTIONS, statements.OPEN_ACTIONS, operator_id=operator_id)

    def save_action(self, record: ActionRecord) -> None:
        self._rows.save(ACTIONS, record)

    def remove_actions(self, before: datetime) -> None:
        self._rows.remove(ACTIONS.table, ACTIONS.c.ended_at < before)

    def claim(self, pointer: str) -> ClaimRecord | None:
        row = self._connection.execute(CLAIMS.by_key, keys(pointer_sha256=_digest(pointer))).one_or_none()
        return None if row is None else CLAIMS.read(row)

    def save_claim(self, record: ClaimRecord) -> None:
        values = CLAIMS.storable(CLAIMS.values_of(record)) | {"pointer_sha256": _digest(record.pointer)}
        try:
            self._connection.execute(insert(CLAIMS.table), values)
        except IntegrityError as error:
            raise already_claimed(record.pointer) from error

    def statistics(self, operator_id: OperatorId) -> StatisticsRecord | None:
        return self._rows.get(STATISTICS, operator_id)

    def save_statistics(self, record: StatisticsRecord) -> None:
        self._rows.save(STATISTICS, record)

    def view(self) -> JobView:
        self._rows.flush()
        return view_of(self._connection, self._job, self.now)

    def remove_checkpoints(self, checkpoint_ids: tuple[int, ...]) -> None:
        for some in _parts(checkpoint_ids):
            self._figures.checkpoints_removed(some)
        for each in (ACKNOWLEDGEMENTS, CHECKPOINTS):
            self._remove_each(each.table, "checkpoint_id", checkpoint_ids)

    def remove_attempts(self, attempts: tuple[AttemptRef, ...]) -> None:
        for operator_id in {attempt.operator_id for attempt in attempts}:
            epochs = [attempt.epoch for attempt in attempts if attempt.operator_id == operator_id]
            # Without the row of its attempt, a token would no longer be recognised as revoked.
            for each in (TOKENS, ATTEMPTS):
                self._remove_each(each.table, "epoch", epochs, each.c.operator_id == operator_id)
            self._figures.attempts_removed(operator_id)

    def remove_job(self) -> None:
        for each in (TOKENS, ACKNOWLEDGEMENTS, REQUESTS, ACTIONS, STATISTICS, CHECKPOINTS, ATTEMPTS):
            self._rows.remove(each.table)
        self._rows.remove(JOB_DAGS)
        self._figures.job_removed()

    def _hold_first(self, rows: FirstRows) -> None:
        self._unused_key = None if rows.is_repeated else rows.of.request_key
        self._hold_operator(rows.of.operator_id, rows.tables, rows.joined)

    def _read_operator(self, operator_id: OperatorId) -> None:
        rows = self._rows.execute(statements.OPERATOR, operator_id=operator_id)
        self._hold_operator(operator_id, statements.ROWS_OF_OPERATOR, rows)

    def _hold_operator(
        self, operator_id: OperatorId, tables: Sequence[RecordTable[Any]], rows: Iterable[Sequence[Any]]
    ) -> None:
        held = self._rows
        held.hold_joined(tables, rows)
        held.miss(OPERATORS, operator_id)
        operator = held.get(OPERATORS, operator_id)
        if operator is not None:
            held.miss(ATTEMPTS, operator_id, operator.epoch)
        held.complete(CHECKPOINTS, operator_id)
        has_pending = any(c.status is CheckpointStatus.PENDING for c in self.open_checkpoints(operator_id))
        if has_pending and STATISTICS in tables:
            held.miss(STATISTICS, operator_id)
            self._requests_are_held(operator_id)

    def _requests_are_held(self, operator_id: OperatorId) -> None:
        # Those to the whole job come with those to each operator.
        self._rows.complete(REQUESTS, operator_id)
        self._rows.complete(REQUESTS, ALIGNED_OPERATOR_ID)

    def _remove_each(self, table: Table, name: str, values: Sequence[object], *conditions: ColumnElement[bool]) -> None:
        for some in _parts(values):
            self._rows.remove(table, table.c[name].in_(some), *conditions)


def _parts(values: Sequence[Value]) -> Iterator[Sequence[Value]]:
    return (values[start : start + _VALUES_PER_STATEMENT] for start in range(0, len(values), _VALUES_PER_STATEMENT))


def _digest(pointer: str) -> str:
    return hashlib.sha256(canonical_uri(pointer).encode()).hexdigest()
