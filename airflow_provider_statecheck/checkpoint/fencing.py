"""Fencing by epoch: calls of replaced attempts are refused. Liveness of tasks, leadership."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
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


ALIGNED_UID = "(aligned)"
ALIGNED_OPERATOR_ID = operator_id_of(ALIGNED_UID)


def take_leadership(
    jobs: JobStore, job_name: str, leader_key: str, owner: AttemptOwner, storage_base: str
) -> AttemptRef:
    """
    Register a leader of the aligned checkpoints of a job under the next epoch, and fence the previous leader.

    Pending checkpoints remain pending, and the coordinator of the new leader resumes them.

    :param leader_key: Idempotency key of the client.
    :raises StaleAttemptError: if the leader with this key has been replaced since.
    """
    job_id = job_id_of(job_name)
    with jobs.transaction(job_id, create_as=job_name) as tx:
        known = tx.attempt_by_key(leader_key)
        if known is not None:
            ref = AttemptRef(job_id=job_id, operator_id=known.operator_id, epoch=known.epoch)
            require_running(tx, ref)
            return ref
        operator = tx.operator(ALIGNED_OPERATOR_ID) or _new_operator(tx)
        _fence(tx, operator)
        operator = replace(operator, epoch=operator.epoch + 1)
        tx.save_operator(operator)
        tx.save_attempt(_new_attempt(tx, operator, leader_key, owner, storage_base))
        return AttemptRef(job_id=job_id, operator_id=ALIGNED_OPERATOR_ID, epoch=operator.epoch)


def _new_operator(tx: JobTransaction) -> OperatorRecord:
    return OperatorRecord(job_id=tx.job.job_id, operator_id=ALIGNED_OPERATOR_ID, uid=ALIGNED_UID, epoch=0, generation=1)


def _fence(tx: JobTransaction, operator: OperatorRecord) -> None:
    previous = tx.attempt(operator.operator_id, operator.epoch)
    if previous is not None and previous.status is AttemptStatus.RUNNING:
        tx.save_attempt(replace(previous, status=AttemptStatus.FENCED, ended_at=tx.now))
    for checkpoint in tx.open_checkpoints(operator.operator_id):
        if checkpoint.status is CheckpointStatus.FINALIZING:
            # The fenced finalizer cannot finish, so the new leader need not wait for its lease to expire.
            tx.update_checkpoint(replace(checkpoint, lease_until=tx.now), expected=CheckpointStatus.FINALIZING)


def _new_attempt(
    tx: JobTransaction, operator: OperatorRecord, leader_key: str, owner: AttemptOwner, storage_base: str
) -> AttemptRecord:
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=leader_key,
        generation=operator.generation,
        status=AttemptStatus.RUNNING,
        owner=owner,
        start_reason="leads the aligned checkpoints",
        restored_from=None,
        storage_base=storage_base,
        num_retained=1,
        checkpoint_timeout_seconds=0.0,
        registered_at=tx.now,
    )
