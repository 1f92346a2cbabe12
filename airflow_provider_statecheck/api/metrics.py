"""
The coordinator's metrics, sent where its transitions are committed and nowhere else, so that none is counted twice.

::

    statecheck.checkpoint.triggered       counter
    statecheck.checkpoint.completed       counter
    statecheck.checkpoint.failed          counter; every checkpoint that was aborted, unless because its attempt ended
    statecheck.checkpoint.expired         counter; those of them whose time was over
    statecheck.checkpoint.duration        timing, milliseconds that a completed one took, without the increment before it
    statecheck.checkpoint.size_bytes      gauge, what a restore from it may read
    statecheck.restore.count              counter; attempts that start from a checkpoint
    statecheck.restore.fresh              counter; attempts that start from nothing
    statecheck.restore.failed             counter; checkpoints that a restore could not use
    statecheck.attempt.fenced             counter; attempts that a newer one replaced while they ran
    statecheck.job.last_completed_age     gauge, seconds since the last completed checkpoint when the next one begins

Tags are ``dag_id`` and ``task_id``.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.observer import AttemptChange, Change, CheckpointChange
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
)

log = logging.getLogger(__name__)


class AirflowMetrics:
    """
    Sends metrics by Airflow's own means.

    :param stats: Airflow's ``Stats`` interface of this process: ``incr``, ``gauge`` and ``timing``.
    """

    def __init__(self, stats: Any) -> None:
        self._stats = stats

    def changed(self, job: JobRecord, change: Change) -> None:
        """Send what a change is worth."""
        try:
            if isinstance(change, AttemptChange):
                self._attempt(change)
            else:
                self._checkpoint(change)
        except Exception as error:
            # A metrics backend that is down must not fail a checkpoint that is already committed.
            log.warning("Metrics of job %s could not be sent: %s", job.name, error)

    def _attempt(self, change: AttemptChange) -> None:
        attempt, tags = change.attempt, _tags(change.attempt)
        if change.before is None:
            self._stats.incr(f"statecheck.restore.{'fresh' if attempt.restored_from is None else 'count'}", tags=tags)
        elif attempt.status is AttemptStatus.FENCED:
            self._stats.incr("statecheck.attempt.fenced", tags=tags)

    def _checkpoint(self, change: CheckpointChange) -> None:
        checkpoint, tags = change.checkpoint, _tags(change.attempt)
        if change.before is None:
            self._triggered(change, tags)
        elif change.before is CheckpointStatus.PENDING and checkpoint.status is CheckpointStatus.COMPLETED:
            self._completed(checkpoint, tags)
        elif change.before is CheckpointStatus.PENDING:
            self._failed(checkpoint, tags)
        elif checkpoint.status is CheckpointStatus.COMPLETED and checkpoint.unusable_reason is not None:
            self._stats.incr("statecheck.restore.failed", tags=tags)

    def _triggered(self, change: CheckpointChange, tags: dict[str, str]) -> None:
        self._stats.incr("statecheck.checkpoint.triggered", tags=tags)
        if change.last_completed_at is not None:
            age = change.checkpoint.triggered_at - change.last_completed_at
            self._stats.gauge("statecheck.job.last_completed_age", age.total_seconds(), tags=tags)

    def _completed(self, checkpoint: CheckpointRecord, tags: dict[str, str]) -> None:
        self._stats.incr("statecheck.checkpoint.completed", tags=tags)
        self._stats.gauge("statecheck.checkpoint.size_bytes", checkpoint.full_size_bytes, tags=tags)
        if checkpoint.completed_at is not None:
            milliseconds = (checkpoint.completed_at - checkpoint.triggered_at).total_seconds() * 1000
            self._stats.timing("statecheck.checkpoint.duration", milliseconds, tags=tags)

    def _failed(self, checkpoint: CheckpointRecord, tags: dict[str, str]) -> None:
        if checkpoint.failure_reason == CheckpointFailureReason.ATTEMPT_ENDED.value:
            return
        self._stats.incr("statecheck.checkpoint.failed", tags=tags)
        if checkpoint.failure_reason == CheckpointFailureReason.CHECKPOINT_EXPIRED.value:
            self._stats.incr("statecheck.checkpoint.expired", tags=tags)


def airflow_metrics() -> AirflowMetrics:
    """Return the metrics of a process that may use Airflow's database."""
    from airflow.observability import stats

    return AirflowMetrics(stats)


def _tags(attempt: AttemptRecord | None) -> dict[str, str]:
    coordinates = {} if attempt is None else dict(attempt.owner.airflow)
    return {name: coordinates[name] for name in ("dag_id", "task_id") if name in coordinates}
