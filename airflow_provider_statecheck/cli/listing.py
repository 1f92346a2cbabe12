"""Jobs and checkpoints as rows to be printed."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.cli.printing import Row, shown


def job_row(view: JobView) -> Row:
    """Return a job with its newest completed checkpoint and its newest attempt."""
    newest = max((c for c in view.checkpoints if c.is_restorable), key=_completed, default=None)
    attempt = max(view.attempts, key=lambda a: a.registered_at, default=None)
    return {
        "name": view.job.name,
        "job_id": view.job.job_id,
        "operators": [operator.uid for operator in view.operators],
        "checkpoint": None if newest is None else newest.checkpoint_id,
        "completed_at": None if newest is None else newest.completed_at,
        "bytes": None if newest is None else newest.full_size_bytes,
        "attempt": None if attempt is None else attempt.status.value,
    }


def checkpoint_rows(view: JobView, checkpoints: Iterable[CheckpointRecord]) -> list[Row]:
    """Return checkpoints of a job."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return [_checkpoint_row(c, uids.get(c.operator_id, c.operator_id)) for c in checkpoints]


def _checkpoint_row(checkpoint: CheckpointRecord, uid: str) -> Row:
    end = checkpoint.completed_at
    return {
        "checkpoint": checkpoint.checkpoint_id,
        "operator": uid,
        "run": checkpoint.run_key or None,
        "kind": checkpoint.properties.snapshot_type.value,
        "status": checkpoint.status.value,
        "triggered_at": checkpoint.triggered_at,
        "seconds": None if end is None else (end - checkpoint.triggered_at).total_seconds(),
        "bytes": checkpoint.full_size_bytes,
        "pointer": shown(checkpoint.location),
        "failure": _failure(checkpoint),
    }


def _failure(checkpoint: CheckpointRecord) -> str | None:
    if checkpoint.unusable_reason is not None:
        return f"unusable: {checkpoint.unusable_reason}"
    if checkpoint.failure_reason is None:
        return None
    return f"{checkpoint.failure_reason}: {checkpoint.failure_message}"


def _completed(checkpoint: CheckpointRecord) -> tuple[float, int]:
    end = checkpoint.completed_at
    return (0.0 if end is None else end.timestamp(), checkpoint.checkpoint_id)
