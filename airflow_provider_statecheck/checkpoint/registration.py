"""Registering an attempt is the fence: one transaction after which nothing of an earlier attempt counts."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_statecheck.checkpoint import restored_snapshots, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fence import require_running
from airflow_provider_statecheck.checkpoint.ids import operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OnClear,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.start import StartDecision, decide_start
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError


def register(tx: JobTransaction, request: RegisterAttempt) -> AttemptGrant:
    """
    Give the next epoch to an attempt, settle what its predecessors left, and choose what to restore.

    :raises StaleAttemptError: if this very attempt was registered before and has been replaced since.
    :raises NoRestorableCheckpointError: if state is to be restored, existed, and no completed checkpoint is left.
    :raises SnapshotClaimedError: if the savepoint that it is to begin from belongs to another operator.
    """
    known = tx.attempt_by_key(request.attempt_key)
    if known is not None:
        ref = AttemptRef(job_id=known.job_id, operator_id=known.operator_id, epoch=known.epoch)
        return _grant(tx, require_running(tx, ref), request.on_clear)
    return _grant(tx, _open_attempt(tx, request), request.on_clear)


def _open_attempt(tx: JobTransaction, request: RegisterAttempt) -> AttemptRecord:
    operator_id = operator_id_of(request.uid)
    operator = tx.operator(operator_id) or _new_operator(tx, request)
    previous = tx.attempt(operator_id, operator.epoch)
    _fence(tx, operator, previous)
    decision = _decide(tx, operator, previous, request)
    generation = operator.generation if decision.is_restore else operator.generation + 1
    # What an earlier generation wrote is retracted by the sink when it is opened.
    transitions.end_commits(tx, operator_id, lambda c: c.generation < generation)
    operator = replace(operator, epoch=operator.epoch + 1, generation=generation)
    tx.save_operator(operator)
    if not decision.is_restore and request.restore_from is not None:
        restored_snapshots.adopt(tx, operator, request.restore_from)
        decision = replace(decision, is_restore=True, reason=f"{decision.reason}, begun from a savepoint")
    attempt = _new_attempt(tx, operator, request, decision)
    tx.save_attempt(attempt)
    return attempt


def _new_operator(tx: JobTransaction, request: RegisterAttempt) -> OperatorRecord:
    return OperatorRecord(
        job_id=tx.job.job_id,
        operator_id=operator_id_of(request.uid),
        uid=request.uid,
        epoch=0,
        generation=0,
    )


def _fence(tx: JobTransaction, operator: OperatorRecord, previous: AttemptRecord | None) -> None:
    # A pending checkpoint is never fully acknowledged: acknowledging and completing are one transaction.
    transitions.abort_pending(tx, operator.operator_id, CheckpointFailureReason.JOB_FAILOVER_REGION)
    if previous is not None and previous.status is AttemptStatus.RUNNING:
        tx.save_attempt(replace(previous, status=AttemptStatus.FENCED, ended_at=tx.now))


def _decide(
    tx: JobTransaction, operator: OperatorRecord, previous: AttemptRecord | None, request: RegisterAttempt
) -> StartDecision:
    decision = decide_start(previous, request)
    if not decision.is_restore or _candidates(tx, operator):
        return decision
    if previous is not None and previous.generation < operator.generation:
        reason = f"{decision.reason}, but its checkpoints were given up with the end of their run or with their job"
        return StartDecision(False, reason)
    if tx.has_completed(operator.operator_id, operator.generation):
        raise NoRestorableCheckpointError(
            f"Operator {operator.uid!r} of job {tx.job.name!r} is to be restored ({decision.reason}), but none of its "
            f"completed checkpoints is retained any more; clear the task with on_clear='restart' to start over."
        )
    return StartDecision(False, f"{decision.reason}, no checkpoint was completed before")


def _candidates(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    rows = tx.open_checkpoints(of.operator_id)
    mine = [c for c in rows if c.is_restorable and c.generation == of.generation]
    return tuple(reversed(mine))


def _new_attempt(
    tx: JobTransaction, operator: OperatorRecord, request: RegisterAttempt, decision: StartDecision
) -> AttemptRecord:
    candidates = _candidates(tx, operator) if decision.is_restore else ()
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=request.attempt_key,
        generation=operator.generation,
        status=AttemptStatus.RUNNING,
        owner=request.owner,
        start_reason=decision.reason,
        restored_from=candidates[0].checkpoint_id if candidates else None,
        storage_base=request.storage_base,
        num_retained=request.num_retained,
        checkpoint_timeout_seconds=request.checkpoint_timeout_seconds,
        registered_at=tx.now,
        retention=request.retention,
    )


def _grant(tx: JobTransaction, attempt: AttemptRecord, on_clear: OnClear) -> AttemptGrant:
    is_restore = attempt.restored_from is not None
    return AttemptGrant(
        attempt=AttemptRef(job_id=attempt.job_id, operator_id=attempt.operator_id, epoch=attempt.epoch),
        generation=attempt.generation,
        is_restore=is_restore,
        verify_fingerprints=on_clear is not OnClear.RESUME,
        start_reason=attempt.start_reason,
        candidates=_candidates(tx, attempt) if is_restore else (),
        effects=transitions.effects_of(tx, attempt.operator_id),
    )
