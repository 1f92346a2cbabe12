"""Fencing by epoch: calls of replaced attempts are refused. Liveness of tasks."""

from __future__ import annotations

from typing import Protocol

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import StaleAttemptError


def require_current(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it is the newest one of its operator.

    :raises StaleAttemptError: if a newer attempt has registered, or no attempt has this epoch.
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
    """Return the error for an attempt that a newer one has replaced."""
    return StaleAttemptError(
        f"Attempt {epoch} of operator {operator} was replaced by attempt {current_epoch}; stop it, because its calls have no "
        f"effect any more.",
        epoch=epoch,
        current_epoch=current_epoch,
    )


def require_running(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it is the newest one of its operator and has not ended.

    :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
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
    Raise an error unless an owner is a try of the same task and run as an attempt.

    :raises StaleAttemptError: for another task or run.
    """
    expected = attempt.owner
    if (expected.logical_task, expected.run_id) != (owner.logical_task, owner.run_id):
        raise StaleAttemptError(
            f"Expected {expected.logical_task!r} of run {expected.run_id!r} to adopt attempt {attempt.epoch}, found "
            f"{owner.logical_task!r} of run {owner.run_id!r}; register an attempt instead.",
            epoch=attempt.epoch,
        )


class TaskLiveness(Protocol):
    """Source of the liveness of tasks."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return whether the owner's task is known to be running."""
        ...


class UnknownLiveness:
    """Liveness outside Airflow, where it is unknown and a newer attempt always fences an older one."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return ``False``."""
        return False
