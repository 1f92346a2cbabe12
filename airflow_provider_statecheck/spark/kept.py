"""The last line of a failed try: what was kept, and how to go on."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.spark.status_log import describe_content


def kept_line(registration: RegisterAttempt, latest: CheckpointRecord | None) -> str:
    """
    Say what a retry will find.

    :param registration: Who asked.
    :param latest: The newest checkpoint that a retry can restore.
    """
    name = registration.job_name
    if latest is None:
        return f"Job {name!r} kept nothing: no checkpoint was completed; a retry starts from the beginning."
    is_kept_by_clear = registration.on_clear is not OnClear.RESTART
    return (
        f"Job {name!r} kept checkpoint {latest.checkpoint_id}: {describe_content(latest)}. A retry goes on from there"
        f"{', and so does the task when it is cleared' if is_kept_by_clear else ''}. Restore pointer: {latest.location}"
    )


def latest_kept(view: JobView, uid: str) -> CheckpointRecord | None:
    """Return the checkpoint that a retry of an operator would restore first."""
    operator_id = operator_id_of(uid)
    generations = {o.operator_id: o.generation for o in view.operators}
    mine = [
        c for c in view.of_operator(operator_id) if c.is_restorable and c.generation == generations.get(operator_id)
    ]
    return mine[-1] if mine else None


def stopping_savepoint(view: JobView, attempt: AttemptRef) -> str | None:
    """Return where the savepoint is with which an attempt stopped where it was, ``None`` if it did not."""
    same = (a for a in view.attempts if (a.operator_id, a.epoch) == (attempt.operator_id, attempt.epoch))
    if any(a.status is AttemptStatus.FINISHED for a in same):
        return None
    mine = (c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch and c.completed_at is not None)
    kind = CheckpointType.SAVEPOINT_SUSPEND
    return next((c.location for c in mine if c.properties.snapshot_type is kind), None)
