"""
Removal of the old rows of a job.

Rows are removed in batches of one transaction each, which block the checkpoints of a running stage only briefly.
Maintenance removes all removable rows, and an attempt that ends removes some rows of its operator.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import OperatorRecord
from airflow_provider_statecheck.checkpoint.store import KNOWN_RUNS, EndedAttempts, EndedCheckpoints, JobTransaction

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

    The last checkpoint of each run in the state stays. Finding these takes a look at all checkpoints of the operator.
    The first batch finds them, and a later one only asks whether those of its runs are still in the state: then no
    earlier checkpoint of their runs is the last one.

    :param limit: Maximum number of rows of each kind in a batch; ``None`` for all.
    :param storage_base: Checkpoint directory of the attempts; ``None`` for any. Garbage collection finds directories in
        the rows of attempts, so an attempt with another directory is retained until that directory has been collected.
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
        # Unclaimed savepoints are never discarded, so their rows are removed after their end.
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
    # The last attempt of a run distinguishes a retry from a clear. After a rewind, this may be a run before the newest
    # one.
    runs = {c.run_key for c in transitions.restorable(tx, operator)}
    attempts = (tx.last_attempt_of_run(operator.operator_id, run) for run in sorted(runs))
    return [attempt.epoch for attempt in attempts if attempt is not None]
