"""
Which rows of an operator may be forgotten, and their removal batch by batch.

A batch is one transaction, small enough that a checkpoint of a running stage waits only a moment for the job's row.
Maintenance removes batches until nothing is left; an attempt that finishes removes a few of its own operator.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction

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
