"""A savepoint that an operator begins from becomes the first checkpoint of its new generation."""

from __future__ import annotations

from airflow_provider_statecheck.checkpoint.claims import ClaimRecord, RestoreMode, already_claimed
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError


def adopt(tx: JobTransaction, operator: OperatorRecord, source: RestoreSource) -> None:
    """
    Add a snapshot to the completed checkpoints of an operator, as its own or as somebody else's.

    A claimed one is subsumed and deleted like any checkpoint. One that is not claimed is never deleted, and the next
    checkpoint must name none of its files.

    :raises SnapshotClaimedError: if another operator claimed it.
    :raises CheckpointNotFoundError: if it is missing.
    """
    if source.problem is not None:
        raise CheckpointNotFoundError(source.problem)
    _require_free(tx, operator, source)
    is_claimed = source.mode is RestoreMode.CLAIM
    tx.add_checkpoint(
        CheckpointRecord(
            job_id=operator.job_id,
            checkpoint_id=tx.draw_checkpoint_id(),
            operator_id=operator.operator_id,
            epoch=operator.epoch,
            generation=operator.generation,
            status=CheckpointStatus.COMPLETED,
            request_key=new_key(),
            location=source.pointer,
            triggered_at=tx.now,
            expires_at=tx.now,
            run_key=operator.first_run,
            completed_at=tx.now,
            properties=CheckpointProperties() if is_claimed else CheckpointProperties.for_unclaimed_snapshot(),
            metadata_uri=source.metadata_uri,
            metadata_size=source.metadata_size,
            metadata_sha256=source.metadata_sha256,
            full_size_bytes=source.full_size_bytes,
        )
    )


def _require_free(tx: JobTransaction, operator: OperatorRecord, source: RestoreSource) -> None:
    claim = tx.claim(source.pointer)
    if claim is not None and (claim.job_id, claim.operator_id) != (operator.job_id, operator.operator_id):
        raise already_claimed(source.pointer)
    if claim is None and source.mode is RestoreMode.CLAIM:
        tx.save_claim(
            ClaimRecord(
                pointer=source.pointer, job_id=operator.job_id, operator_id=operator.operator_id, claimed_at=tx.now
            )
        )
