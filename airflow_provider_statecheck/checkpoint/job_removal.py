"""
Removal of a whole job: what keeps it, and the request of a user.

A user requests the removal of a whole job on its page. The request is an open action of the job. The next run of
``prune`` carries it out in the steps of every removal: the checkpoints end and the request is running, their files are
deleted, and the rows are removed together with the completion of the request. A job that has started an attempt since
the request is kept, because the user did not see that attempt.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, ConcurrentAttemptError

log = logging.getLogger(__name__)

FENCED_GRACE = timedelta(days=1)
"""Time for which the driver of a fenced attempt may keep running; garbage collection would not find its later files."""


def reasons_to_keep(view: JobView) -> tuple[str, ...]:
    """Return the reasons why a job cannot be removed as a whole; empty if it can."""
    grace_start = view.read_at - FENCED_GRACE
    reasons = []
    for operator in view.operators:
        for attempt in view.attempts_of(operator.operator_id):
            name = f"attempt {attempt.epoch} of operator {operator.uid!r} ({attempt.owner.label})"
            if attempt.is_running:
                reasons.append(f"{name} has not ended")
            elif attempt.status is AttemptStatus.FENCED and attempt.ended_at and attempt.ended_at > grace_start:
                reasons.append(f"{name} was replaced less than a day ago and may still be running")
    return tuple(reasons)


def open_commits(view: JobView) -> tuple[str, ...]:
    """Return the open commits of a job, each as a reason not to remove the job."""
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    return tuple(
        f"the sink of operator {uids[c.operator_id]!r} has not committed checkpoint {c.checkpoint_id}"
        for c in view.checkpoints
        if c.awaits_commit
    )


def awaited_savepoints(view: JobView) -> tuple[str, ...]:
    """
    Return the savepoints of a whole job that are in progress, each as a reason to keep the checkpoints of its stages.

    A savepoint that has expired is not in progress, although its request is open until the next call fails it.
    """
    expiries = {c.checkpoint_id: c.expires_at for c in view.checkpoints}
    requested = view.requests_of_job
    return tuple(
        f"the savepoint of the job that was requested at {r.requested_at.isoformat(timespec='seconds')} is in progress"
        for r in requested
        if r.properties.is_savepoint
        # A request that is not triggered ends in no other way.
        and expiries.get(r.checkpoint_id or 0, r.requested_at + transitions.SAVEPOINT_TIMEOUT) > view.read_at
    )


def last_active(view: JobView) -> datetime:
    """
    Return the time at which the last attempt of a job was active, regardless of maintenance and savepoints of the job.
    """
    return max((a.ended_at or a.registered_at for a in view.attempts_of_stages), default=view.job.created_at)


def is_emptied(view: JobView) -> bool:
    """Return whether all checkpoints of a job, except the user's savepoints, have ended and their files are deleted."""
    return all(_is_removable(c) and not c.awaits_discard for c in view.checkpoints)


def _is_removable(checkpoint: CheckpointRecord) -> bool:
    is_of_user = checkpoint.properties.is_savepoint and checkpoint.status is CheckpointStatus.COMPLETED
    return is_of_user or checkpoint.has_ended


def open_removal(view: JobView) -> ActionRecord | None:
    """Return the open request to remove a job; a job has at most one."""
    return next((each for each in view.actions if each.action is JobAction.PRUNE and each.status.is_open), None)


def require_removable(view: JobView) -> None:
    """
    Require a job that can be removed.

    :raises ConcurrentAttemptError: if an attempt is running or may be running.
    """
    reasons = reasons_to_keep(view)
    if reasons:
        raise ConcurrentAttemptError(
            f"Expected job {view.job.name!r} without an attempt that may be running, found that {'; '.join(reasons)}; "
            "remove the job after its tasks have ended."
        )


def request_removal(tx: JobTransaction, action: ActionRecord) -> None:
    """
    Save a request to remove a job. An earlier open one ends.

    :raises ConcurrentAttemptError: if an attempt is running or may be running.
    """
    view = tx.view()
    require_removable(view)
    earlier = open_removal(view)
    if earlier is not None:
        _end_removal(tx, earlier, RequestStatus.FAILED, f"replaced by the request of {action.requested_by}")
    tx.save_action(action)


def waiting_removal(view: JobView) -> ActionRecord:
    """
    Return the request that waits to be carried out.

    :raises CheckpointNotFoundError: if there is none, or its removal has begun.
    """
    action = open_removal(view)
    if action is None or action.status is not RequestStatus.QUEUED:
        raise CheckpointNotFoundError(
            f"Expected a waiting request to remove job {view.job.name!r}, found "
            f"{'none' if action is None else 'one that has begun'}; it has ended, or its checkpoints have."
        )
    return action


def withdraw_removal(tx: JobTransaction, user: str) -> None:
    """
    End the request that waits to be carried out; the job is kept.

    :raises CheckpointNotFoundError: if there is none, or its removal has begun.
    """
    _end_removal(tx, waiting_removal(tx.view()), RequestStatus.FAILED, f"withdrawn by {user}")


def obstacles_to_removal(view: JobView, request_key: str) -> tuple[str, ...]:
    """Return the reasons why a request is not carried out; empty if it is."""
    action = open_removal(view)
    if action is None or action.request_key != request_key:
        return ("the request to remove it has ended",)
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    # The times of a job never go back. At the same time, the order is unknown.
    started = (a for a in view.attempts if a.registered_at >= action.requested_at)
    return tuple(
        f"attempt {a.epoch} of operator {uids[a.operator_id]!r} ({a.owner.label}) has started since the request"
        for a in started
    )


def begin_removal(tx: JobTransaction, view: JobView) -> None:
    """Mark the open request, if there is one, in the transaction that ends the checkpoints of the job."""
    action = open_removal(view)
    if action is not None:
        begun = replace(action, status=RequestStatus.RUNNING, message="the files of its checkpoints are being deleted")
        tx.save_action(begun)


def refuse_removal(tx: JobTransaction, view: JobView, request_key: str | None, reasons: tuple[str, ...]) -> None:
    """End a request that is not carried out, with the reasons; no effect without a key, or if the request has ended."""
    action = open_removal(view)
    if action is not None and action.request_key == request_key:
        _end_removal(tx, action, RequestStatus.FAILED, f"the job is kept: {'; '.join(reasons)}")


def complete_removal(tx: JobTransaction, view: JobView) -> None:
    """
    End the open request, if there is one, in the transaction that has removed the job for any reason.

    :param view: Job before its removal.
    """
    action = open_removal(view)
    if action is not None:
        _end_removal(
            tx, action, RequestStatus.COMPLETED, f"the job was removed with {counted(len(view.attempts), 'attempt')}"
        )


def _end_removal(tx: JobTransaction, action: ActionRecord, status: RequestStatus, message: str) -> None:
    transitions.end_action(tx, action, status, message)
    log.info("Job %s: the removal that %s requested %s, %s", tx.job.name, action.requested_by, status.value, message)
