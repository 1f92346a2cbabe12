"""Snapshots of checkpoint statistics and the in-process tracker: Flink's ``CheckpointStatsTracker``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint import statistics
from airflow_provider_statecheck.checkpoint.aligned.failure_manager import root_cause
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.messages import require
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.statistics import (
    HISTORY_SIZE,
    CheckpointEntry,
    EndedCounts,
    OperatorStatistics,
    RestoredEntry,
    StatsSummary,
    truncated_cause,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

_IN_PROGRESS = (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsCounts:
    """How many checkpoints there were, and what became of them."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsSnapshot:
    """What was counted of one operator; it does not change any more."""

    uid: str
    counts: CheckpointStatsCounts
    """Of all kinds, with those that failed before they had an id."""
    checkpoints: CheckpointStatsCounts
    savepoints: CheckpointStatsCounts
    failures: tuple[tuple[str, int], ...]
    """How many failed for which reason."""
    state_size: StatsSummary
    """Bytes that were new in a completed one."""
    full_size: StatsSummary
    """Bytes that a restore of a completed one reads."""
    duration: StatsSummary
    """Milliseconds that a completed one took, without the increment before it."""
    history: tuple[CheckpointEntry, ...]
    """Newest first, with those in progress."""
    latest_completed: CheckpointEntry | None
    latest_savepoint: CheckpointEntry | None
    latest_failed: CheckpointEntry | None
    latest_restored: RestoredEntry | None
    awaiting_discard: int
    """How many ended ones have bytes that nobody has deleted yet."""


def snapshots_of(view: JobView, *, history_size: int = HISTORY_SIZE) -> tuple[CheckpointStatsSnapshot, ...]:
    """
    Return the statistics of each operator of a job.

    :param history_size: How many checkpoints to tell one by one, no more than are remembered.
    """
    return tuple(snapshot_of(view, operator, history_size=history_size) for operator in view.operators)


def snapshot_of(
    view: JobView, operator: OperatorRecord, *, history_size: int = HISTORY_SIZE
) -> CheckpointStatsSnapshot:
    """
    Return the statistics of one operator.

    :param history_size: How many checkpoints to tell one by one, no more than are remembered.
    """
    record = next((s for s in view.statistics if s.operator_id == operator.operator_id), None)
    known, rows = OperatorStatistics.of(record), view.of_operator(operator.operator_id)
    pending = [row for row in rows if row.status in _IN_PROGRESS and not row.is_adoption]
    checkpoints = _counts(known.checkpoints, sum(not row.properties.is_savepoint for row in pending))
    savepoints = _counts(known.savepoints, sum(row.properties.is_savepoint for row in pending))
    return CheckpointStatsSnapshot(
        uid=operator.uid,
        counts=_sum(checkpoints, savepoints, known.rejected),
        checkpoints=checkpoints,
        savepoints=savepoints,
        failures=known.failures,
        state_size=known.state_size,
        full_size=known.full_size,
        duration=known.duration,
        history=_history(view, known, pending)[: min(history_size, HISTORY_SIZE)],
        latest_completed=known.latest_completed,
        latest_savepoint=known.latest_savepoint,
        latest_failed=known.latest_failed,
        latest_restored=known.latest_restored,
        awaiting_discard=sum(row.awaits_discard for row in rows),
    )


def _counts(ended: EndedCounts, in_progress: int) -> CheckpointStatsCounts:
    return CheckpointStatsCounts(
        restored=ended.restored,
        total=ended.completed + ended.failed + in_progress,
        in_progress=in_progress,
        completed=ended.completed,
        failed=ended.failed,
    )


def _sum(checkpoints: CheckpointStatsCounts, savepoints: CheckpointStatsCounts, rejected: int) -> CheckpointStatsCounts:
    return CheckpointStatsCounts(
        restored=checkpoints.restored + savepoints.restored,
        total=checkpoints.total + savepoints.total + rejected,
        in_progress=checkpoints.in_progress + savepoints.in_progress,
        completed=checkpoints.completed + savepoints.completed,
        failed=checkpoints.failed + savepoints.failed + rejected,
    )


def _history(view: JobView, known: OperatorStatistics, pending: list[CheckpointRecord]) -> tuple[CheckpointEntry, ...]:
    attempts = {(a.operator_id, a.epoch): a for a in view.attempts}
    started = (CheckpointEntry.of(row, attempts.get((row.operator_id, row.epoch))) for row in pending)
    return tuple(sorted((*started, *known.history), key=lambda entry: entry.checkpoint_id, reverse=True))


class Owner(StrEnum):
    """Who deletes a snapshot."""

    JOB = "job"
    """The job itself, when it needs it no more."""
    USER = "user"
    """Whoever asked for it."""
    OTHER = "other"
    """Whose it was before this job was restored from it without a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """Whose a snapshot is and what follows from that."""

    owner: Owner
    is_safe_to_delete: bool
    """Whether nothing can need its directory any more; a savepoint is never that, for any job may begin from it."""
    because: str


def custody_of(view: JobView, checkpoint: CheckpointRecord) -> Custody:
    """
    Tell whose a snapshot is, and whether its directory may be deleted by hand.

    A claim of another job is not among the rows of this one, so that only ``dispose`` can tell it.

    :param view: The job's rows.
    :param checkpoint: One of them.
    """
    owner = _owner(checkpoint)
    needed = _needed_because(view, checkpoint, owner)
    if needed is not None:
        return Custody(owner=owner, is_safe_to_delete=False, because=needed)
    is_gone = checkpoint.discarded_at is not None
    because = "its bytes are gone" if is_gone else "nothing needs it any more; gc deletes it"
    return Custody(owner=owner, is_safe_to_delete=True, because=because)


def _owner(checkpoint: CheckpointRecord) -> Owner:
    if checkpoint.properties.unclaimed:
        return Owner.OTHER
    return Owner.USER if checkpoint.properties.is_savepoint else Owner.JOB


def _needed_because(view: JobView, checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    if owner is Owner.OTHER:
        return "it belongs to somebody else, who alone may delete it"
    if checkpoint.discarded_at is not None:
        return _kept_because(checkpoint)
    if checkpoint.status in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING):
        return "it is being written"
    if _is_pinned(view, checkpoint):
        return "an attempt that runs was restored from it"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return _retained_because(owner)
    return _shared_because(checkpoint, owner)


def _retained_because(owner: Owner) -> str:
    if owner is Owner.USER:
        return "a job may begin from it; dispose deletes it, unless another job claimed it"
    return "a restore may start from it"


def _kept_because(checkpoint: CheckpointRecord) -> str | None:
    # An aligned one whose end is in doubt is taken from garbage collection by the very transition that aborts it.
    is_in_doubt = checkpoint.status is CheckpointStatus.ABORTED and checkpoint.discarded_at == checkpoint.ended_at
    return "it may have been completed; its bytes were left on purpose" if is_in_doubt else None


def _shared_because(checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    own = f"/{checkpoint.job_id}/chk-{checkpoint.checkpoint_id}"
    is_claimed = owner is Owner.JOB and not checkpoint.location.endswith(own)
    return "later checkpoints may name files of it; gc deletes it when none does" if is_claimed else None


def _is_pinned(view: JobView, checkpoint: CheckpointRecord) -> bool:
    running = (a for a in view.attempts if a.status is AttemptStatus.RUNNING)
    return any((a.operator_id, a.restored_from) == (checkpoint.operator_id, checkpoint.checkpoint_id) for a in running)


class CheckpointStatsTracker:
    """
    The statistics of one operator, or of the checkpoints of several.

    Completions and aborts are counted with their rows; a report adds what the row does not tell. Each report may be
    repeated.

    :param store: The rows.
    :param job_id: The job.
    :param operator_id: The operator.
    :param history_size: How many checkpoints a snapshot tells one by one, from 0 to as many as are remembered.
    :raises InvalidConfigurationError: for another number.
    """

    def __init__(
        self, store: JobStore, job_id: JobId, operator_id: OperatorId, *, history_size: int = HISTORY_SIZE
    ) -> None:
        require("history_size", history_size, lambda n: 0 <= n <= HISTORY_SIZE, f"from 0 to {HISTORY_SIZE}")
        self._store = store
        self._job_id = job_id
        self._operator_id = operator_id
        self._history_size = history_size
        self._latest: tuple[int, CheckpointStatsSnapshot] | None = None

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Remember the root cause of a failed checkpoint; one of which nobody knows counts as one without id."""
        with self._store.transaction(self._job_id) as tx:
            self._count_once(tx, checkpoint_id, error)
            if error.__cause__ is not None:
                self._tell_cause(tx, checkpoint_id, error)

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id; unlike all others, each report counts."""
        with self._store.transaction(self._job_id) as tx:
            self._reject(tx, error)

    def create_snapshot(self) -> CheckpointStatsSnapshot:
        """
        Return the statistics as they stand; the same object as long as the job does not change.

        :raises CheckpointNotFoundError: if there is no such job or operator.
        """
        view = self._store.describe(self._job_id)
        if self._latest is None or self._latest[0] != view.job.version:
            operator = next((o for o in view.operators if o.operator_id == self._operator_id), None)
            if operator is None:
                raise CheckpointNotFoundError(
                    f"Job {view.job.name!r} has no operator {self._operator_id}; name one that it has."
                )
            snapshot = snapshot_of(view, operator, history_size=self._history_size)
            self._latest = (view.job.version, snapshot)
        return self._latest[1]

    def _count_once(self, tx: JobTransaction, checkpoint_id: int, error: CheckpointException) -> None:
        if statistics.load(tx, self._operator_id).has_counted(checkpoint_id):
            return
        row = tx.checkpoint(checkpoint_id)
        if row is None or row.operator_id != self._operator_id:
            self._reject(tx, error)
        elif row.status is CheckpointStatus.ABORTED:
            statistics.ended(tx, row)

    def _tell_cause(self, tx: JobTransaction, checkpoint_id: int, error: CheckpointException) -> None:
        known = statistics.load(tx, self._operator_id)
        changed = known.annotated(checkpoint_id, failure_cause=truncated_cause(root_cause(error)))
        if changed != known:
            statistics.save(tx, self._operator_id, changed)

    def _reject(self, tx: JobTransaction, error: CheckpointException) -> None:
        known = statistics.load(tx, self._operator_id)
        statistics.save(tx, self._operator_id, known.rejected_once(error.reason.value))
