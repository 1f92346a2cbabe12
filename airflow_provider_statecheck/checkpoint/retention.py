"""
Retention of rows: which rows of a job may be deleted, and when a whole job may.

A batch is one transaction, small enough that a checkpoint of a running stage waits only a moment for the job's row.
Maintenance removes batches until nothing is left; an attempt that finishes removes a few of its own operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job, job_name
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView

DEFAULT_AGE = timedelta(days=30)
"""How long the rows of what has ended stay."""
BATCH_SIZE = 500
"""How many rows of each kind one transaction removes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedCheckpoints:
    """The checkpoints of one operator that ended before a time and that nothing needs any more."""

    operator_id: OperatorId
    before: datetime
    running_epoch: int | None = None
    """The epoch of the open attempt, whose checkpoints stay; ``None`` if no attempt is open."""
    witness_generation: int | None = None
    """
    The generation whose completed checkpoints stay because no restorable one is left.

    Their rows tell that there was state; without them the next attempt would silently start empty.
    """

    def includes(self, checkpoint: CheckpointRecord) -> bool:
        """Tell whether a checkpoint is one of them."""
        is_witness = checkpoint.completed_at is not None and checkpoint.generation == self.witness_generation
        is_mine = checkpoint.operator_id == self.operator_id and checkpoint.epoch != self.running_epoch
        return is_mine and not is_witness and _is_gone(checkpoint, self.before)


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempts:
    """The attempts of one operator that ended before a time and that newer ones followed."""

    operator_id: OperatorId
    before: datetime
    kept_epochs: frozenset[int]
    """The newest attempt, and the last one of each run whose checkpoints are retained."""
    storage_base: str | None = None
    """Only attempts that wrote below this checkpoint directory; ``None`` for all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettableRows:
    """Rows of one job that nothing needs any more."""

    checkpoint_ids: tuple[int, ...] = ()
    """Ended checkpoints whose bytes are gone."""
    attempts: tuple[AttemptRef, ...] = ()
    """Ended attempts that newer ones followed."""
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


def forgettable_rows(
    tx: JobTransaction,
    operator_id: OperatorId,
    before: datetime,
    *,
    limit: int | None = BATCH_SIZE,
    storage_base: str | None = None,
) -> ForgettableRows:
    """
    Return rows of an operator that ended before a time and are needed neither by a restore nor by a running attempt.

    :param tx: The transition in which they are to be removed.
    :param operator_id: The operator.
    :param before: The time.
    :param limit: How many rows of each kind at most; ``None`` for all.
    :param storage_base: Only attempts that wrote below this checkpoint directory; ``None`` for all. The row of an attempt
        tells garbage collection where to look, so one that wrote elsewhere stays until bytes there were collected.
    """
    operator = tx.operator(operator_id)
    if operator is None:
        return ForgettableRows()
    return ForgettableRows(
        checkpoint_ids=_checkpoint_ids(tx, operator, before, limit),
        attempts=_attempts(tx, operator, before, limit, storage_base),
        requests=tx.ended_requests(operator_id, before, limit),
    )


def remove_rows(tx: JobTransaction, rows: ForgettableRows) -> None:
    """Remove the rows that :func:`forgettable_rows` returned in the same transition."""
    tx.remove_checkpoints(rows.checkpoint_ids)
    tx.remove_attempts(rows.attempts)
    tx.remove_requests(rows.requests)


def _checkpoint_ids(
    tx: JobTransaction, operator: OperatorRecord, before: datetime, limit: int | None
) -> tuple[int, ...]:
    attempt = _open_attempt(tx, operator)
    has_restorable = bool(transitions.restorable(tx, operator))
    ended = EndedCheckpoints(
        operator_id=operator.operator_id,
        before=before,
        running_epoch=None if attempt is None else attempt.epoch,
        witness_generation=None if has_restorable else operator.generation,
    )
    # Snapshots of another owner are never discarded; their rows go when they have ended.
    undiscarded = [c.checkpoint_id for c in tx.open_checkpoints(operator.operator_id) if ended.includes(c)]
    return tuple(sorted((*undiscarded, *tx.discarded_checkpoints(ended, limit))))


def _attempts(
    tx: JobTransaction, operator: OperatorRecord, before: datetime, limit: int | None, storage_base: str | None
) -> tuple[AttemptRef, ...]:
    # The rows tell where an operator may have left bytes, which garbage collection skips while it has an open attempt.
    if _open_attempt(tx, operator) is not None:
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
    # The attempt of the run at which the state stands tells a retry from a clear; after a rewind that is an earlier run.
    runs = {c.run_key for c in transitions.restorable(tx, operator)}
    last = (tx.last_attempt_of_run(operator.operator_id, run) for run in sorted(runs))
    return [attempt.epoch for attempt in last if attempt is not None]


def _open_attempt(tx: JobTransaction, operator: OperatorRecord) -> AttemptRecord | None:
    attempt = tx.attempt(operator.operator_id, operator.epoch)
    return attempt if attempt is not None and attempt.status is AttemptStatus.RUNNING else None


def _is_gone(checkpoint: CheckpointRecord, before: datetime) -> bool:
    # A snapshot whose bytes stay, because they have another owner, is over when it ends.
    gone_at = checkpoint.discarded_at or (None if checkpoint.awaits_discard else checkpoint.ended_at)
    return checkpoint.has_ended and gone_at is not None and gone_at < before


FENCED_GRACE = timedelta(days=1)
"""How long a driver may live on that was fenced; what it writes after the rows are gone, nobody would find."""
SILENCE = timedelta(days=4)
"""After how long an attempt is given up that said nothing: more than any token of it lives."""


def reasons_to_keep(view: JobView) -> tuple[str, ...]:
    """Return why a job cannot be removed as a whole, nothing if it can."""
    lately = view.read_at - FENCED_GRACE
    reasons = []
    for operator in view.operators:
        for attempt in _attempts_of(view, operator):
            which = f"attempt {attempt.epoch} of operator {operator.uid!r} ({attempt.owner.label})"
            if attempt.status is AttemptStatus.RUNNING:
                reasons.append(f"{which} has not ended")
            elif attempt.status is AttemptStatus.FENCED and attempt.ended_at is not None and attempt.ended_at > lately:
                reasons.append(f"{which} was replaced less than a day ago and may live on")
    return tuple(reasons)


def open_commits(view: JobView) -> tuple[str, ...]:
    """Return what sinks have still to commit of a job, each as a reason to keep it."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return tuple(
        f"the sink of operator {uids[c.operator_id]!r} has not committed checkpoint {c.checkpoint_id}"
        for c in view.checkpoints
        if c.awaits_commit
    )


def is_silent(view: JobView, attempt: AttemptRecord, now: datetime) -> bool:
    """Tell whether an attempt has not ended and said nothing for so long that it cannot speak any more."""
    if attempt.status is not AttemptStatus.RUNNING:
        return False
    mine = [c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch]
    said = (t for c in mine for t in (c.triggered_at, c.completed_at) if t is not None)
    return max((attempt.registered_at, *said)) < now - SILENCE


def last_active(view: JobView) -> datetime:
    """Return when the job last had an attempt; what maintenance did to its rows does not count."""
    return max((a.ended_at or a.registered_at for a in view.attempts), default=view.job.created_at)


def owners_of_run(view: JobView) -> tuple[AttemptOwner, ...]:
    """Return who worked on a job that is named after one Dag run, nothing for a job with a name of its own."""
    owners = tuple(attempt.owner for attempt in view.attempts)
    return owners if owners and all(is_named_after_run(view.job.name, owner) for owner in owners) else ()


def is_named_after_run(name: str, owner: AttemptOwner) -> bool:
    """Tell whether a job has the name of the Dag run that an attempt belongs to, and so ends with it."""
    dag_id = dict(owner.airflow).get("dag_id")
    return dag_id is not None and name == job_name(f"{dag_id}/{owner.run_key}", is_test=is_test_job(name))


def is_emptied(view: JobView) -> bool:
    """Tell whether every checkpoint of a job has ended and bytes wait for nobody; savepoints are the user's and stay."""
    return all(_is_over(c) and not c.awaits_discard for c in view.checkpoints)


def _is_over(checkpoint: CheckpointRecord) -> bool:
    is_users = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.COMPLETED
    return is_users or checkpoint.has_ended


def _attempts_of(view: JobView, operator: OperatorRecord) -> tuple[AttemptRecord, ...]:
    return tuple(a for a in view.attempts if a.operator_id == operator.operator_id)
