"""Epochs are safety: who speaks for an operator, and how all others are refused."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import StaleAttemptError


def require_current(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it still holds its operator's epoch.

    :raises StaleAttemptError: if a newer attempt registered, or none ever did under this epoch.
    """
    operator = tx.operator(ref.operator_id)
    attempt = tx.attempt(ref.operator_id, ref.epoch)
    if operator is None or attempt is None:
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of operator {ref.operator_id} is not registered in job {ref.job_id}; register it first.",
            epoch=ref.epoch,
        )
    if operator.epoch != ref.epoch:
        raise replaced(ref.epoch, operator.epoch, f"{operator.uid!r} in job {tx.job.name!r}")
    return attempt


def replaced(epoch: int, current_epoch: int, operator: str) -> StaleAttemptError:
    """Return the error that tells an attempt of a newer one."""
    return StaleAttemptError(
        f"Attempt {epoch} of operator {operator} was replaced by attempt {current_epoch}; this one must stop, nothing "
        f"that it does counts any more.",
        epoch=epoch,
        current_epoch=current_epoch,
    )


def require_running(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it holds the epoch and has not ended.

    :raises StaleAttemptError: otherwise.
    """
    attempt = require_current(tx, ref)
    if attempt.status is not AttemptStatus.RUNNING:
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of job {tx.job.name!r} has already ended as {attempt.status.value}; register a new one.",
            epoch=ref.epoch,
        )
    return attempt


def require_same_task(attempt: AttemptRecord, owner: AttemptOwner) -> None:
    """
    Refuse an attempt to anybody but a try of its own task in its own run.

    :raises StaleAttemptError: for another task or run, which has to register an attempt of its own.
    """
    theirs, mine = attempt.owner, owner
    if (theirs.logical_task, theirs.run_id) != (mine.logical_task, mine.run_id):
        raise StaleAttemptError(
            f"Expected {theirs.logical_task!r} of run {theirs.run_id!r} to go on with attempt {attempt.epoch}, found "
            f"{mine.logical_task!r} of run {mine.run_id!r}; register an attempt instead.",
            epoch=attempt.epoch,
        )
