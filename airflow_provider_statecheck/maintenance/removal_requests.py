"""
Removal of a whole job that a user requested on its page.

The request is an open action of the job. The next run of ``prune`` carries it out in the steps of every removal: the
checkpoints end and the request is running, their files are deleted, and the rows are removed together with the completion of
the request. A job that has started an attempt since the request is kept, because the user did not see that attempt.
"""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.records import ActionRecord, JobAction, RequestStatus
from airflow_provider_statecheck.checkpoint.retention import reasons_to_keep
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, ConcurrentAttemptError

log = logging.getLogger(__name__)


def open_removal(view: JobView) -> ActionRecord | None:
    """Return the open request to remove a job, of which there is at most one."""
    return next((each for each in view.actions if each.action is JobAction.PRUNE and each.status.is_open), None)


def require_idle(view: JobView) -> None:
    """
    Require a job that can be removed.

    :raises ConcurrentAttemptError: An attempt is running or may be running.
    """
    reasons = reasons_to_keep(view)
    if reasons:
        raise ConcurrentAttemptError(
            f"Expected job {view.job.name!r} without an attempt that may be running, found that {'; '.join(reasons)}; remove "
            f"the job after its tasks have ended."
        )


def request(tx: JobTransaction, action: ActionRecord) -> None:
    """
    Save a request to remove a job. An earlier open one ends.

    :raises ConcurrentAttemptError: An attempt is running or may be running.
    """
    view = tx.view()
    require_idle(view)
    earlier = open_removal(view)
    if earlier is not None:
        _end(tx, earlier, RequestStatus.FAILED, f"replaced by the request of {action.requested_by}")
    tx.save_action(action)


def require_waiting(view: JobView) -> ActionRecord:
    """
    Return the request that waits to be carried out.

    :raises CheckpointNotFoundError: There is none, or its removal has begun.
    """
    action = open_removal(view)
    if action is None or action.status is not RequestStatus.QUEUED:
        raise CheckpointNotFoundError(
            f"Expected a waiting request to remove job {view.job.name!r}, found {'none' if action is None else 'one that has begun'}"
            f"; it has ended, or its checkpoints have."
        )
    return action


def withdraw(tx: JobTransaction, user: str) -> None:
    """
    End the request that waits to be carried out; the job is kept.

    :raises CheckpointNotFoundError: There is none, or its removal has begun.
    """
    _end(tx, require_waiting(tx.view()), RequestStatus.FAILED, f"withdrawn by {user}")


def obstacles(view: JobView, request_key: str) -> tuple[str, ...]:
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


def begin(tx: JobTransaction, view: JobView) -> None:
    """Mark the open request, if there is one, in the transaction that ends the checkpoints of the job."""
    action = open_removal(view)
    if action is not None:
        begun = replace(action, status=RequestStatus.RUNNING, message="the files of its checkpoints are being deleted")
        tx.save_action(begun)


def refuse(tx: JobTransaction, view: JobView, request_key: str | None, reasons: tuple[str, ...]) -> None:
    """End a request that is not carried out, with the reasons; no effect without a key, or if the request has ended."""
    action = open_removal(view)
    if action is not None and action.request_key == request_key:
        _end(tx, action, RequestStatus.FAILED, f"the job is kept: {'; '.join(reasons)}")


def complete(tx: JobTransaction, view: JobView) -> None:
    """
    End the open request, if there is one, in the transaction that has removed the job for any reason.

    :param view: Job before its removal.
    """
    action = open_removal(view)
    if action is not None:
        _end(tx, action, RequestStatus.COMPLETED, f"the job and its {len(view.attempts)} attempts were removed")


def _end(tx: JobTransaction, action: ActionRecord, status: RequestStatus, message: str) -> None:
    tx.save_action(replace(action, status=status, ended_at=tx.now, message=message))
    log.info("Job %s: the removal that %s requested %s, %s", tx.job.name, action.requested_by, status.value, message)
