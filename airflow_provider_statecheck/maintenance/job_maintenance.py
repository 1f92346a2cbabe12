"""
Maintenance of a job's rows: abandoned attempts, ended runs, retention and removal.

A job is removed in three steps: ``retire`` ends its checkpoints, garbage collection deletes their files and confirms
this, and ``remove`` deletes the rows. An interrupted removal is resumed by the next call. The epochs, generations and
checkpoint ids of a removed job are never reused.

``settle_run`` applies the retention of checkpoints when a run ends, like Flink's shutdown of the completed checkpoint
store. It applies to jobs that are named after a run; a job with an explicit name continues across runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from airflow_provider_statecheck.checkpoint import start_decision, transitions
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import is_silent, owners_of_run
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.job_removal import (
    awaited_savepoints,
    begin_removal,
    complete_removal,
    is_emptied,
    last_active,
    obstacles_to_removal,
    open_commits,
    reasons_to_keep,
    refuse_removal,
)
from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    Clock,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.row_removal import ForgettableRows, OldRows, remove_rows
from airflow_provider_statecheck.checkpoint.store import (
    JobStore,
    JobTransaction,
    JobView,
    StoredJobs,
    rolled_back,
)
from airflow_provider_statecheck.exceptions import (
    AccessDeniedError,
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    EnvironmentNotReadyError,
    LocationNotAllowedError,
    StateCheckError,
)
from airflow_provider_statecheck.storage.large_files import one_large_at_a_time

log = logging.getLogger(__name__)

SHORTEST_AGE = timedelta(days=1)
"""Minimum age of rows before deletion; a repeated message within this time still finds the row that identifies it."""
_BETWEEN_BATCHES_SECONDS = 0.05
_LONGEST_AGE = timedelta(days=36500)

Report = TypeVar("Report")
Result = TypeVar("Result")
SIDE_BY_SIDE = 8
"""
Number of jobs that are collected or pruned at the same time, because most of the time they wait for the storage.

It is less than the connections that Airflow's pool opens by default.
"""
_GIVEN_UP = 3
"""Number of jobs one after the other for which the coordinator does not answer, before the others are not tried."""
_OF_ALL_JOBS = (AccessDeniedError, EnvironmentNotReadyError)
"""Errors that say nothing about a job, unless their ``job_id`` names it."""


class RunDirectory(Protocol):
    """Source of the state of Dag runs."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Return how the run of an attempt ended, ``None`` if it has not ended; a deleted run counts as cancelled."""


class UnknownRuns:
    """Run directory without runs; no run counts as ended."""

    def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
        """Return ``None`` for every run."""
        return None


class EndedTokens(Protocol):
    """Tokens of the API."""

    def is_open(self, attempt: AttemptRef, now: datetime) -> bool:
        """Return whether a valid token for an attempt exists."""

    def drop_ended(self, before: datetime, *, dry_run: bool = False) -> int:
        """Delete the tokens that expired, or whose attempt ended, before a time, and return their number."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireJob:
    """Request to end all checkpoints of a job, or to delete the rows of a retired job."""

    job_id: JobId
    idle_seconds: float = 0.0
    """Minimum time in seconds since the last attempt."""
    is_named: bool = False
    """Whether a user named this job in a command."""
    request_key: str | None = None
    """Key of the open request with which a user, who had the permission, asked to remove this job on its page."""

    @property
    def is_by_user(self) -> bool:
        """
        Whether a user selected this job.

        Other jobs must belong to a test run or be named after a run that ended.
        """
        return self.is_named or self.request_key is not None


class JobMaintenance(StoredJobs):
    """
    Maintenance of jobs. Every call is idempotent, and none affects rows that a running attempt needs.

    A task of a maintenance Dag makes the same calls over HTTP.

    :param runs: Source of the state of Dag runs.
    :param clock: Clock for the expiry of tokens.
    :param pause: Function that waits the given number of seconds between two batches of rows.
    """

    def __init__(
        self,
        store: JobStore,
        runs: RunDirectory,
        tokens: EndedTokens,
        clock: Clock,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        super().__init__(store)
        self._runs = runs
        self._tokens = tokens
        self._clock = clock
        self._pause = pause

    def confirm_discards(self, job_id: JobId, checkpoint_ids: tuple[int, ...]) -> None:
        """Record that the files of ended checkpoints were deleted; other checkpoints are not changed."""
        with self._store.transaction(job_id) as tx:
            rows = (tx.checkpoint(checkpoint_id) for checkpoint_id in checkpoint_ids)
            for operator_id in sorted({row.operator_id for row in rows if row is not None}):
                transitions.mark_discarded(tx, operator_id, checkpoint_ids)

    def settle(self, job_id: JobId, *, dry_run: bool = False) -> JobView:
        """
        Close abandoned attempts, discard what is not retained after the end of its run, and return the job.

        The rows are read once, and again only after a change.

        :param dry_run: Whether to only return the job as it would be.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        view = self._store.describe(job_id)
        if dry_run:
            return self._would_settle(view)
        if self._close_abandoned(view) is not None:
            view = self._store.describe(job_id)
        return view if self._settle_run(view) is None else self._store.describe(job_id)

    def _would_settle(self, view: JobView) -> JobView:
        job_id, silent = view.job.job_id, self._silent(view)
        closed = view
        if silent:
            with rolled_back(self._store, job_id) as tx:
                _close_silent(tx, view, silent)
                closed = tx.view()
        found = self._end_of_run(closed)
        if found is None:
            return closed
        with rolled_back(self._store, job_id) as tx:
            _close_silent(tx, view, silent)
            _end_run(tx, closed, found)
            return tx.view()

    def close_abandoned(self, job_id: JobId) -> tuple[AttemptRef, ...]:
        """
        Close the attempts whose drivers died without closing them, and return these attempts.

        An attempt is abandoned if it was silent for longer than the lifetime of its tokens and its run has ended or it
        has no run. Two calls must find it silent, because the clock of the first call may be ahead by days.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self._close_abandoned(self._store.describe(job_id)) or ()

    def _close_abandoned(self, view: JobView) -> tuple[AttemptRef, ...] | None:
        """Return the closed attempts, or ``None`` if no row needed a transaction."""
        silent = self._silent(view)
        if not silent:
            return None
        with self._store.transaction(view.job.job_id) as tx:
            return _close_silent(tx, view, silent)

    def _silent(self, view: JobView) -> list[AttemptRecord]:
        # Airflow is queried before the transaction, as foreign code must not run while a row is locked.
        return [a for a in view.attempts if is_silent(view, a, view.read_at) and self._is_given_up(view, a)]

    def settle_run(self, job_id: JobId) -> tuple[int, ...]:
        """
        Discard the checkpoints that are not retained after the end of their run, and return their ids.

        Applies to jobs that are named after a run, and to operators whose newest attempt has ended. While a savepoint
        of the whole job is in progress, all checkpoints are retained, and a later call discards them. In any job, the
        requests for a savepoint at the end of a stage fail that an attempt of an ended run has left open.

        :raises CheckpointNotFoundError: if there is no such job.
        """
        return self._settle_run(self._store.describe(job_id)) or ()

    def _settle_run(self, view: JobView) -> tuple[int, ...] | None:
        """Return the discarded checkpoints, or ``None`` if no row needed a transaction."""
        found = self._end_of_run(view)
        if found is None:
            return None
        with self._store.transaction(view.job.job_id) as tx:
            return _end_run(tx, view, found)

    def _end_of_run(self, view: JobView) -> _EndOfRun | None:
        # Airflow is queried before the transaction, as foreign code must not run while a row is locked.
        results = ((attempt, self._runs.ended_as(attempt.owner)) for attempt in ended_attempts(view))
        ended = {a.operator_id: status_of(a, status) for a, status in results if status is not None}
        affected = {o for o in ended if any(c.properties.discard_on(ended[o]) for c in view.of_operator(o))}
        unserved = frozenset(self._unserved_requests(view))
        if not affected and not unserved:
            return None
        return _EndOfRun({operator_id: ended[operator_id] for operator_id in affected}, unserved)

    def forget(self, job_id: JobId, age_seconds: float, *, dry_run: bool = False) -> ForgettableRows:
        """
        Delete the rows of checkpoints and attempts that ended before the given age, and return their ids.

        Each batch is a separate transaction, which lets running stages checkpoint between batches.

        :param age_seconds: Minimum age in seconds, at least a day.
        :param dry_run: Whether to only return the ids.
        :raises InvalidConfigurationError: if the age is less than a day.
        :raises CheckpointNotFoundError: if there is no such job.
        """
        age = _age(age_seconds)
        operators = [o.operator_id for o in self._store.describe(job_id).operators]
        if dry_run:
            return self._forgettable(job_id, operators, age)
        batches = (rows for each in operators for rows in self._forget_batches(job_id, each, age))
        return sum(batches, ForgettableRows())

    def _forgettable(self, job_id: JobId, operators: list[OperatorId], age: timedelta) -> ForgettableRows:
        with rolled_back(self._store, job_id) as tx:
            found = (OldRows(each, limit=None).batch(tx, tx.now - age) for each in operators)
            return sum(found, ForgettableRows())

    def refusal(self, request: RetireJob) -> tuple[str, ...]:
        """Return why a job cannot be retired, without changing anything."""
        view = self._store.describe(request.job_id)
        return (*self._out_of_scope(view, request), *_in_use(view, request))

    def retire(self, request: RetireJob) -> tuple[str, ...]:
        """
        End every checkpoint of a job that has no open attempt; a later attempt starts without state.

        :return: Reasons for a refusal; empty if the job is retired.
        """
        return self._unless_in_use(request, _retire)

    def remove(self, request: RetireJob) -> tuple[str, ...]:
        """
        Delete the rows of a retired job whose files were deleted; a later attempt continues its epochs.

        :return: Reasons for a refusal; empty if the rows are deleted.
        """
        return self._unless_in_use(request, _remove)

    def drop_tokens(self, age_seconds: float, *, dry_run: bool = False) -> int:
        """
        Delete the tokens that ended before the given age, and return their number.

        :param age_seconds: Minimum age in seconds, at least a day.
        :param dry_run: Whether to only count the tokens.
        :raises InvalidConfigurationError: if the age is less than a day.
        """
        return self._tokens.drop_ended(self._clock.now() - _age(age_seconds), dry_run=dry_run)

    def _unless_in_use(
        self, request: RetireJob, step: Callable[[JobTransaction, JobView], tuple[str, ...]]
    ) -> tuple[str, ...]:
        # Airflow is queried before the transaction, as foreign code must not run while a row is locked.
        refusal = self.refusal(request)
        if refusal and request.request_key is None:
            return refusal
        with self._store.transaction(request.job_id) as tx:
            view = tx.view()
            reasons = _in_use(view, request)
            if reasons:
                refuse_removal(tx, view, request.request_key, reasons)
            return reasons or step(tx, view)

    def _forget_batches(self, job_id: JobId, operator_id: OperatorId, age: timedelta) -> Iterator[ForgettableRows]:
        old = OldRows(operator_id)
        while True:
            began = time.monotonic()
            with self._store.transaction(job_id) as tx:
                rows = old.batch(tx, tx.now - age)
                remove_rows(tx, rows)
                tx.remove_actions(tx.now - age)
            if rows:
                yield rows
            if old.is_complete:
                return
            # SQLite does not queue writers; without a pause, another writer could wait until the last batch.
            self._pause(max(_BETWEEN_BATCHES_SECONDS, time.monotonic() - began))

    def _unserved_requests(self, view: JobView) -> Iterator[str]:
        # An attempt requests the savepoint at its end under its own key.
        asking = {a.attempt_key: a.owner for a in view.attempts if a.owner.task is not None}
        keys = (r.request_key for o in view.operators for r in view.savepoints_asked_of(o.operator_id))
        return (key for key in keys if key in asking and self._runs.ended_as(asking[key]) is not None)

    def _is_given_up(self, view: JobView, attempt: AttemptRecord) -> bool:
        owner = attempt.owner
        has_ended = is_test_job(view.job.name) or owner.task is None or self._runs.ended_as(owner) is not None
        return has_ended and not self._tokens.is_open(AttemptRef.of(attempt), self._clock.now())

    def _out_of_scope(self, view: JobView, request: RetireJob) -> tuple[str, ...]:
        if request.is_by_user or is_test_job(view.job.name):
            return ()
        owners = owners_of_run(view)
        if not owners:
            return ("it has an explicit name, and the call does not name it",)
        if not request.idle_seconds >= SHORTEST_AGE.total_seconds():
            return ("the requested idle time is less than a day, and the call does not name it",)
        open_runs = sorted({owner.run_id for owner in owners if self._runs.ended_as(owner) is None})
        return tuple(f"run {run_id!r} has not ended" for run_id in open_runs)


@dataclass(frozen=True, slots=True)
class _EndOfRun:
    """What the end of a run changes in a job."""

    ended: Mapping[OperatorId, JobStatus]
    """How the runs ended of operators that discard checkpoints then."""
    unserved: frozenset[str]
    """Keys of open requests for a savepoint that no attempt serves any more."""


def _end_run(tx: JobTransaction, view: JobView, found: _EndOfRun) -> tuple[int, ...]:
    now = tx.view()
    # A changed operator has a new attempt: its run may have been cleared.
    unchanged = {o.operator_id for o in now.operators if o in view.operators}
    for operator_id in sorted(unchanged) if found.unserved else ():
        transitions.end_unserved_requests(tx, operator_id, found.unserved)
    ended = {operator_id: status for operator_id, status in found.ended.items() if operator_id in unchanged}
    return () if awaited_savepoints(now) else discard_ended(tx, ended)


def _close_silent(tx: JobTransaction, view: JobView, silent: list[AttemptRecord]) -> tuple[AttemptRef, ...]:
    """Close the attempts of a view that were silent in the call before too, and are silent still."""
    # The transaction updates seen_at in the job's row, which the next call compares with.
    abandoned = {AttemptRef.of(a) for a in silent if is_silent(view, a, view.job.seen_at)}
    now = tx.view()
    closed = [a for a in now.attempts if AttemptRef.of(a) in abandoned and is_silent(now, a, tx.now)]
    for attempt in closed:
        transitions.close_abandoned(tx, attempt)
    return tuple(AttemptRef.of(a) for a in closed)


def each_job(
    job_ids: Iterable[JobId],
    work: Callable[[JobId], Report],
    failed: Callable[..., Report],
    *,
    side_by_side: int = 1,
) -> Iterator[Report]:
    """
    Call ``work`` for each job and yield its reports in order, without jobs that were removed in the meantime.

    No job stops the others, whatever its rows and files contain: the report of one that fails says why.

    :param job_ids: Jobs, in order of processing.
    :param failed: Makes a report of the id of a job and its ``problems``, or the ``unreachable`` storage or
        coordinator.
    :param side_by_side: Number of jobs that are worked on at the same time, each in a thread.
    :raises AccessDeniedError: if the caller may not maintain jobs; a refusal that concerns one job is in the report of
        that job.
    :raises EnvironmentNotReadyError: if the tables are missing.
    """
    in_a_row, has_ended = 0, False

    def one(job_id: JobId) -> Report | None:
        nonlocal in_a_row, has_ended
        if has_ended:
            return None
        if in_a_row >= _GIVEN_UP:
            return failed(job=job_id, unreachable=["not tried, because the coordinator did not answer"])
        try:
            report = report_of(job_id, work, failed)
        except Exception:
            # An error that says nothing about a job is the same for the others.
            has_ended = True
            raise
        in_a_row = 0 if report is None or not report.is_unanswered else in_a_row + 1
        return None if report is None else report.of_job

    yield from (report for report in _in_threads(one, job_ids, side_by_side) if report is not None)


def _in_threads(work: Callable[[JobId], Result], job_ids: Iterable[JobId], count: int) -> Iterator[Result]:
    with ThreadPoolExecutor(count, thread_name_prefix="statecheck-job") as pool:
        results = [pool.submit(copy_context().run, work, job_id) for job_id in job_ids]
        try:
            for result in results:
                yield result.result()
        finally:
            for result in results:
                result.cancel()


@dataclass(frozen=True, slots=True)
class _Reported(Generic[Report]):
    of_job: Report
    is_unanswered: bool = False
    """Whether the coordinator did not answer."""


def report_of(
    job_id: JobId, work: Callable[[JobId], Report], failed: Callable[..., Report]
) -> _Reported[Report] | None:
    """Return the report of one job as :func:`each_job`, or ``None`` if the job was removed."""
    try:
        with one_large_at_a_time():
            return _Reported(work(job_id))
    except StateCheckError as error:
        is_of_job = vars(error).get("job_id") == job_id
        if isinstance(error, _OF_ALL_JOBS) and not is_of_job:
            raise
        if isinstance(error, CheckpointNotFoundError) and is_of_job:
            return None
        # Nothing is known about files that were not opened.
        is_unopened = error.retryable or isinstance(error, LocationNotAllowedError)
        reason = {"unreachable" if is_unopened else "problems": [masked(str(error))]}
        return _Reported(failed(job=job_id, **reason), isinstance(error, CoordinatorUnavailableError))
    except Exception as error:
        log.exception("Job %s could not be worked on", job_id)
        return _Reported(failed(job=job_id, problems=[f"{type(error).__name__}: {masked(str(error))}"]))


def _age(seconds: float) -> timedelta:
    shortest, longest = SHORTEST_AGE.total_seconds(), _LONGEST_AGE.total_seconds()
    require("age_seconds", seconds, lambda age: shortest <= age <= longest, "from a day to a hundred years")
    return timedelta(seconds=seconds)


def _in_use(view: JobView, request: RetireJob) -> tuple[str, ...]:
    since = last_active(view)
    is_idle = (view.read_at - since).total_seconds() >= request.idle_seconds
    busy = () if is_idle else (f"its last attempt was at {since.isoformat(timespec='seconds')}",)
    # A user who selects a job discards its savepoint in progress, and the output that its sink prepared and did not
    # commit.
    unfinished = () if request.is_by_user else (*open_commits(view), *awaited_savepoints(view))
    requested = () if request.request_key is None else obstacles_to_removal(view, request.request_key)
    return (*(reasons_to_keep(view) or requested), *unfinished, *busy)


def _remove(tx: JobTransaction, view: JobView) -> tuple[str, ...]:
    if not is_emptied(view):
        # The request of a user stays open, and the next call resumes the removal.
        return ("the deletion of its files is not confirmed",)
    tx.remove_job()
    complete_removal(tx, view)
    log.info("Job %s removed", view.job.name)
    return ()


def _retire(tx: JobTransaction, view: JobView) -> tuple[str, ...]:
    for each in view.operators:
        operator = start_decision.withdraw(tx, each, "the checkpoints of the job are deleted")
        transitions.abort_pending(tx, operator.operator_id, CheckpointFailureReason.CHECKPOINT_SUBSUMED)
        for checkpoint in tx.open_checkpoints(operator.operator_id):
            if checkpoint.is_restorable:
                transitions.mark_subsumed(tx, checkpoint)
        _open_generation(tx, operator)
    begin_removal(tx, view)
    return ()


def _open_generation(tx: JobTransaction, operator: OperatorRecord) -> None:
    # An attempt registered before the rows are deleted must start without state instead of failing to restore.
    if tx.has_completed(operator.operator_id, operator.generation):
        tx.save_operator(replace(operator, generation=operator.generation + 1))


def ended_attempts(view: JobView) -> tuple[AttemptRecord, ...]:
    """
    Return the newest attempt of each operator with checkpoints to settle, if it ended and its job is named after a run.
    """
    if is_test_job(view.job.name) or not owners_of_run(view):
        return ()
    # The coordinator of aligned checkpoints shuts down their store at the end of its job.
    newest = (view.current_attempt(o) for o in view.stages if _settled_by_run(view, o))
    return tuple(a for a in newest if a is not None and not a.is_running)


def status_of(attempt: AttemptRecord, run: JobStatus) -> JobStatus:
    """
    Return the final status of an operator in a run.

    :param attempt: Newest attempt of the operator.
    :param run: Final status of the run, which may be successful although this attempt failed.
    """
    is_finished = attempt.status is AttemptStatus.FINISHED
    return JobStatus.FAILED if run is JobStatus.FINISHED and not is_finished else run


def discard_ended(tx: JobTransaction, ended: Mapping[OperatorId, JobStatus]) -> tuple[int, ...]:
    """
    Subsume the checkpoints that are not retained after the end of their run; garbage collection deletes their files.

    :param ended: Final status of each operator.
    :return: Ids of the subsumed checkpoints.
    """
    view = tx.view()
    discarded: list[int] = []
    for operator in view.operators:
        if operator.operator_id in ended:
            discarded += _end_operator(tx, operator, _settled_by_run(view, operator), ended[operator.operator_id])
    return tuple(discarded)


def _end_operator(
    tx: JobTransaction, operator: OperatorRecord, checkpoints: tuple[CheckpointRecord, ...], status: JobStatus
) -> list[int]:
    discarded = [c for c in checkpoints if c.properties.discard_on(status)]
    for checkpoint in discarded:
        transitions.mark_subsumed(tx, checkpoint)
    if checkpoints[-1:] == tuple(discarded[-1:]):
        # A later attempt must start without state instead of failing to restore.
        tx.save_operator(replace(operator, generation=operator.generation + 1))
    for checkpoint in checkpoints if discarded else ():
        verb = "discarding" if checkpoint in discarded else "retaining"
        log.info(
            "Job %s operator %s: run %s, %s %s", tx.job.name, operator.uid, status.value, verb, checkpoint.location
        )
    return [c.checkpoint_id for c in discarded]


def _settled_by_run(view: JobView, operator: OperatorRecord) -> tuple[CheckpointRecord, ...]:
    checkpoints = view.of_operator(operator.operator_id)
    if any(c.awaits_commit for c in checkpoints):
        # The next attempt commits the output that the sink prepared, if the run is cleared.
        return ()
    # Those from before a fresh start that has completed no checkpoint end with the run, too.
    return tuple(c for c in checkpoints if c.is_restorable)
