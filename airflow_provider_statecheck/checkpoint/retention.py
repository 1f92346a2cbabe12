"""
Retention of the rows of a job, owners of snapshots, and the removal of a whole job.

Rows are removed in batches of one transaction each, which block the checkpoints of a running stage only briefly. Maintenance
removes all removable rows, and an attempt that ends removes some rows of its operator.

A user requests the removal of a whole job on its page. The request is an open action of the job. The next run of ``prune``
carries it out in the steps of every removal: the checkpoints end and the request is running, their files are deleted, and the
rows are removed together with the completion of the request. A job that has started an attempt since the request is kept,
because the user did not see that attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job, job_name
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.printable import counted
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import (
    KNOWN_RUNS,
    EndedAttempts,
    EndedCheckpoints,
    JobTransaction,
    JobView,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, ConcurrentAttemptError

log = logging.getLogger(__name__)

DEFAULT_AGE = timedelta(days=30)
"""Default retention of the rows of ended attempts, checkpoints and requests."""
BATCH_SIZE = 500
"""Maximum number of rows of each kind that one transaction removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettableRows:
    """Removable rows of one job."""

    checkpoint_ids: tuple[int, ...] = ()
    """Ids of ended checkpoints whose files are deleted."""
    attempts: tuple[AttemptRef, ...] = ()
    """Ended attempts with newer successors."""
    requests: tuple[str, ...] = ()
    """Keys of ended requests."""

    def __len__(self) -> int:
        return len(self.checkpoint_ids) + len(self.attempts) + len(self.requests)

    def __add__(self, other: ForgettableRows) -> ForgettableRows:
        return ForgettableRows(
            checkpoint_ids=self.checkpoint_ids + other.checkpoint_ids,
            attempts=self.attempts + other.attempts,
            requests=self.requests + other.requests,
        )


@dataclass(slots=True)
class OldRows:
    """
    The removable rows of an operator, in batches; a transaction of its own removes each batch.

    The last checkpoint of each run in the state stays. Finding these takes a look at all checkpoints of the operator. The first
    batch finds them, and a later one only asks whether those of its runs are still in the state: then no earlier checkpoint of
    their runs is the last one.

    :param limit: Maximum number of rows of each kind in a batch; ``None`` for all.
    :param storage_base: Checkpoint directory of the attempts; ``None`` for any. Garbage collection finds directories in the
        rows of attempts, so an attempt with another directory is retained until that directory has been collected.
    """

    operator_id: OperatorId
    limit: int | None = BATCH_SIZE
    storage_base: str | None = None
    is_complete: bool = False
    """Whether there is no further batch."""
    _generation: int = -1
    _last_of_runs: dict[str, int] = field(default_factory=dict)
    """The last checkpoint of each run in the state of this generation."""
    _skipped: int = 0
    """Number of these that the batches have found so far, and that remain."""

    def batch(self, tx: JobTransaction, before: datetime) -> ForgettableRows:
        """Return rows that ended before a time and that neither a restore nor a running attempt needs."""
        operator = tx.operator(self.operator_id)
        if operator is None:
            self.is_complete = True
            return ForgettableRows()
        if operator.generation != self._generation:
            self._find_last(tx, operator.generation)
        ended = _ended_checkpoints(tx, operator, before)
        discarded = tx.discarded_checkpoints(ended, self.limit, self._skipped)
        if not self._are_last(tx, discarded):
            self._find_last(tx, operator.generation)
            discarded = tx.discarded_checkpoints(ended, self.limit, self._skipped)
        attempts = _attempts(tx, operator, before, self.limit, self.storage_base)
        requests = tx.ended_requests(self.operator_id, before, self.limit)
        self.is_complete = self.limit is None or max(map(len, (discarded, attempts, requests))) < self.limit
        # Their rows prove that a run has advanced the state, and must not do so again when a user clears it.
        proofs = frozenset(self._last_of_runs.values())
        self._skipped += len(proofs.intersection(discarded))
        # Unclaimed snapshots are never discarded, so their rows are removed after their end.
        undiscarded = {c.checkpoint_id for c in tx.open_checkpoints(self.operator_id) if ended.includes(c)}
        checkpoint_ids = tuple(sorted(undiscarded.union(discarded) - proofs))
        return ForgettableRows(checkpoint_ids=checkpoint_ids, attempts=attempts, requests=requests)

    def _find_last(self, tx: JobTransaction, generation: int) -> None:
        self._generation, self._skipped = generation, 0
        self._last_of_runs = tx.last_checkpoints_of_runs(self.operator_id, generation)

    def _are_last(self, tx: JobTransaction, checkpoint_ids: tuple[int, ...]) -> bool:
        runs = tx.runs_of(checkpoint_ids)
        if len(self._last_of_runs) >= KNOWN_RUNS and not runs <= self._last_of_runs.keys():
            # A run that is not among the newest ones may be, after others were taken out of the state.
            runs = frozenset(self._last_of_runs)
        last = frozenset(self._last_of_runs[run] for run in runs & self._last_of_runs.keys())
        return tx.are_in_state(self._generation, last)


def remove_rows(tx: JobTransaction, rows: ForgettableRows) -> None:
    """Remove the rows of a batch of :class:`OldRows` in the same transaction."""
    tx.remove_checkpoints(rows.checkpoint_ids)
    tx.remove_attempts(rows.attempts)
    tx.remove_requests(rows.requests)


def _ended_checkpoints(tx: JobTransaction, operator: OperatorRecord, before: datetime) -> EndedCheckpoints:
    attempt = transitions.open_attempt(tx, operator)
    has_restorable = bool(transitions.restorable(tx, operator))
    return EndedCheckpoints(
        operator_id=operator.operator_id,
        before=before,
        running_epoch=None if attempt is None else attempt.epoch,
        witness_generation=None if has_restorable else operator.generation,
    )


def _attempts(
    tx: JobTransaction, operator: OperatorRecord, before: datetime, limit: int | None, storage_base: str | None
) -> tuple[AttemptRef, ...]:
    # Garbage collection skips operators with an open attempt, and later needs these rows to find their directories.
    if transitions.open_attempt(tx, operator) is not None:
        return ()
    ended = EndedAttempts(
        operator_id=operator.operator_id,
        before=before,
        kept_epochs=frozenset((operator.epoch, *_last_epochs_of_runs(tx, operator))),
        storage_base=storage_base,
    )
    epochs = tx.ended_attempts(ended, limit)
    return tuple(AttemptRef(job_id=tx.job.job_id, operator_id=operator.operator_id, epoch=e) for e in epochs)


def _last_epochs_of_runs(tx: JobTransaction, operator: OperatorRecord) -> list[int]:
    # The last attempt of a run distinguishes a retry from a clear. After a rewind, this may be a run before the newest one.
    runs = {c.run_key for c in transitions.restorable(tx, operator)}
    attempts = (tx.last_attempt_of_run(operator.operator_id, run) for run in sorted(runs))
    return [attempt.epoch for attempt in attempts if attempt is not None]


FENCED_GRACE = timedelta(days=1)
"""Time for which the driver of a fenced attempt may keep running; garbage collection would not find its later files."""
SILENCE = timedelta(days=4)
"""Time without calls after which an attempt counts as abandoned; longer than the validity of its tokens."""


def reasons_to_keep(view: JobView) -> tuple[str, ...]:
    """Return the reasons why a job cannot be removed as a whole; empty if it can."""
    grace_start = view.read_at - FENCED_GRACE
    reasons = []
    for operator in view.operators:
        for attempt in view.attempts_of(operator.operator_id):
            name = f"attempt {attempt.epoch} of operator {operator.uid!r} ({attempt.owner.label})"
            if attempt.is_running:
                reasons.append(f"{name} has not ended")
            elif attempt.status is AttemptStatus.FENCED and attempt.ended_at and attempt.ended_at > grace_start:
                reasons.append(f"{name} was replaced less than a day ago and may still be running")
    return tuple(reasons)


def open_commits(view: JobView) -> tuple[str, ...]:
    """Return the open commits of a job, each as a reason not to remove the job."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return tuple(
        f"the sink of operator {uids[c.operator_id]!r} has not committed checkpoint {c.checkpoint_id}"
        for c in view.checkpoints
        if c.awaits_commit
    )


def awaited_savepoints(view: JobView) -> tuple[str, ...]:
    """
    Return the savepoints of a whole job that are in progress, each as a reason to keep the checkpoints of its stages.

    A savepoint that has expired is not in progress, although its request is open until the next call fails it.
    """
    expiries = {c.checkpoint_id: c.expires_at for c in view.checkpoints}
    requested = view.requests_of_job
    return tuple(
        f"the savepoint of the job that was requested at {r.requested_at.isoformat(timespec='seconds')} is in progress"
        for r in requested
        if r.properties.is_savepoint
        # A request that is not triggered ends in no other way.
        and expiries.get(r.checkpoint_id or 0, r.requested_at + transitions.SAVEPOINT_TIMEOUT) > view.read_at
    )


def is_silent(view: JobView, attempt: AttemptRecord, now: datetime) -> bool:
    """Return whether a running attempt has not called for so long that its tokens have expired."""
    return silent_since(attempt, view.of_operator(attempt.operator_id), now) is not None


def silent_since(attempt: AttemptRecord, checkpoints: Iterable[CheckpointRecord], now: datetime) -> datetime | None:
    """Return the time of the last call of a running attempt whose tokens have expired; ``None`` for other attempts."""
    if not attempt.is_running:
        return None
    own = (c for c in checkpoints if c.epoch == attempt.epoch)
    calls = (t for c in own for t in (c.triggered_at, c.completed_at) if t is not None)
    last = max((attempt.registered_at, *calls))
    return last if last < now - SILENCE else None


def last_active(view: JobView) -> datetime:
    """Return the time at which the last attempt of a job was active, regardless of maintenance and savepoints of the job."""
    return max((a.ended_at or a.registered_at for a in view.attempts_of_stages), default=view.job.created_at)


def owners_of_run(view: JobView) -> tuple[AttemptOwner, ...]:
    """Return the owners of the attempts of a job whose stages belong to the Dag run of its name; empty for any other job."""
    owners = tuple(attempt.owner for attempt in view.attempts_of_stages)
    return owners if owners and all(is_named_after_run(view.job.name, owner) for owner in owners) else ()


def is_named_after_run(name: str, owner: AttemptOwner) -> bool:
    """Return whether a job is named after the Dag run of an attempt, and therefore ends with the run."""
    dag_id = owner.dag_id
    return dag_id is not None and name == job_name(f"{dag_id}/{owner.run_key}", is_test=is_test_job(name))


def is_emptied(view: JobView) -> bool:
    """Return whether all checkpoints of a job, except the user's savepoints, have ended and their files are deleted."""
    return all(_is_removable(c) and not c.awaits_discard for c in view.checkpoints)


def _is_removable(checkpoint: CheckpointRecord) -> bool:
    is_of_user = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.COMPLETED
    return is_of_user or checkpoint.has_ended


class Owner(StrEnum):
    """Owner of a snapshot, who deletes it."""

    JOB = "job"
    """The job, which deletes the snapshot after it was subsumed."""
    USER = "user"
    """The user who requested the savepoint."""
    OTHER = "other"
    """The previous owner of a snapshot that was restored without a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """Owner of a snapshot, and whether its directory may be deleted by hand."""

    owner: Owner
    is_safe_to_delete: bool
    """Whether no job can need the directory; never true for a savepoint, which any job may restore."""
    because: str
    """Reason, for display."""


def custody_of(view: JobView, checkpoint: CheckpointRecord) -> Custody:
    """
    Return the owner of a snapshot, and whether its directory may be deleted by hand.

    The rows of a job do not contain claims of other jobs; only ``dispose`` checks them.
    """
    owner = _owner_of(checkpoint)
    reason = _reason_to_keep_files(view, checkpoint, owner)
    if reason is not None:
        return Custody(owner=owner, is_safe_to_delete=False, because=reason)
    is_deleted = checkpoint.discarded_at is not None
    because = "its files are deleted" if is_deleted else "it is no longer needed; gc deletes it"
    return Custody(owner=owner, is_safe_to_delete=True, because=because)


def _owner_of(checkpoint: CheckpointRecord) -> Owner:
    if checkpoint.properties.unclaimed:
        return Owner.OTHER
    return Owner.USER if checkpoint.properties.is_savepoint else Owner.JOB


def _reason_to_keep_files(view: JobView, checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    if owner is Owner.OTHER:
        return "it belongs to another owner, and only the owner may delete it"
    if checkpoint.discarded_at is not None:
        return None
    if checkpoint.is_in_progress:
        return "it is being written"
    if _is_pinned(view, checkpoint):
        return "a running attempt was restored from it"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return _reason_if_retained(owner)
    if _is_protected(view, checkpoint):
        return "it was rolled back, and nothing newer has replaced it yet"
    return _reason_if_shared(checkpoint, owner)


def _reason_if_retained(owner: Owner) -> str:
    if owner is Owner.USER:
        return "a job may be restored from it; dispose deletes it, unless another job claimed it"
    return "the job may be restored from it"


def _reason_if_shared(checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    own = f"/{checkpoint.job_id}/chk-{checkpoint.checkpoint_id}"
    # The attempt continues after an aborted checkpoint with the state that its tasks have written. Others are claimed savepoints.
    is_shared = checkpoint.status is CheckpointStatus.ABORTED or not checkpoint.location.endswith(own)
    because = "later checkpoints may reference its files; gc deletes it when none does"
    return because if is_shared and owner is Owner.JOB else None


def _is_pinned(view: JobView, checkpoint: CheckpointRecord) -> bool:
    running = (a for a in view.attempts if a.is_running)
    return any((a.operator_id, a.restored_from) == (checkpoint.operator_id, checkpoint.checkpoint_id) for a in running)


def _is_protected(view: JobView, checkpoint: CheckpointRecord) -> bool:
    operator = view.operator(checkpoint.operator_id)
    if operator is None:
        return False
    rows = view.of_operator(operator.operator_id)
    protected = transitions.protected_checkpoints(rows, operator.generation, view.current_attempt(operator))
    return checkpoint.checkpoint_id in protected


def open_removal(view: JobView) -> ActionRecord | None:
    """Return the open request to remove a job; a job has at most one."""
    return next((each for each in view.actions if each.action is JobAction.PRUNE and each.status.is_open), None)


def require_removable(view: JobView) -> None:
    """
    Require a job that can be removed.

    :raises ConcurrentAttemptError: An attempt is running or may be running.
    """
    reasons = reasons_to_keep(view)
    if reasons:
        raise ConcurrentAttemptError(
            f"Expected job {view.job.name!r} without an attempt that may be running, found that {'; '.join(reasons)}; remove "
            f"the job after its tasks have ended."
        )


def request_removal(tx: JobTransaction, action: ActionRecord) -> None:
    """
    Save a request to remove a job. An earlier open one ends.

    :raises ConcurrentAttemptError: An attempt is running or may be running.
    """
    view = tx.view()
    require_removable(view)
    earlier = open_removal(view)
    if earlier is not None:
        _end_removal(tx, earlier, RequestStatus.FAILED, f"replaced by the request of {action.requested_by}")
    tx.save_action(action)


def waiting_removal(view: JobView) -> ActionRecord:
    """
    Return the request that waits to be carried out.

    :raises CheckpointNotFoundError: There is none, or its removal has begun.
    """
    action = open_removal(view)
    if action is None or action.status is not RequestStatus.QUEUED:
        raise CheckpointNotFoundError(
            f"Expected a waiting request to remove job {view.job.name!r}, found {'none' if action is None else 'one that has begun'}"
            f"; it has ended, or its checkpoints have."
        )
    return action


def withdraw_removal(tx: JobTransaction, user: str) -> None:
    """
    End the request that waits to be carried out; the job is kept.

    :raises CheckpointNotFoundError: There is none, or its removal has begun.
    """
    _end_removal(tx, waiting_removal(tx.view()), RequestStatus.FAILED, f"withdrawn by {user}")


def obstacles_to_removal(view: JobView, request_key: str) -> tuple[str, ...]:
    """Return the reasons why a request is not carried out; empty if it is."""
    action = open_removal(view)
    if action is None or action.request_key != request_key:
        return ("the request to remove it has ended",)
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    # The times of a job never go back. At the same time, the order is unknown.
    started = (a for a in view.attempts if a.registered_at >= action.requested_at)
    return tuple(
        f"attempt {a.epoch} of operator {uids[a.operator_id]!r} ({a.owner.label}) has started since the request"
        for a in started
    )


def begin_removal(tx: JobTransaction, view: JobView) -> None:
    """Mark the open request, if there is one, in the transaction that ends the checkpoints of the job."""
    action = open_removal(view)
    if action is not None:
        begun = replace(action, status=RequestStatus.RUNNING, message="the files of its checkpoints are being deleted")
        tx.save_action(begun)


def refuse_removal(tx: JobTransaction, view: JobView, request_key: str | None, reasons: tuple[str, ...]) -> None:
    """End a request that is not carried out, with the reasons; no effect without a key, or if the request has ended."""
    action = open_removal(view)
    if action is not None and action.request_key == request_key:
        _end_removal(tx, action, RequestStatus.FAILED, f"the job is kept: {'; '.join(reasons)}")


def complete_removal(tx: JobTransaction, view: JobView) -> None:
    """
    End the open request, if there is one, in the transaction that has removed the job for any reason.

    :param view: Job before its removal.
    """
    action = open_removal(view)
    if action is not None:
        _end_removal(
            tx,
            action,
            RequestStatus.COMPLETED,
            f"the job was removed with {counted(len(view.attempts), 'attempt')}",
        )


def _end_removal(tx: JobTransaction, action: ActionRecord, status: RequestStatus, message: str) -> None:
    transitions.end_action(tx, action, status, message)
    log.info("Job %s: the removal that %s requested %s, %s", tx.job.name, action.requested_by, status.value, message)
