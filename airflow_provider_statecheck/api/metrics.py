"""
Metrics of checkpoints and attempts, sent through Airflow's ``Stats``.

The process that commits a transition sends its metrics, each once::

    statecheck.checkpoint.triggered       counter
    statecheck.checkpoint.completed       counter
    statecheck.checkpoint.failed          counter; aborted checkpoints, except those whose attempt ended
    statecheck.checkpoint.expired         counter; aborted checkpoints that exceeded their timeout
    statecheck.checkpoint.duration        timing; milliseconds from trigger to completion, without the increment
    statecheck.checkpoint.size_bytes      gauge; bytes that a restore reads
    statecheck.restore.count              counter; attempts that start from a checkpoint
    statecheck.restore.fresh              counter; attempts that start from the beginning
    statecheck.restore.failed             counter; checkpoints that a restore could not use
    statecheck.attempt.fenced             counter; attempts that a newer one replaced while they ran
    statecheck.job.last_completed_age     gauge; seconds since the last completed checkpoint, at the next trigger

The process that relays a mailbox sends one more at each look, while calls wait in it, and once when none does::

    statecheck.mailbox.oldest_call_age    gauge; seconds that the oldest call of a driver has waited

Tags are ``dag_id``, ``task_id`` and ``transport``, which is ``in_process``, ``http`` or ``mailbox``.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobRecord,
)
from airflow_provider_statecheck.gateway.in_process import AttemptChange, Change, CheckpointChange

log = logging.getLogger(__name__)


class AirflowMetrics:
    """
    Observer that sends metrics through Airflow's ``Stats``.

    :param stats: Airflow's ``Stats`` interface of this process: ``incr``, ``gauge`` and ``timing``.
    """

    def __init__(self, stats: Any) -> None:
        self._stats = stats

    def changed(self, job: JobRecord, change: Change) -> None:
        """Send the metrics of a committed change."""
        try:
            if isinstance(change, AttemptChange):
                self._attempt(change)
            elif isinstance(change, CheckpointChange):
                self._checkpoint(change)
        except Exception as error:
            # The change is already committed; an unavailable metrics backend must not fail the call.
            log.warning("Metrics of job %s could not be sent: %s", job.name, error)

    def waits(self, owner: AttemptOwner, seconds: float) -> None:
        """Send how long the oldest call of a driver has waited in its mailbox."""
        try:
            self._stats.gauge("statecheck.mailbox.oldest_call_age", seconds, tags=_tags(owner))
        except Exception as error:
            log.warning("Metrics of %s could not be sent: %s", owner.label, error)

    def _attempt(self, change: AttemptChange) -> None:
        attempt, tags = change.attempt, _tags(change.attempt.owner)
        if change.before is None:
            self._stats.incr(f"statecheck.restore.{'fresh' if attempt.restored_from is None else 'count'}", tags=tags)
        elif attempt.status is AttemptStatus.FENCED:
            self._stats.incr("statecheck.attempt.fenced", tags=tags)

    def _checkpoint(self, change: CheckpointChange) -> None:
        checkpoint, tags = change.checkpoint, _tags(None if change.attempt is None else change.attempt.owner)
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
    """Return the observer with the ``Stats`` of this process."""
    from airflow.observability import stats

    return AirflowMetrics(stats)


def task_metrics() -> AirflowMetrics:
    """Return the observer with the ``Stats`` of a running task."""
    try:
        from airflow.sdk.observability import stats
    except ImportError:  # of Airflow 3.2
        return airflow_metrics()
    return AirflowMetrics(stats)


def _tags(owner: AttemptOwner | None) -> dict[str, str]:
    task = None if owner is None else owner.task
    if owner is None or task is None:
        return {}
    transport = {} if owner.transport is None else {"transport": owner.transport.value}
    return {"dag_id": task.dag_id, "task_id": task.task_id, **transport}
