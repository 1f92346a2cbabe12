"""
Restore from a savepoint: it becomes the first checkpoint of the operator's new generation.

Registering an attempt only notes which snapshot it begins from. The note becomes a completed checkpoint, and a claim is
made, when the attempt confirms that the state fits. An attempt that ends before leaves the snapshot as it was.
"""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.layout import is_savepoint_directory, lies_in_job
from airflow_provider_statecheck.checkpoint.messages import RestoreSource, require_metadata_in
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    ClaimRecord,
    RestoreMode,
    already_claimed,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, PointerNotFoundError, StorageError


def propose(tx: JobTransaction, operator: OperatorRecord, source: RestoreSource) -> None:
    """
    Note the snapshot that an operator begins from; it stays its owner's until :func:`adopt`.

    :raises SnapshotClaimedError: if another operator claimed it.
    :raises PointerNotFoundError: if it is missing, or no snapshot.
    :raises StorageError: if its storage did not answer.
    :raises InvalidConfigurationError: for a claim of what is no savepoint.
    """
    if source.problem is not None:
        raise (StorageError if source.is_unavailable else PointerNotFoundError)(source.problem)
    _require_free(tx, operator, source.pointer)
    if source.mode is RestoreMode.CLAIM:
        _require_claimable(source.pointer, source.metadata_uri)
    tx.add_checkpoint(
        CheckpointRecord(
            job_id=operator.job_id,
            checkpoint_id=tx.draw_checkpoint_id(),
            operator_id=operator.operator_id,
            epoch=operator.epoch,
            generation=operator.generation,
            status=CheckpointStatus.PENDING,
            request_key=new_key(),
            location=source.pointer,
            triggered_at=tx.now,
            expires_at=tx.now,
            run_key=operator.first_run,
            properties=CheckpointProperties.for_unclaimed_snapshot(),
            metadata_uri=source.metadata_uri,
            metadata_size=source.metadata_size,
            metadata_sha256=source.metadata_sha256,
            full_size_bytes=source.full_size_bytes,
        )
    )


def proposed(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    """Return the snapshot that the attempt of an epoch begins from as long as it has not been adopted."""
    return tuple(c for c in tx.open_checkpoints(of.operator_id) if c.is_adoption and c.epoch == of.epoch)


def adopt(tx: JobTransaction, attempt: AttemptRecord, noted: CheckpointRecord, *, claim: bool) -> CheckpointRecord:
    """
    Make the snapshot that an attempt has restored a completed checkpoint of its operator.

    A claimed one follows the retention of the job and is deleted like any of its checkpoints. Any other is never deleted,
    and the next checkpoint names none of its files.

    :param noted: What :func:`propose` added.
    :param claim: Whether the job owns it from now on.
    :raises SnapshotClaimedError: if another operator claimed it.
    :raises InvalidConfigurationError: for a claim of what is no savepoint.
    """
    _require_free(tx, attempt, noted.location)
    if claim:
        _require_claimable(noted.location, noted.metadata_uri or "")
        _claim(tx, attempt, noted.location)
    adopted = replace(as_adopted(noted, attempt.retention, claim=claim), completed_at=tx.now)
    tx.update_checkpoint(adopted, expected=CheckpointStatus.PENDING)
    return adopted


def as_adopted(noted: CheckpointRecord, retention: CheckpointRetentionPolicy, *, claim: bool) -> CheckpointRecord:
    """
    Return what :func:`adopt` makes of a snapshot.

    :param retention: That of the job.
    """
    properties = CheckpointProperties.for_checkpoint(retention) if claim else noted.properties
    return replace(noted, status=CheckpointStatus.COMPLETED, properties=properties)


def _claim(tx: JobTransaction, of: AttemptRecord, pointer: str) -> None:
    if tx.claim(pointer) is None:
        tx.save_claim(ClaimRecord(pointer=pointer, job_id=of.job_id, operator_id=of.operator_id, claimed_at=tx.now))


def _require_free(tx: JobTransaction, of: OperatorRecord | AttemptRecord, pointer: str) -> None:
    claim = tx.claim(pointer)
    if claim is not None and (claim.job_id, claim.operator_id) != (of.job_id, of.operator_id):
        raise already_claimed(pointer)


def _require_claimable(pointer: str, metadata_uri: str) -> None:
    # A claim lets the job delete the directory, so it must be no checkpoint of a job and nothing around one.
    require_metadata_in(pointer, metadata_uri)
    if not is_savepoint_directory(pointer) or lies_in_job(pointer):
        raise InvalidConfigurationError(
            f"Expected to claim a savepoint in a directory of the name that it was given (savepoint-…), found {pointer}; "
            f"restore anything else with claim_mode='no_claim'."
        )
