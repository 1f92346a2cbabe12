"""
In-memory job store, and its list of jobs.

A transaction changes a copy of the rows, which replaces them at the commit. The content is lost with the process.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Set as AbstractSet
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import chain, islice
from operator import attrgetter
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, is_test_job, task_uids_of
from airflow_provider_statecheck.checkpoint.job_list import (
    JobList,
    JobOverview,
    JobSort,
    JobsPage,
    SortValue,
    ascii_lower,
    counts_as_newest,
    dag_of,
    failure_of_attempt,
    failure_of_checkpoint,
    rank_of,
    status_of,
)
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord, already_claimed
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    ActionRecord,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    Clock,
    JobRecord,
    OperatorRecord,
    RowsVersion,
    SnapshotRequest,
    StatisticsRecord,
    SystemClock,
    clamp_times,
    is_too_far_ahead,
    time_of_job,
)
from airflow_provider_statecheck.checkpoint.savepoint_restore import newest_readable
from airflow_provider_statecheck.checkpoint.snapshot_summary import SnapshotSummary
from airflow_provider_statecheck.checkpoint.store import (
    RECENT,
    CheckpointPage,
    EndedAttempts,
    EndedCheckpoints,
    JobView,
    LatestCheckpoints,
    no_such_job,
)
from airflow_provider_statecheck.exceptions import CoordinatorError

_VALUES: dict[JobSort, Callable[[JobOverview], SortValue]] = {
    JobSort.NAME: attrgetter("name"),
    JobSort.COMPLETED_AT: attrgetter("completed_at"),
    JobSort.SIZE: attrgetter("full_size_bytes"),
    JobSort.STATUS: lambda overview: rank_of(overview.status),
    JobSort.FAILED_AT: attrgetter("failed_at"),
}


def job_list(views: Iterable[JobView], page: JobsPage) -> JobList:
    """Return a page of the list of jobs."""
    matching = [overview for overview in map(overview_of, views) if _matches(overview, page)]
    shown = [overview for overview in matching if page.status in (None, overview.status)]
    remaining = _after_position(_sorted(shown, page), page)
    jobs = tuple(remaining[: page.limit])
    following = page.following(_VALUES[page.sort](jobs[-1]), jobs[-1].name) if len(remaining) > page.limit else None
    return JobList(jobs=jobs, counts=dict(Counter(o.status for o in matching)), following=following)


def overview_of(view: JobView) -> JobOverview:
    """Return the overview of a job."""
    epochs = {operator.operator_id: operator.epoch for operator in view.operators}
    attempts = view.attempts_of_stages
    newest = _newest_checkpoint(view)
    failures = (*map(failure_of_attempt, attempts), *map(failure_of_checkpoint, view.checkpoints))
    last = max(filter(None, failures), default=None)
    return JobOverview(
        job_id=view.job.job_id,
        name=view.job.name,
        status=status_of(a.status for a in attempts if a.epoch == epochs[a.operator_id]),
        seen_at=view.job.seen_at,
        operators=len({a.operator_id for a in view.attempts}),
        dag_ids=view.dag_ids,
        is_of_unknown_dag=view.is_of_unknown_dag,
        checkpoint_id=None if newest is None else newest.checkpoint_id,
        completed_at=None if newest is None else newest.completed_at,
        full_size_bytes=None if newest is None else newest.full_size_bytes,
        earlier_size_bytes=None if newest is None else _earlier_size(view, newest),
        failed_at=None if last is None else last[0],
        failure=None if last is None else last[1],
    )


def _newest_checkpoint(view: JobView) -> CheckpointRecord | None:
    generations = {operator.operator_id: operator.generation for operator in view.operators}
    current = (c for c in view.checkpoints if counts_as_newest(c) and c.generation == generations[c.operator_id])
    return max(current, key=_completion_order, default=None)


def _earlier_size(view: JobView, newest: CheckpointRecord) -> int | None:
    earlier = (
        c
        for c in view.of_operator(newest.operator_id)
        if c.completed_at is not None
        and c.generation == newest.generation
        and (not c.properties.is_savepoint or c.properties.unclaimed)
        and _completion_order(c) < _completion_order(newest)
    )
    last = max(earlier, key=_completion_order, default=None)
    return None if last is None else last.full_size_bytes


def _completion_order(checkpoint: CheckpointRecord) -> tuple[datetime, int]:
    assert checkpoint.completed_at is not None
    return checkpoint.completed_at, checkpoint.checkpoint_id


def _matches(overview: JobOverview, page: JobsPage) -> bool:
    readable = page.readable_dag_ids
    return (
        (page.with_test_jobs or not is_test_job(overview.name))
        and (page.name is None or ascii_lower(page.name) in ascii_lower(overview.name))
        and (page.dag_id is None or page.dag_id in overview.dag_ids)
        and (readable is None or (not overview.is_of_unknown_dag and readable.issuperset(overview.dag_ids)))
    )


def _sorted(overviews: Iterable[JobOverview], page: JobsPage) -> list[JobOverview]:
    value = _VALUES[page.sort]
    by_name = sorted(overviews, key=lambda overview: overview.name)
    with_value = [overview for overview in by_name if value(overview) is not None]
    # Sorting is stable in both directions.
    ordered = sorted(with_value, key=value, reverse=page.descending)  # type: ignore[arg-type]
    return ordered + [overview for overview in by_name if value(overview) is None]


def _after_position(overviews: list[JobOverview], page: JobsPage) -> list[JobOverview]:
    if page.position is None:
        return overviews
    value, name = page.position

    def is_after(overview: JobOverview) -> bool:
        found = _VALUES[page.sort](overview)
        if found is None or value is None or found == value:
            return (found is None, overview.name) > (value is None, name)
        return (found < value) if page.descending else (found > value)  # type: ignore[operator]

    return [overview for overview in overviews if is_after(overview)]


class InMemoryJobStore:
    """
    In-memory job store.

    :param clock: The clock, by default the system clock.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or SystemClock()
        self._lock = threading.RLock()
        self._jobs: dict[JobId, _Rows] = {}

    @contextmanager
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[InMemoryJobTransaction]:
        """Open a transaction of a job; one lock serializes the transactions of all jobs."""
        with self._lock:
            rows = self._ensured(job_id, create_as) if create_as is not None else deepcopy(self._known(job_id))
            rows.begin(self._clock.now())
            claims = {pointer: claim for other in self._jobs.values() for pointer, claim in other.claims.items()}
            transaction = InMemoryJobTransaction(rows, claims)
            yield transaction
            self._jobs[job_id] = rows

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return the claim of a snapshot by any job."""
        with self._lock:
            return next((rows.claims[pointer] for rows in self._jobs.values() if pointer in rows.claims), None)

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        with self._lock:
            rows = [r.job for r in self._jobs.values() if r.attempts]
        return tuple(sorted(rows, key=lambda job: job.seen_at, reverse=True))

    def dag_ids(self, *, beside: str | None = None) -> frozenset[str]:
        """Return the Dags with attempts in any job, or in any job with attempts of one Dag."""
        with self._lock:
            jobs = [{dag_of(attempt.owner) for attempt in rows.attempts.values()} for rows in self._jobs.values()]
        return frozenset(filter(None, chain.from_iterable(each for each in jobs if beside is None or beside in each)))

    def jobs_of_run(self, dag_id: str, run_id: str) -> tuple[JobId, ...]:
        """Return the jobs that the tasks of a Dag run have worked on, the most recently active first."""
        run = {("dag_id", dag_id), ("run_id", run_id)}
        with self._lock:
            matching = {
                job_id
                for job_id, rows in self._jobs.items()
                for a in rows.attempts.values()
                if run <= {*a.owner.airflow}
            }
        return tuple(job.job_id for job in self.jobs() if job.job_id in matching)

    def job_overviews(self, page: JobsPage) -> JobList:
        """Return a page of the list of jobs."""
        with self._lock:
            views = [rows.view(self._clock.now()) for rows in self._jobs.values() if rows.attempts]
        return job_list(views, page)

    def describe(self, job_id: JobId) -> JobView:
        """Return a view of a job."""
        with self._lock:
            return self._known(job_id).view(self._clock.now())

    def request(self, job_id: JobId, request_key: str) -> SnapshotRequest | None:
        """Return a request of a job by its key."""
        with self._lock:
            rows = self._jobs.get(job_id)
            return None if rows is None else rows.requests.get(request_key)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job."""
        with self._lock:
            rows = self._jobs.get(job_id)
            return None if rows is None else rows.checkpoints.get(checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        with self._lock:
            rows = self._jobs.get(job_id)
            return () if rows is None else rows.page(page)

    def latest(self, job_id: JobId, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest restorable checkpoint of an operator, ``None`` if there is none."""
        with self._lock:
            return self._known(job_id).latest(operator_id)

    def latest_checkpoints(self, job_id: JobId, known_version: RowsVersion | None = None) -> LatestCheckpoints | None:
        """Return the newest readable checkpoint of each operator, ``None`` if the version is the known one."""
        with self._lock:
            rows = self._known(job_id)
            operators = tuple(sorted(rows.operators.values(), key=lambda o: o.uid))
            newest = (newest_readable(o, rows.newest_first(o.operator_id)) for o in operators)
            view = LatestCheckpoints(
                job=rows.job, operators=operators, checkpoints=tuple(c for c in newest if c is not None)
            )
        return None if rows.job.rows_version == known_version else view

    def _known(self, job_id: JobId) -> _Rows:
        rows = self._jobs.get(job_id)
        if rows is None or not rows.attempts:
            raise no_such_job(job_id)
        return rows

    def _ensured(self, job_id: JobId, name: str) -> _Rows:
        if job_id in self._jobs:
            return deepcopy(self._jobs[job_id])
        now = self._clock.now()
        return _Rows(JobRecord(job_id=job_id, name=name, version=0, next_checkpoint_id=1, seen_at=now, created_at=now))


class InMemoryJobTransaction:
    """Transaction on a copy of a job's rows."""

    def __init__(self, rows: _Rows, other_claims: dict[str, ClaimRecord]) -> None:
        self._rows = rows
        self._other_claims = other_claims

    @property
    def now(self) -> datetime:
        """Return the time of the transaction."""
        return self._rows.job.seen_at

    @property
    def job(self) -> JobRecord:
        """Return the row of the job."""
        return self._rows.job

    def draw_checkpoint_id(self) -> int:
        """Draw the next checkpoint id of the job."""
        drawn = self._rows.job.next_checkpoint_id
        self.set_next_checkpoint_id(drawn + 1)
        return drawn

    def set_next_checkpoint_id(self, following: int) -> None:
        """Set the next checkpoint id of the job."""
        self._rows.job = replace(self._rows.job, next_checkpoint_id=following)

    def operator(self, operator_id: OperatorId) -> OperatorRecord | None:
        """Return an operator of the job."""
        return self._rows.operators.get(operator_id)

    def operators_besides(self, task_uids: AbstractSet[str]) -> list[tuple[OperatorRecord, AttemptRecord | None]]:
        """Return the operators that belong to none of the given tasks, each with its newest attempt."""
        operators = (o for o in self._rows.operators.values() if task_uids.isdisjoint(task_uids_of(o.uid)))
        return [(o, self.attempt(o.operator_id, o.epoch)) for o in sorted(operators, key=lambda o: o.uid)]

    def save_operator(self, record: OperatorRecord) -> None:
        """Insert or replace an operator."""
        self._rows.operators[record.operator_id] = record

    def attempt(self, operator_id: OperatorId, epoch: int) -> AttemptRecord | None:
        """Return an attempt by its epoch."""
        return self._rows.attempts.get((operator_id, epoch))

    def attempt_by_key(self, attempt_key: str) -> AttemptRecord | None:
        """Return an attempt by its idempotency key."""
        return next((a for a in self._rows.attempts.values() if a.attempt_key == attempt_key), None)

    def last_attempt_of_run(self, operator_id: OperatorId, run_key: str) -> AttemptRecord | None:
        """Return the newest attempt of an operator in a run."""
        newest_first = (a for (o, _), a in sorted(self._rows.attempts.items(), reverse=True) if o == operator_id)
        return next((a for a in newest_first if a.owner.run_key == run_key), None)

    def storage_bases(self, operator_id: OperatorId) -> tuple[str, ...]:
        """Return the distinct checkpoint directories of an operator's attempts, sorted."""
        return tuple(sorted({a.storage_base for (o, _), a in self._rows.attempts.items() if o == operator_id}))

    def ended_attempts(self, wanted: EndedAttempts, limit: int | None) -> tuple[int, ...]:
        """Return the epochs of at most ``limit`` ended attempts, oldest first."""
        of_operator = (a for (o, _), a in sorted(self._rows.attempts.items()) if o == wanted.operator_id)
        ended = (a for a in of_operator if a.ended_at is not None and a.ended_at < wanted.before)
        on_storage = (a for a in ended if wanted.storage_base in (None, a.storage_base))
        return tuple(islice((a.epoch for a in on_storage if a.epoch not in wanted.kept_epochs), limit))

    def save_attempt(self, record: AttemptRecord) -> None:
        """Insert or replace an attempt."""
        self._rows.attempts[(record.operator_id, record.epoch)] = record

    def checkpoint(self, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of the job."""
        return self._rows.checkpoints.get(checkpoint_id)

    def checkpoint_by_request(self, request_key: str) -> CheckpointRecord | None:
        """Return a checkpoint by the key of its request."""
        return next((c for c in self._rows.checkpoints.values() if c.request_key == request_key), None)

    def summary(self, checkpoint_id: int) -> SnapshotSummary | None:
        """Return the figures of a checkpoint."""
        row = self.checkpoint(checkpoint_id)
        return None if row is None else row.summary

    def open_checkpoints(self, operator_id: OperatorId) -> list[CheckpointRecord]:
        """Return the checkpoints of an operator that are not discarded, oldest first."""
        of_operator = (c for _, c in sorted(self._rows.checkpoints.items()) if c.operator_id == operator_id)
        return [c for c in of_operator if c.discarded_at is None]

    def discarded_checkpoints(self, wanted: EndedCheckpoints, limit: int | None) -> tuple[int, ...]:
        """Return the ids of at most ``limit`` discarded checkpoints."""
        discarded = (c for _, c in sorted(self._rows.checkpoints.items()) if c.discarded_at is not None)
        return tuple(c.checkpoint_id for c in islice(filter(wanted.includes, discarded), limit))

    def has_completed(self, operator_id: OperatorId, generation: int | None = None) -> bool:
        """Return whether an operator has a row of a completed checkpoint, in one or any generation."""
        rows = self._rows.checkpoints.values()
        completed = (c for c in rows if c.operator_id == operator_id and c.completed_at is not None)
        return any(generation in (None, c.generation) for c in completed)

    def add_checkpoint(self, record: CheckpointRecord) -> None:
        """Insert a checkpoint."""
        if record.checkpoint_id in self._rows.checkpoints:
            raise CoordinatorError(
                f"Expected no checkpoint {record.checkpoint_id} of job {record.job_id}, found one; draw another id."
            )
        self._rows.checkpoints[record.checkpoint_id] = record

    def update_checkpoint(self, record: CheckpointRecord, *, expected: CheckpointStatus) -> None:
        """Replace a checkpoint if it still has the expected status."""
        found = self._rows.checkpoints.get(record.checkpoint_id)
        if found is None or found.status is not expected:
            raise CoordinatorError(
                f"Expected checkpoint {record.checkpoint_id} to be {expected.value}, "
                f"found {found.status.value if found else 'none'}; reload it."
            )
        self._rows.checkpoints[record.checkpoint_id] = record

    def acknowledgements(self, checkpoint_id: int) -> list[AcknowledgementRecord]:
        """Return the acknowledgements of an aligned checkpoint."""
        return [a for (i, _), a in sorted(self._rows.acknowledgements.items()) if i == checkpoint_id]

    def save_acknowledgement(self, record: AcknowledgementRecord) -> None:
        """Insert or replace the acknowledgement of an operator."""
        self._rows.acknowledgements[(record.checkpoint_id, record.operator_id)] = record

    def request(self, request_key: str) -> SnapshotRequest | None:
        """Return a request by its key."""
        return self._rows.requests.get(request_key)

    def open_requests(self, operator_id: OperatorId) -> list[SnapshotRequest]:
        """Return the open requests of an operator, oldest first."""
        rows = sorted(self._rows.requests.values(), key=lambda r: (r.requested_at, r.request_key))
        return [r for r in rows if r.operator_id == operator_id and r.status.is_open]

    def ended_requests(self, operator_id: OperatorId, before: datetime, limit: int | None) -> tuple[str, ...]:
        """Return the keys of at most ``limit`` requests of an operator that ended before a time."""
        of_operator = (r for r in self._rows.requests.values() if r.operator_id == operator_id)
        ended = (r.request_key for r in of_operator if r.ended_at is not None and r.ended_at < before)
        return tuple(islice(ended, limit))

    def save_request(self, record: SnapshotRequest) -> None:
        """Insert or replace a request."""
        self._rows.requests[record.request_key] = record

    def remove_requests(self, request_keys: tuple[str, ...]) -> None:
        """Remove the rows of requests."""
        for key in request_keys:
            self._rows.requests.pop(key, None)

    def action(self, request_key: str) -> ActionRecord | None:
        """Return an action of a user by its key."""
        return self._rows.actions.get(request_key)

    def open_actions(self, operator_id: OperatorId) -> list[ActionRecord]:
        """Return the open actions on an operator, oldest first."""
        rows = sorted(self._rows.actions.values(), key=lambda a: (a.requested_at, a.request_key))
        return [a for a in rows if a.operator_id == operator_id and a.ended_at is None]

    def save_action(self, record: ActionRecord) -> None:
        """Insert or replace an action of a user."""
        self._rows.actions[record.request_key] = record

    def remove_actions(self, before: datetime) -> None:
        """Remove the actions that ended before a time."""
        kept = {k: a for k, a in self._rows.actions.items() if a.ended_at is None or a.ended_at >= before}
        self._rows.actions = kept

    def claim(self, pointer: str) -> ClaimRecord | None:
        """Return the claim of a snapshot by any job."""
        return self._rows.claims.get(pointer) or self._other_claims.get(pointer)

    def save_claim(self, record: ClaimRecord) -> None:
        """Insert a claim."""
        if self.claim(record.pointer) is not None:
            raise already_claimed(record.pointer)
        self._rows.claims[record.pointer] = record

    def statistics(self, operator_id: OperatorId) -> StatisticsRecord | None:
        """Return the checkpoint statistics of an operator."""
        return self._rows.statistics.get(operator_id)

    def save_statistics(self, record: StatisticsRecord) -> None:
        """Insert or replace the checkpoint statistics of an operator."""
        self._rows.statistics[record.operator_id] = record

    def view(self) -> JobView:
        """Return a view of the job with the changes of this transaction."""
        return self._rows.view(self.now)

    def remove_checkpoints(self, checkpoint_ids: tuple[int, ...]) -> None:
        """Remove the rows of checkpoints."""
        for checkpoint_id in checkpoint_ids:
            self._rows.checkpoints.pop(checkpoint_id, None)
            for record in self.acknowledgements(checkpoint_id):
                del self._rows.acknowledgements[(checkpoint_id, record.operator_id)]

    def remove_attempts(self, attempts: tuple[AttemptRef, ...]) -> None:
        """Remove the rows of attempts."""
        for attempt in attempts:
            self._rows.attempts.pop((attempt.operator_id, attempt.epoch), None)

    def remove_job(self) -> None:
        """Remove the rows of the job, except its id counter, its operators and its claims."""
        rows = self._rows
        tables: tuple[dict[Any, Any], ...] = (
            rows.attempts,
            rows.checkpoints,
            rows.acknowledgements,
            rows.requests,
            rows.actions,
            rows.statistics,
        )
        for table in tables:
            table.clear()


@dataclass
class _Rows:
    job: JobRecord
    operators: dict[OperatorId, OperatorRecord] = field(default_factory=dict)
    attempts: dict[tuple[OperatorId, int], AttemptRecord] = field(default_factory=dict)
    checkpoints: dict[int, CheckpointRecord] = field(default_factory=dict)
    acknowledgements: dict[tuple[int, OperatorId], AcknowledgementRecord] = field(default_factory=dict)
    requests: dict[str, SnapshotRequest] = field(default_factory=dict)
    actions: dict[str, ActionRecord] = field(default_factory=dict)
    statistics: dict[OperatorId, StatisticsRecord] = field(default_factory=dict)
    claims: dict[str, ClaimRecord] = field(default_factory=dict)
    """The claims of this job."""

    def begin(self, now: datetime) -> None:
        """Begin a transaction."""
        if is_too_far_ahead(self.job.seen_at, now):
            tables: tuple[dict[Any, Any], ...] = (
                self.attempts,
                self.checkpoints,
                self.acknowledgements,
                self.requests,
                self.actions,
            )
            for table in tables:
                table.update({key: clamp_times(record, now) for key, record in table.items()})
        self.job = replace(self.job, version=self.job.version + 1, seen_at=time_of_job(self.job.seen_at, now))

    def view(self, now: datetime) -> JobView:
        """Return an immutable view of the rows."""
        return JobView(
            job=self.job,
            operators=tuple(self.operators.values()),
            attempts=tuple(a for _, a in sorted(self.attempts.items())),
            checkpoints=self._current_checkpoints(),
            read_at=time_of_job(self.job.seen_at, now),
            requests=self._current_requests(),
            actions=self._current_actions(),
            statistics=tuple(s for _, s in sorted(self.statistics.items())),
        )

    def latest(self, operator_id: OperatorId) -> CheckpointRecord | None:
        """Return the newest restorable checkpoint of an operator, ``None`` if there is none."""
        operator = self.operators.get(operator_id)
        usable = (c for c in self.newest_first(operator_id) if c.is_restorable and c.unusable_reason is None)
        return next((c for c in usable if operator is not None and c.generation == operator.generation), None)

    def newest_first(self, operator_id: OperatorId) -> Iterator[CheckpointRecord]:
        """Return the checkpoints of an operator, newest first."""
        newest_first = sorted(self.checkpoints.items(), reverse=True)
        return (c for _, c in newest_first if c.operator_id == operator_id)

    def page(self, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of checkpoints, newest first."""
        newest_first = (c for _, c in sorted(self.checkpoints.items(), reverse=True) if page.includes(c))
        return tuple(islice(newest_first, page.limit))

    def _current_checkpoints(self) -> tuple[CheckpointRecord, ...]:
        recent = {c.checkpoint_id for c in self.page(CheckpointPage())}
        return tuple(c for i, c in sorted(self.checkpoints.items()) if c.discarded_at is None or i in recent)

    def _current_requests(self) -> tuple[SnapshotRequest, ...]:
        rows = sorted(self.requests.values(), key=lambda r: (r.requested_at, r.request_key))
        recent = {r.request_key for r in rows[-RECENT:]}
        return tuple(r for r in rows if r.status.is_open or r.request_key in recent)

    def _current_actions(self) -> tuple[ActionRecord, ...]:
        rows = sorted(self.actions.values(), key=lambda a: (a.requested_at, a.request_key))
        ended = [a for a in rows if a.ended_at is not None]
        dropped = {a.request_key for a in ended[: max(0, len(rows) - RECENT)]}
        return tuple(a for a in rows if a.request_key not in dropped)
