"""
Counting what happens to checkpoints, each within the transition that it counts.

So nothing is counted that was rolled back, and nothing twice: a row ends once, however often its message comes.
"""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, CheckpointRecord
from airflow_provider_statecheck.checkpoint.statistics.entries import CheckpointEntry, RestoredEntry, kept_counts
from airflow_provider_statecheck.checkpoint.statistics.operator_statistics import OperatorStatistics
from airflow_provider_statecheck.checkpoint.statistics_record import StatisticsRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction


def load(tx: JobTransaction, operator_id: OperatorId) -> OperatorStatistics:
    """Return the statistics of an operator, empty ones if nothing was counted."""
    return OperatorStatistics.of(tx.statistics(operator_id))


def save(tx: JobTransaction, operator_id: OperatorId, statistics: OperatorStatistics) -> None:
    """Keep the statistics of an operator."""
    tx.save_statistics(StatisticsRecord(job_id=tx.job.job_id, operator_id=operator_id, content=statistics.to_content()))


def ended(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    """Count a checkpoint that has just been completed or aborted."""
    attempt = tx.attempt(checkpoint.operator_id, checkpoint.epoch)
    entry = CheckpointEntry.of(checkpoint, attempt)
    save(tx, checkpoint.operator_id, load(tx, checkpoint.operator_id).ended(entry))


def restored(tx: JobTransaction, attempt: AttemptRecord, checkpoint: CheckpointRecord) -> None:
    """Count what an attempt was restored from, once."""
    known = load(tx, attempt.operator_id)
    changed = known.restored(RestoredEntry.of(checkpoint, attempt, tx.now))
    if changed != known:
        save(tx, attempt.operator_id, changed)


def acknowledged_late(tx: JobTransaction, aborted: CheckpointRecord, message: AcknowledgeCheckpoint) -> None:
    """Remember how large an aborted checkpoint became and how late it was; it stays a failed one."""
    known = load(tx, aborted.operator_id)
    if known.is_late(aborted.checkpoint_id):
        return
    changed = known.annotated(
        aborted.checkpoint_id,
        state_size_bytes=message.state_size_bytes,
        full_size_bytes=message.full_size_bytes,
        counts=kept_counts(message.counts),
        late_at=tx.now,
    )
    if changed != known:
        save(tx, aborted.operator_id, changed)
