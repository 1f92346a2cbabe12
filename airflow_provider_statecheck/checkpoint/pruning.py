"""Which rows may be forgotten, and which jobs as a whole: decided from the rows alone."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint.ids import is_test_job, job_name
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgettableRows:
    """Rows of one job that nothing needs any more."""

    checkpoint_ids: tuple[int, ...] = ()
    """Ended checkpoints whose bytes are gone."""
    attempts: tuple[AttemptRef, ...] = ()
    """Ended attempts that newer ones followed."""

    def __len__(self) -> int:
        return len(self.checkpoint_ids) + len(self.attempts)


def forgettable_rows(view: JobView, ended_before: datetime) -> ForgettableRows:
    """
    Return the rows of what ended before a time and is needed neither by a restore nor by a running attempt.

    :param view: The job's rows.
    :param ended_before: The time.
    """
    checkpoints: list[int] = []
    attempts: list[AttemptRef] = []
    for operator in view.operators:
        checkpoints += [c.checkpoint_id for c in _forgettable_checkpoints(view, operator, ended_before)]
        # Their rows tell where bytes may lie that the operator left, which nobody deletes while it has an open attempt.
        if not view.has_open_attempt(operator):
            kept = {operator.epoch, *_last_epochs_of_runs(view, operator)}
            mine = (a for a in _attempts_of(view, operator) if a.epoch not in kept)
            attempts += [_ref(a) for a in mine if a.ended_at is not None and a.ended_at < ended_before]
    return ForgettableRows(checkpoint_ids=tuple(sorted(checkpoints)), attempts=tuple(attempts))


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
    names = {_name_by_run(owner, view.job.name) for owner in owners}
    return owners if names == {view.job.name} else ()


def is_emptied(view: JobView) -> bool:
    """Tell whether every checkpoint of a job has ended and bytes wait for nobody; savepoints are the user's and stay."""
    return all(_is_over(c) and not c.awaits_discard for c in view.checkpoints)


def _is_over(checkpoint: CheckpointRecord) -> bool:
    is_users = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.COMPLETED
    return is_users or _has_ended(checkpoint)


def _name_by_run(owner: AttemptOwner, name: str) -> str | None:
    dag_id = dict(owner.airflow).get("dag_id")
    return job_name(f"{dag_id}/{owner.run_key}", is_test=is_test_job(name)) if dag_id else None


def _forgettable_checkpoints(
    view: JobView, operator: OperatorRecord, ended_before: datetime
) -> tuple[CheckpointRecord, ...]:
    mine = view.of_operator(operator.operator_id)
    running = operator.epoch if view.has_open_attempt(operator) else None
    # A row of the current generation tells that there was state; without any, the next attempt would start empty silently.
    has_witness = any(c.is_restorable and c.generation == operator.generation for c in mine)
    return tuple(
        c
        for c in mine
        if _is_gone(c, ended_before)
        and c.epoch != running
        and (has_witness or c.completed_at is None or c.generation != operator.generation)
    )


def _is_gone(checkpoint: CheckpointRecord, ended_before: datetime) -> bool:
    # What keeps its bytes, because they are somebody else's, is over when it ends.
    gone_at = checkpoint.discarded_at or (None if checkpoint.awaits_discard else checkpoint.ended_at)
    return _has_ended(checkpoint) and gone_at is not None and gone_at < ended_before


def _has_ended(checkpoint: CheckpointRecord) -> bool:
    return checkpoint.status in (CheckpointStatus.SUBSUMED, CheckpointStatus.ABORTED, CheckpointStatus.DISPOSED)


def _last_epochs_of_runs(view: JobView, operator: OperatorRecord) -> tuple[int, ...]:
    # The attempt of the run at which the state stands tells a retry from a clear; taken back, it stands at an earlier one.
    rows = view.of_operator(operator.operator_id)
    runs = {c.run_key for c in rows if c.is_restorable and c.generation == operator.generation}
    last = {a.owner.run_key: a.epoch for a in _attempts_of(view, operator) if a.owner.run_key in runs}
    return tuple(last.values())


def _attempts_of(view: JobView, operator: OperatorRecord) -> tuple[AttemptRecord, ...]:
    return tuple(a for a in view.attempts if a.operator_id == operator.operator_id)


def _ref(attempt: AttemptRecord) -> AttemptRef:
    return AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch)
