"""Which jobs may be removed as a whole, and which attempts are over: decided from the rows alone."""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.ids import is_test_job, job_name
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)

FENCED_GRACE = timedelta(days=1)
"""How long a driver may live on that was fenced; what it writes after the rows are gone, nobody would find."""
SILENCE = timedelta(days=4)
"""After how long an attempt is given up that said nothing: more than any token of it lives."""


def reasons_to_keep(view: JobView) -> tuple[str, ...]:
    """Return why a job cannot be removed as a whole, nothing if it can."""
    lately = view.read_at - FENCED_GRACE
    reasons = []
    for operator in view.operators:
        for attempt in _attempts_of(view, operator):
            which = f"attempt {attempt.epoch} of operator {operator.uid!r} ({attempt.owner.label})"
            if attempt.status is AttemptStatus.RUNNING:
                reasons.append(f"{which} has not ended")
            elif attempt.status is AttemptStatus.FENCED and attempt.ended_at is not None and attempt.ended_at > lately:
                reasons.append(f"{which} was replaced less than a day ago and may live on")
    return tuple(reasons)


def open_commits(view: JobView) -> tuple[str, ...]:
    """Return what sinks have still to commit of a job, each as a reason to keep it."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return tuple(
        f"the sink of operator {uids[c.operator_id]!r} has not committed checkpoint {c.checkpoint_id}"
        for c in view.checkpoints
        if c.awaits_commit
    )


def is_silent(view: JobView, attempt: AttemptRecord, now: datetime) -> bool:
    """Tell whether an attempt has not ended and said nothing for so long that it cannot speak any more."""
    if attempt.status is not AttemptStatus.RUNNING:
        return False
    mine = [c for c in view.of_operator(attempt.operator_id) if c.epoch == attempt.epoch]
    said = (t for c in mine for t in (c.triggered_at, c.completed_at) if t is not None)
    return max((attempt.registered_at, *said)) < now - SILENCE


def last_active(view: JobView) -> datetime:
    """Return when the job last had an attempt; what maintenance did to its rows does not count."""
    return max((a.ended_at or a.registered_at for a in view.attempts), default=view.job.created_at)


def owners_of_run(view: JobView) -> tuple[AttemptOwner, ...]:
    """Return who worked on a job that is named after one Dag run, nothing for a job with a name of its own."""
    owners = tuple(attempt.owner for attempt in view.attempts)
    return owners if owners and all(is_named_after_run(view.job.name, owner) for owner in owners) else ()


def is_named_after_run(name: str, owner: AttemptOwner) -> bool:
    """Tell whether a job has the name of the Dag run that an attempt belongs to, and so ends with it."""
    dag_id = dict(owner.airflow).get("dag_id")
    return dag_id is not None and name == job_name(f"{dag_id}/{owner.run_key}", is_test=is_test_job(name))


def is_emptied(view: JobView) -> bool:
    """Tell whether every checkpoint of a job has ended and bytes wait for nobody; savepoints are the user's and stay."""
    return all(_is_over(c) and not c.awaits_discard for c in view.checkpoints)


def _is_over(checkpoint: CheckpointRecord) -> bool:
    is_users = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.COMPLETED
    return is_users or checkpoint.has_ended


def _attempts_of(view: JobView, operator: OperatorRecord) -> tuple[AttemptRecord, ...]:
    return tuple(a for a in view.attempts if a.operator_id == operator.operator_id)
