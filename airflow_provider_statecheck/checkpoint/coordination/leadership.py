"""Who leads the aligned checkpoints of a job: an attempt of an operator that stands for all of them."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_statecheck.checkpoint.fence import require_running
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

ALIGNED_UID = "(aligned)"
ALIGNED_OPERATOR_ID = operator_id_of(ALIGNED_UID)


def take_leadership(
    jobs: JobStore, job_name: str, leader_key: str, owner: AttemptOwner, storage_base: str
) -> AttemptRef:
    """
    Give the next epoch to a leader; from then on nothing that an earlier one does counts.

    Pending checkpoints stay as they are: the coordinator that is made with the answer goes on with them.

    :param leader_key: Made by the client; the same key gives the same answer.
    :raises StaleAttemptError: if this very leader was replaced since.
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
            # Its finalizer cannot finish any more, so nobody has to wait for the end of the lease.
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
