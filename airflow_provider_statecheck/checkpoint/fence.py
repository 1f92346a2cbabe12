"""Epochs are safety: who speaks for an operator, and how all others are refused."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus
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
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of operator {operator.uid!r} in job {tx.job.name!r} was replaced by attempt "
            f"{operator.epoch}; this one must stop, nothing that it does counts any more.",
            epoch=ref.epoch,
            current_epoch=operator.epoch,
        )
    return attempt


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
