"""What maintenance has to know of checkpoints that are aligned over several operators, told from a job's rows."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus

_IN_PROGRESS = (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING)


def aligned_in_progress(view: JobView) -> tuple[int, ...]:
    """Return the aligned checkpoints that the next leader goes on with; only their parts tell what they name."""
    rows = view.of_operator(ALIGNED_OPERATOR_ID)
    return tuple(c.checkpoint_id for c in rows if c.status in _IN_PROGRESS)


def retained_aligned(view: JobView) -> tuple[CheckpointRecord, ...]:
    """Return the aligned checkpoints that may name state in the directories of others."""
    return tuple(c for c in view.of_operator(ALIGNED_OPERATOR_ID) if c.status is CheckpointStatus.COMPLETED)


def is_left_on_purpose(checkpoint: CheckpointRecord) -> bool:
    """Tell whether the bytes of an ended aligned checkpoint stay: it may be complete, or they are its user's."""
    if checkpoint.operator_id != ALIGNED_OPERATOR_ID:
        return False
    if checkpoint.status is CheckpointStatus.SUBSUMED:
        return not checkpoint.properties.discard_on_subsumed
    # An abort whose outcome is in doubt is taken from garbage collection by the very transition that aborts it.
    is_kept = checkpoint.discarded_at is not None and checkpoint.discarded_at == checkpoint.ended_at
    return is_kept and checkpoint.status is CheckpointStatus.ABORTED
