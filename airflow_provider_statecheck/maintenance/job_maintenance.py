"""
Maintenance of a job's rows: closing abandoned attempts, confirming discards, retention.

A job goes in steps, each of which a killed process may leave for the next one: first its rows say that nothing is to be
restored, then its bytes are deleted and confirmed like those of any ended checkpoint, then the rows go. How far its epochs,
generations and checkpoint ids had come is kept, so that none is ever given out again.

Flink's shutdown of a completed store, told on rows: each checkpoint goes or stays as its properties say for the way in which
the job ended. A job with a name of its own lives on from run to run, so no run ends it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.clock import Clock
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, ConfirmDiscards, require
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.retention import (
    BATCH_SIZE,
    ForgettableRows,
    forgettable_rows,
    is_emptied,
    is_silent,
    last_active,
    open_commits,
    owners_of_run,
    reasons_to_keep,
    remove_rows,
)
from airflow_provider_statecheck.checkpoint.store import CheckpointPage, JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

log = logging.getLogger(__name__)


def ended_attempts(view: JobView) -> tuple[AttemptRecord, ...]:
    """Return the newest attempt of each operator that ends with its run, if it has ended and there is something to settle."""
    if is_test_job(view.job.name) or not owners_of_run(view):
        return ()
    # Aligned checkpoints are in a store of their own, which ends with their job when its coordinator says so.
    own = (o for o in view.operators if o.operator_id != ALIGNED_OPERATOR_ID)
    newest = (view.current_attempt(o) for o in own if _settled_by_run(view, o))
    return tuple(a for a in newest if a is not None and a.status is not AttemptStatus.RUNNING)


def status_of(attempt: AttemptRecord, run: JobStatus) -> JobStatus:
    """
    Return how an operator's part of a run ended.

    :param run: How the run ended. It may succeed although this attempt did not, and then has to be cleared to go on.
    """
    is_done = attempt.status is AttemptStatus.FINISHED
    return JobStatus.FAILED if run is JobStatus.FINISHED and not is_done else run


def discard_ended(tx: JobTransaction, ended: Mapping[OperatorId, JobStatus]) -> tuple[int, ...]:
    """
    Take away from restore what does not stay after the end of its run; its bytes go with the next garbage collection.

    :param ended: How each operator ended.
    :return: The checkpoints that go.
    """
    view = tx.view()
    gone: list[int] = []
    for operator in view.operators:
        if operator.operator_id in ended:
            gone += _end_operator(tx, operator, _settled_by_run(view, operator), ended[operator.operator_id])
    return tuple(gone)


def _end_operator(
    tx: JobTransaction, operator: OperatorRecord, checkpoints: tuple[CheckpointRecord, ...], status: JobStatus
) -> list[int]:
    going = [c for c in checkpoints if c.properties.discard_on(status)]
    for checkpoint in going:
        subsumed = replace(checkpoint, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
        tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)
    if checkpoints[-1:] == tuple(going[-1:]):
        # An attempt that comes after this must start afresh, not fail for want of what was given up on purpose.
        tx.save_operator(replace(operator, generation=operator.generation + 1))
    _tell(tx.job.name, operator, status, going, [c for c in checkpoints if c not in going])
    return [c.checkpoint_id for c in going]


def _tell(
    job: str,
    operator: OperatorRecord,
    status: JobStatus,
    going: list[CheckpointRecord],
    kept: list[CheckpointRecord],
) -> None:
    for checkpoint in going:
        log.info(
            "Job %s operator %s: run %s, checkpoint %s goes", job, operator.uid, status.value, checkpoint.checkpoint_id
        )
    for checkpoint in kept if going else ():
        log.info("Job %s operator %s: run %s, kept at %s", job, operator.uid, status.value, checkpoint.location)


def _settled_by_run(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    mine = view.of_operator(operator.operator_id)
    if any(c.awaits_commit for c in mine):
        # What its sink has prepared would be lost; the run can still be cleared, and the next attempt commits it.
        return ()
    return tuple(c for c in mine if c.is_restorable and c.generation == operator.generation)


SHORTEST_AGE = timedelta(days=1)
"""How old a row has to be to be forgotten: until then a message may be repeated that the row would recognise."""
_BETWEEN_BATCHES_SECONDS = 0.05
_LONGEST_AGE = timedelta(days=36500)

Report = TypeVar("Report")


class RunDirectory(Protocol):
    """Knows the runs of Dags."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say how the run of an attempt ended, ``None`` as long as it has not; one that is gone was cancelled."""
        ...


class UnknownRuns:
    """Knows no run; so none counts as over."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Say of no run that it has ended."""
        return None


class EndedTokens(Protocol):
    """Knows the tokens of the API."""

    def is_open(self, attempt: AttemptRef, now: datetime) -> bool:
        """Tell whether somebody may still speak for an attempt."""
        ...

    def drop_ended(self, before: datetime, *, dry_run: bool = False) -> int:
        """Remove the tokens that expired, or whose attempt ended, before a time, and return how many there were."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class CloseAbandoned:
    """Ask that attempts end whose drivers died without a word."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class SettleRun:
    """Ask that checkpoints go which do not stay after the end of their run."""

    job_id: JobId


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRows:
    """Ask that the rows of what ended long ago go."""

    job_id: JobId
    age_seconds: float
    """How long ago, a day or more."""
    dry_run: bool = False
    """Whether to count them only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DropTokens:
    """Ask that tokens go which have been of no use for long."""

    age_seconds: float
    """For how long, a day or more."""
    dry_run: bool = False
    """Whether to count them only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireJob:
    """Ask that nothing of a job is restored any more, so that its bytes and, asked once more, its rows may go."""

    job_id: JobId
    idle_seconds: float = 0.0
    """How long it has to have had no attempt."""
    is_named: bool = False
    """Whether somebody asked for this very job; any other has to be a test run's, or named after a run that is over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """What became of a request to retire or remove a job."""

    kept_because: tuple[str, ...] = ()
    """Empty if it was done."""


class MaintenanceGateway(Protocol):
    """
    The coordinator as maintenance sees it.

    Every call may be repeated; none touches what a running attempt needs.
    """

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        ...

    def describe(self, job_id: JobId) -> JobView:
        """Return a job as it stands."""
        ...

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        ...

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        ...

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the bytes of ended checkpoints are gone."""
        ...

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """End the attempts whose drivers died without a word and return which they were."""
        ...

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """Take away from restore what does not stay after the end of its run and return which checkpoints it was."""
        ...

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """Remove the rows of what ended so long ago and return which they were."""
        ...

    def refusal(self, request: RetireJob) -> Removal:
        """Say whether :meth:`retire` would be done, and change nothing."""
        ...

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt."""
        ...

    def remove(self, request: RetireJob) -> Removal:
        """Remove the rows of a retired job whose bytes are gone."""
        ...

    def drop_tokens(self, request: DropTokens) -> int:
        """Remove the tokens that have been of no use for so long and return how many there were."""
        ...


class _NothingIsChanged(Exception):
    """Gives up a transaction that only read."""


class JobMaintenance:
    """
    A ``MaintenanceGateway`` on the rows themselves.

    :param store: The rows.
    :param runs: Who knows whether a Dag run is over.
    :param tokens: The tokens of the API.
    :param clock: Where the time comes from by which tokens are judged.
    :param pause: Waits so many seconds between two batches of rows.
    """

    def __init__(
        self,
        store: JobStore,
        runs: RunDirectory,
        tokens: EndedTokens,
        clock: Clock,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._store = store
        self._runs = runs
        self._tokens = tokens
        self._clock = clock
        self._pause = pause

    def jobs(self) -> tuple[JobRecord, ...]:
        """Return all jobs, the most recently active first."""
        return self._store.jobs()

    def describe(self, job_id: JobId) -> JobView:
        """
        Return a job as it stands.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self._store.describe(job_id)

    def checkpoint(self, job_id: JobId, checkpoint_id: int) -> CheckpointRecord | None:
        """Return a checkpoint of a job, ``None`` if it has no row."""
        return self._store.checkpoint(job_id, checkpoint_id)

    def checkpoints(self, job_id: JobId, page: CheckpointPage) -> tuple[CheckpointRecord, ...]:
        """Return a page of the checkpoints of a job, newest first."""
        return self._store.checkpoints(job_id, page)

    def confirm_discards(self, request: ConfirmDiscards) -> None:
        """Record that the bytes of ended checkpoints are gone; any other checkpoint is left as it is."""
        with self._store.transaction(request.job_id) as tx:
            rows = (tx.checkpoint(checkpoint_id) for checkpoint_id in request.checkpoint_ids)
            for operator_id in sorted({row.operator_id for row in rows if row is not None}):
                transitions.mark_discarded(tx, operator_id, request.checkpoint_ids)

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """
        End the attempts whose drivers died without a word and return which they were.

        Such an attempt said nothing for longer than any token of it lives, and no retry will come: its run is over, or there
        never was one. Two calls have to find it silent, because a clock may be days ahead when the first one looks.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        view = self._store.describe(job_id)
        # Asked before the transaction: nothing foreign may run while a row is locked.
        silent = [a for a in view.attempts if is_silent(view, a, view.read_at) and self._is_given_up(view, a)]
        if not silent:
            return ()
        # The job's row keeps the time of this transition, by which the next call judges.
        abandoned = {_ref(a) for a in silent if is_silent(view, a, view.job.seen_at)}
        with self._store.transaction(job_id) as tx:
            now = tx.view()
            closed = [a for a in now.attempts if _ref(a) in abandoned and is_silent(now, a, tx.now)]
            for attempt in closed:
                transitions.close_abandoned(tx, attempt)
        return tuple(_ref(a) for a in closed)

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """
        Take away from restore what does not stay after the end of its run and return which checkpoints it was.

        Only a job that is named after a run ends with it, and each operator of it only when its newest attempt has ended.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        view = self._store.describe(job_id)
        # Asked before the transaction: nothing foreign may run while a row is locked.
        asked = ((attempt, self._runs.ended_as(attempt.owner)) for attempt in ended_attempts(view))
        ended = {a.operator_id: status_of(a, status) for a, status in asked if status is not None}
        going = {o for o in ended if any(c.properties.discard_on(ended[o]) for c in view.of_operator(o))}
        if not going:
            return ()
        with self._store.transaction(job_id) as tx:
            now = tx.view()
            # An attempt that was registered since then may have come because the run was cleared.
            same = {o.operator_id for o in now.operators if o in view.operators}
            return discard_ended(tx, {o: ended[o] for o in going & same})

    def forget(self, request: ForgetRows) -> ForgettableRows:
        """
        Remove the rows of what ended so long ago and return which they were.

        Each batch is a transaction of its own, so that the checkpoints of stages that run go on in between.

        :raises InvalidConfigurationError: for less than a day, within which a message may come a second time.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        age = _age(request.age_seconds)
        operators = [o.operator_id for o in self._store.describe(request.job_id).operators]
        if request.dry_run:
            return self._forgettable(request.job_id, operators, age)
        batches = (rows for each in operators for rows in self._forget_batches(request.job_id, each, age))
        return sum(batches, ForgettableRows())

    def _forgettable(self, job_id: JobId, operators: list[OperatorId], age: timedelta) -> ForgettableRows:
        rows = ForgettableRows()
        with suppress(_NothingIsChanged), self._store.transaction(job_id) as tx:
            rows = sum((forgettable_rows(tx, each, tx.now - age, limit=None) for each in operators), ForgettableRows())
            # A commit would note the time of this look as that of the job's last transition.
            raise _NothingIsChanged
        return rows

    def refusal(self, request: RetireJob) -> Removal:
        """Say whether :meth:`retire` would be done, and change nothing."""
        view = self._store.describe(request.job_id)
        return Removal(kept_because=(*self._unasked(view, request), *_too_early(view, request)))

    def retire(self, request: RetireJob) -> Removal:
        """End every checkpoint of a job that has no open attempt; a later attempt starts afresh."""
        # Asked before the transaction: nothing foreign may run while a row is locked.
        refusal = self.refusal(request)
        if refusal.kept_because:
            return refusal
        with self._store.transaction(request.job_id) as tx:
            view = tx.view()
            reasons = _too_early(view, request)
            if not reasons:
                _end_all(tx, view)
        return Removal(kept_because=reasons)

    def remove(self, request: RetireJob) -> Removal:
        """Remove the rows of a retired job whose bytes are gone; a later attempt gets the epoch after its last."""
        refusal = self.refusal(request)
        if refusal.kept_because:
            return refusal
        with self._store.transaction(request.job_id) as tx:
            view = tx.view()
            unfinished = () if is_emptied(view) else ("bytes of it are not yet confirmed to be gone",)
            reasons = (*_too_early(view, request), *unfinished)
            if not reasons:
                tx.remove_job()
                log.info("Job %s removed", view.job.name)
        return Removal(kept_because=reasons)

    def drop_tokens(self, request: DropTokens) -> int:
        """
        Remove the tokens that have been of no use for so long and return how many there were.

        :raises InvalidConfigurationError: for less than a day.
        """
        return self._tokens.drop_ended(self._clock.now() - _age(request.age_seconds), dry_run=request.dry_run)

    def _forget_batches(self, job_id: JobId, operator_id: OperatorId, age: timedelta) -> Iterator[ForgettableRows]:
        while True:
            with self._store.transaction(job_id) as tx:
                rows = forgettable_rows(tx, operator_id, tx.now - age)
                remove_rows(tx, rows)
            if rows:
                yield rows
            if len(rows) < BATCH_SIZE:
                return
            # Writers of SQLite do not queue; without a pause one of them could wait until the last batch.
            self._pause(_BETWEEN_BATCHES_SECONDS)

    def _is_given_up(self, view: JobView, attempt: AttemptRecord) -> bool:
        owner = attempt.owner
        is_over = is_test_job(view.job.name) or not owner.airflow or self._runs.ended_as(owner) is not None
        return is_over and not self._tokens.is_open(_ref(attempt), self._clock.now())

    def _unasked(self, view: JobView, request: RetireJob) -> tuple[str, ...]:
        if request.is_named or is_test_job(view.job.name):
            return ()
        owners = owners_of_run(view)
        if not owners:
            return ("it has a name of its own, so that only a call which names it removes it",)
        if not request.idle_seconds >= SHORTEST_AGE.total_seconds():
            return ("it was not asked to be idle for a day or more, and only a call which names it removes it earlier",)
        open_runs = sorted({owner.run_id for owner in owners if self._runs.ended_as(owner) is None})
        return tuple(f"run {run_id!r} is not over" for run_id in open_runs)


def each_job(job_ids: Iterable[JobId], work: Callable[[JobId], Report]) -> Iterator[Report]:
    """
    Run ``work`` on each job and yield its reports, skipping jobs that were removed meanwhile.

    :param job_ids: Jobs, in the order in which they are worked on.
    :param work: Called once for each job; may raise :class:`CheckpointNotFoundError`.
    """
    for job_id in job_ids:
        try:
            report = work(job_id)
        except CheckpointNotFoundError:
            # The job was removed after the list was read.
            continue
        yield report


def _age(seconds: float) -> timedelta:
    shortest, longest = SHORTEST_AGE.total_seconds(), _LONGEST_AGE.total_seconds()
    require("age_seconds", seconds, lambda age: shortest <= age <= longest, "from a day to a hundred years")
    return timedelta(seconds=seconds)


def _too_early(view: JobView, request: RetireJob) -> tuple[str, ...]:
    since = last_active(view)
    is_idle = (view.read_at - since).total_seconds() >= request.idle_seconds
    busy = () if is_idle else (f"its last attempt was at {since.isoformat(timespec='seconds')}",)
    # Whoever names a job gives up what its sink has prepared and not committed.
    uncommitted = () if request.is_named else open_commits(view)
    return (*reasons_to_keep(view), *uncommitted, *busy)


def _ref(attempt: AttemptRecord) -> AttemptRef:
    return AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch)


def _end_all(tx: JobTransaction, view: JobView) -> None:
    # A store of completed checkpoints that finds a handle wants to read what it points to.
    tx.remove_state_handles()
    for operator in view.operators:
        transitions.abort_pending(tx, operator.operator_id, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
        for checkpoint in tx.open_checkpoints(operator.operator_id):
            _subsume(tx, checkpoint)
        _open_generation(tx, operator)


def _subsume(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    if checkpoint.is_restorable:
        subsumed = replace(checkpoint, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
        tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)


def _open_generation(tx: JobTransaction, operator: OperatorRecord) -> None:
    # An attempt that comes before the rows are gone must start afresh, not fail for want of what was given up on purpose.
    if tx.has_completed(operator.operator_id, operator.generation):
        tx.save_operator(replace(operator, generation=operator.generation + 1))
