"""The last line of a try: what was kept and how to go on, or what is left to be deleted."""

from __future__ import annotations

from collections.abc import Container

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.ids import OperatorId, is_test_job
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, OpenEffects, RegisterAttempt
from airflow_provider_statecheck.checkpoint.pruning import is_named_after_run
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, OnClear
from airflow_provider_statecheck.spark.status_log import describe_content
from airflow_provider_statecheck.storage.uris import redact


def kept_line(registration: RegisterAttempt, latest: CheckpointRecord | None) -> str:
    """
    Say what a retry will find.

    :param registration: Who asked.
    :param latest: The newest checkpoint that a retry can restore.
    """
    name, is_script = registration.job_name, registration.owner.is_script
    if latest is None:
        who = "the next start begins" if is_script else "a retry starts"
        return f"Job {name!r} kept nothing: no checkpoint was completed; {who} from the beginning."
    return (
        f"Job {name!r} kept checkpoint {latest.checkpoint_id}: {describe_content(latest)}. "
        f"{_who_goes_on(registration)}. Restore pointer: {latest.location}"
    )


def replaced_line(job_name: str, epoch: int, newer_epoch: int) -> str:
    """Say that a newer attempt has taken over; the one that it replaced is not retried."""
    return (
        f"Job {job_name!r} goes on in attempt {newer_epoch}, which replaced attempt {epoch}; nothing that this try does "
        f"counts any more."
    )


def _who_goes_on(registration: RegisterAttempt) -> str:
    is_restart = registration.on_clear is OnClear.RESTART
    if registration.owner.is_script:
        return f"The next start{' without on_clear=restart' if is_restart else ''} goes on from there"
    return f"A retry goes on from there{'' if is_restart else ', and so does the task when it is cleared'}"


def left_line(registration: RegisterAttempt, effects: OpenEffects, deleted: Container[int]) -> str | None:
    """
    Say what a finished attempt leaves on storage that nobody needs after its run, ``None`` if that is nothing.

    :param registration: Who asked.
    :param effects: What was retained and what was to be deleted at the end of the attempt.
    :param deleted: What was deleted of that.
    """
    name = registration.job_name
    ends_with_run = is_named_after_run(name, registration.owner)
    retained = [c.checkpoint_id for c in effects.retained if ends_with_run and not c.properties.is_savepoint]
    undeleted = [c.checkpoint_id for c in effects.discards if c.checkpoint_id not in deleted]
    left = sorted({*retained, *undeleted})
    if not left:
        return None
    when = " when the run is over" if retained else ""
    command = "prune --test-jobs" if is_test_job(name) else "gc --all"
    return (
        f"Job {name!r} leaves {'checkpoint' if len(left) == 1 else 'checkpoints'} {', '.join(map(str, left))} below "
        f"{redact(registration.storage_base)}. 'airflow statecheck {command}' or the Dag statecheck_maintenance deletes "
        f"what is no longer needed{when}."
    )


def latest_kept(view: JobView, operator_id: OperatorId) -> CheckpointRecord | None:
    """Return the checkpoint that a retry of an operator would restore first."""
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
