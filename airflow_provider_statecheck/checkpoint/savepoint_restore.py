"""
Restore from a savepoint, which becomes the first checkpoint of the operator's new generation.

The registration of an attempt adds the savepoint as a pending checkpoint. When the attempt confirms the restore, the
checkpoint is completed and the claim is saved. An attempt that ends before has no effect on the savepoint.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.ids import is_in_job, is_savepoint_directory, is_savepoint_of, new_key
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
    Add a checkpoint or savepoint as the pending checkpoint that an operator starts from.

    It is neither owned nor claimed until :func:`adopt`.

    :raises SavepointClaimedError: if another operator has claimed it.
    :raises PointerNotFoundError: if it is missing or cannot be read.
    :raises StorageError: if the storage did not respond.
    :raises InvalidConfigurationError: if the claim is for a checkpoint.
    """
    if source.problem is not None:
        raise (StorageError if source.is_unavailable else PointerNotFoundError)(source.problem)
    require_unclaimed(tx, operator, source.pointer)
    if source.mode is RestoreMode.CLAIM:
        require_claimable(source.pointer, source.metadata_uri, source.member)
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
            run_key=source.run or operator.first_run,
            properties=CheckpointProperties.for_unclaimed_snapshot(source.member),
            metadata_uri=source.metadata_uri,
            metadata_size=source.metadata_size,
            metadata_sha256=source.metadata_sha256,
            full_size_bytes=source.full_size_bytes,
        )
    )


def proposed(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    """Return the checkpoint or savepoint that the current attempt starts from, unless it is already adopted."""
    return tuple(c for c in tx.open_checkpoints(of.operator_id) if c.is_adoption and c.epoch == of.epoch)


def adopt(tx: JobTransaction, attempt: AttemptRecord, pending: CheckpointRecord, *, claim: bool) -> CheckpointRecord:
    """
    Complete what an attempt has restored, as a checkpoint of its operator.

    A claimed savepoint is subsumed and deleted like the checkpoints of the job. What is not claimed is never deleted,
    and new checkpoints reference none of its files.

    :param pending: Pending checkpoint from :func:`propose`.
    :param claim: Whether the job becomes the owner of the savepoint.
    :raises SavepointClaimedError: if another operator has claimed it.
    :raises InvalidConfigurationError: if the claim is for a checkpoint.
    """
    require_unclaimed(tx, attempt, pending.location)
    if claim:
        require_claimable(pending.location, pending.metadata_uri or "", pending.properties.member)
        claim_savepoint(tx, attempt, pending.location)
    adopted = replace(as_adopted(pending, attempt.retention, claim=claim), completed_at=tx.now)
    tx.update_checkpoint(adopted, expected=CheckpointStatus.PENDING)
    return adopted


def as_adopted(pending: CheckpointRecord, retention: CheckpointRetentionPolicy, *, claim: bool) -> CheckpointRecord:
    """
    Return a pending checkpoint as a completed one of the operator that adopts it.

    :param retention: Retention policy of the job.
    """
    properties = CheckpointProperties.for_checkpoint(retention) if claim else pending.properties
    return replace(pending, status=CheckpointStatus.COMPLETED, properties=properties)


def newest_readable(operator: OperatorRecord, newest_first: Iterable[CheckpointRecord]) -> CheckpointRecord | None:
    """
    Return the checkpoint that readers of an operator's state get, or ``None``.

    It is the newest restorable checkpoint of the operator's generation. While a restart from a savepoint of the same
    job is not confirmed, it is that of the generation before: its files are retained until the first checkpoint after
    the restart. A fresh start, also from a savepoint of another job, has none until then.

    :param newest_first: Checkpoints of the operator; only usable and unconfirmed ones matter.
    """
    generation = operator.generation
    for checkpoint in newest_first:
        if checkpoint.generation < generation:
            return None
        if checkpoint.is_usable:
            return checkpoint
        if checkpoint.is_unconfirmed and _is_of_its_job(checkpoint):
            generation = checkpoint.generation - 1
    return None


def _is_of_its_job(restored: CheckpointRecord) -> bool:
    return is_savepoint_of(restored.location, restored.job_id) or is_in_job(restored.location, restored.job_id)


def claim_savepoint(tx: JobTransaction, owner: OperatorRecord | AttemptRecord, pointer: str) -> None:
    """Make an operator the owner of a savepoint; a second call has no effect."""
    if tx.claim(pointer) is None:
        tx.save_claim(
            ClaimRecord(pointer=pointer, job_id=owner.job_id, operator_id=owner.operator_id, claimed_at=tx.now)
        )


def require_unclaimed(tx: JobTransaction, owner: OperatorRecord | AttemptRecord, pointer: str) -> None:
    """
    Require a savepoint to have no owner or the given one.

    :raises SavepointClaimedError: if another operator has claimed it.
    :raises PointerNotFoundError: if a user has disposed of it; its files are deleted later.
    """
    require_not_disposed(tx, pointer)
    claim = tx.claim(pointer)
    if claim is not None and (claim.job_id, claim.operator_id) != (owner.job_id, owner.operator_id):
        raise already_claimed(pointer)


def require_not_disposed(tx: JobTransaction, pointer: str) -> None:
    """
    Require that no user has disposed of a savepoint.

    :raises PointerNotFoundError: if one has; its files are deleted later.
    """
    claim = tx.claim(pointer)
    if claim is not None and claim.is_disposal:
        raise PointerNotFoundError(
            f"Expected a retained savepoint at {pointer}, found that it was disposed of; restore another savepoint.",
            uri=pointer,
        )


def whole_job_not_claimable(pointer: str) -> InvalidConfigurationError:
    """Return the error for the claim of a savepoint that has members of several stages."""
    return InvalidConfigurationError(
        f"Expected to claim a savepoint of one stage, found {pointer}, a savepoint of the whole job, which also has "
        f"the members of other stages; set claim_mode='no_claim', and dispose of the savepoint when no stage needs it."
    )


def require_claimable(pointer: str, metadata_uri: str, member: str = "") -> None:
    """
    Require a pointer to be that of a savepoint, whose directory its owner may delete.

    :param member: Uid of the restored stage in a savepoint of the whole job.
    :raises InvalidConfigurationError: if it is that of a checkpoint, or if other stages have a member of it.
    """
    if member:
        raise whole_job_not_claimable(pointer)
    # The owner deletes the whole directory, which therefore must neither be nor contain a checkpoint of a job.
    require_metadata_in(pointer, metadata_uri)
    if not is_savepoint_directory(pointer) or is_in_job(pointer):
        raise InvalidConfigurationError(
            f"Expected to claim a savepoint in a directory with its original name (savepoint-…), found {pointer}; "
            f"set claim_mode='no_claim' to restore any other savepoint or a checkpoint."
        )
