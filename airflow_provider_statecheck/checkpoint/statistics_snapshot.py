"""Snapshots of checkpoint statistics, ownership of snapshots, and Flink's ``CheckpointStatsTracker``."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.aligned.rows import CoordinatorRows, ReportFailure
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, root_cause
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
    RowsVersion,
)
from airflow_provider_statecheck.checkpoint.statistics import (
    HISTORY_SIZE,
    CheckpointEntry,
    EndedCounts,
    OperatorStatistics,
    RestoredEntry,
    StatsSummary,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError

_IN_PROGRESS = (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsCounts:
    """Numbers of checkpoints by status."""

    restored: int = 0
    total: int = 0
    in_progress: int = 0
    completed: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStatsSnapshot:
    """Immutable checkpoint statistics of one operator."""

    uid: str
    counts: CheckpointStatsCounts
    """Checkpoints and savepoints, including those that failed before they had an id."""
    checkpoints: CheckpointStatsCounts
    savepoints: CheckpointStatsCounts
    failures: tuple[tuple[str, int], ...]
    """Number of failures by reason."""
    state_size: StatsSummary
    """Bytes that completed checkpoints added."""
    full_size: StatsSummary
    """Bytes that a restore of completed checkpoints reads."""
    duration: StatsSummary
    """Durations of completed checkpoints in milliseconds, without the increment before the start."""
    history: tuple[CheckpointEntry, ...]
    """Latest checkpoints including those in progress, newest first."""
    latest_completed: CheckpointEntry | None
    latest_savepoint: CheckpointEntry | None
    latest_failed: CheckpointEntry | None
    latest_restored: RestoredEntry | None
    awaiting_discard: int
    """Number of ended checkpoints whose files are not deleted yet."""


def snapshot_of(
    view: JobView, operator: OperatorRecord, *, history_size: int = HISTORY_SIZE
) -> CheckpointStatsSnapshot:
    """
    Return the statistics of one operator.

    :param history_size: Maximum length of the history, at most ``HISTORY_SIZE``.
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
    owner = _owner(checkpoint)
    reason = _reason_to_keep(view, checkpoint, owner)
    if reason is not None:
        return Custody(owner=owner, is_safe_to_delete=False, because=reason)
    is_deleted = checkpoint.discarded_at is not None
    because = "its files are deleted" if is_deleted else "it is no longer needed; gc deletes it"
    return Custody(owner=owner, is_safe_to_delete=True, because=because)


def _owner(checkpoint: CheckpointRecord) -> Owner:
    if checkpoint.properties.unclaimed:
        return Owner.OTHER
    return Owner.USER if checkpoint.properties.is_savepoint else Owner.JOB


def _reason_to_keep(view: JobView, checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    if owner is Owner.OTHER:
        return "it belongs to another owner, and only the owner may delete it"
    if checkpoint.discarded_at is not None:
        return None
    if checkpoint.status in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING):
        return "it is being written"
    if _is_pinned(view, checkpoint):
        return "a running attempt was restored from it"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return _reason_if_retained(owner)
    return _reason_if_claimed(checkpoint, owner)


def _reason_if_retained(owner: Owner) -> str:
    if owner is Owner.USER:
        return "a job may be restored from it; dispose deletes it, unless another job claimed it"
    return "the job may be restored from it"


def _reason_if_claimed(checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    own = f"/{checkpoint.job_id}/chk-{checkpoint.checkpoint_id}"
    is_claimed = owner is Owner.JOB and not checkpoint.location.endswith(own)
    return "later checkpoints may reference its files; gc deletes it when none does" if is_claimed else None


def _is_pinned(view: JobView, checkpoint: CheckpointRecord) -> bool:
    running = (a for a in view.attempts if a.status is AttemptStatus.RUNNING)
    return any((a.operator_id, a.restored_from) == (checkpoint.operator_id, checkpoint.checkpoint_id) for a in running)


class CheckpointStatsTracker:
    """
    Tracker of the checkpoint statistics of an operator, or of aligned checkpoints.

    The coordinator counts completed and aborted checkpoints with their rows. Reports add details that the rows do not
    contain, and are idempotent except for failures without an id.

    :param history_size: Maximum length of the history, from 0 to ``HISTORY_SIZE``.
    :raises InvalidConfigurationError: for a history size out of range.
    """

    def __init__(self, rows: CoordinatorRows, leader: AttemptRef, *, history_size: int = HISTORY_SIZE) -> None:
        require("history_size", history_size, lambda n: 0 <= n <= HISTORY_SIZE, f"from 0 to {HISTORY_SIZE}")
        self._rows = rows
        self._leader = leader
        self._history_size = history_size
        self._latest: tuple[RowsVersion, CheckpointStatsSnapshot] | None = None

    def report_failed_checkpoint(self, checkpoint_id: int, error: CheckpointException) -> None:
        """Record the root cause of a failed checkpoint, which counts as one without an id if it has no row."""
        cause = None if error.__cause__ is None else root_cause(error)
        self._rows.report_failure(
            ReportFailure(leader=self._leader, reason=error.reason, checkpoint_id=checkpoint_id, cause=cause)
        )

    def report_failed_checkpoint_without_in_progress(self, error: CheckpointException) -> None:
        """Count a checkpoint that failed before it had an id; each call counts."""
        self._rows.report_failure(ReportFailure(leader=self._leader, reason=error.reason))

    def create_snapshot(self) -> CheckpointStatsSnapshot:
        """
        Return the current statistics, as the same object while the job does not change.

        :raises CheckpointNotFoundError: if the job or the operator does not exist.
        """
        view = self._rows.describe(self._leader.job_id)
        if self._latest is None or self._latest[0] != view.job.rows_version:
            operator_id = self._leader.operator_id
            operator = next((o for o in view.operators if o.operator_id == operator_id), None)
            if operator is None:
                raise CheckpointNotFoundError(
                    f"Expected operator {operator_id} in job {view.job.name!r}, found none; use the id of an operator of the "
                    f"job."
                )
            snapshot = snapshot_of(view, operator, history_size=self._history_size)
            self._latest = (view.job.rows_version, snapshot)
        return self._latest[1]
