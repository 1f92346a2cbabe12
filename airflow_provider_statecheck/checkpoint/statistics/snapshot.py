"""The statistics of an operator at one moment, to be looked at: Flink's ``CheckpointStatsSnapshot``."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.statistics.entries import CheckpointEntry, RestoredEntry
from airflow_provider_statecheck.checkpoint.statistics.operator_statistics import (
    HISTORY_SIZE,
    EndedCounts,
    OperatorStatistics,
)
from airflow_provider_statecheck.checkpoint.statistics.summary import StatsSummary

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
