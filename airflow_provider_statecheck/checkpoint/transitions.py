"""Status transitions of checkpoint rows, and the effects that callers must still carry out."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import statistics
from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.codec import storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import (
    OperatorId,
    canonical_uri,
    is_savepoint_directory,
)
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint, OpenEffects, RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    ROLLED_BACK,
    ActionRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.retention import open_effects, protected_checkpoints, subsumed_by_retention
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError

log = logging.getLogger(__name__)

SAVEPOINT_TIMEOUT = timedelta(days=1)
"""Timeout of a savepoint, which copies the whole state and is therefore independent of the checkpoint timeout."""

# A savepoint that was aborted for one of these reasons returns to the queue, and another attempt takes it.
_RETRIED_REASONS = frozenset(
    {CheckpointFailureReason.ATTEMPT_ENDED.value, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.value}
)


def begin(
    tx: JobTransaction,
    of: AttemptRecord | OperatorRecord,
    *,
    checkpoint_id: int,
    location: str,
    timeout: timedelta,
    request_key: str,
    properties: CheckpointProperties,
    is_periodic: bool = False,
    finalizer: str | None = None,
) -> CheckpointRecord:
    """
    Add the row of a pending checkpoint.

    :param of: Attempt that takes it; an operator that is not running for a savepoint that copies a checkpoint.
    :param location: Directory of its files.
    :param timeout: Time after which it expires.
    :param request_key: Idempotency key of the trigger.
    :param finalizer: Coordinator that triggers an aligned checkpoint.
    """
    checkpoint = CheckpointRecord(
        job_id=of.job_id,
        checkpoint_id=checkpoint_id,
        operator_id=of.operator_id,
        epoch=of.epoch,
        generation=of.generation,
        status=CheckpointStatus.PENDING,
        request_key=request_key,
        location=location,
        triggered_at=tx.now,
        expires_at=tx.now + timeout,
        run_key=of.owner.run_key if isinstance(of, AttemptRecord) else "",
        properties=properties,
        is_periodic=is_periodic,
        finalizer=finalizer,
    )
    tx.add_checkpoint(checkpoint)
    return checkpoint


def open_attempt(tx: JobTransaction, operator: OperatorRecord) -> AttemptRecord | None:
    """Return the newest attempt of an operator if it has not ended."""
    attempt = tx.attempt(operator.operator_id, operator.epoch)
    return attempt if attempt is not None and attempt.is_running else None


def end_action(tx: JobTransaction, action: ActionRecord, status: RequestStatus, message: str) -> ActionRecord:
    """End an action of a user with its outcome, and return its row."""
    ended = replace(action, status=status, ended_at=tx.now, message=storable_text(message))
    tx.save_action(ended)
    return ended


def ended_by(tx: JobTransaction, completed: CheckpointRecord) -> list[CheckpointRecord]:
    """Return the older pending checkpoints of the operator that a completed one makes useless; savepoints remain."""
    pending = (c for c in tx.open_checkpoints(completed.operator_id) if c.status is CheckpointStatus.PENDING)
    return [c for c in pending if c.checkpoint_id < completed.checkpoint_id and not c.properties.is_savepoint]


def complete(tx: JobTransaction, pending: CheckpointRecord, completed: CheckpointRecord) -> CheckpointRecord:
    """
    Complete a checkpoint whose operators have all acknowledged, and settle its request.

    :param completed: The row after the completion.
    """
    tx.update_checkpoint(completed, expected=pending.status)
    _record_end(tx, completed)
    return completed


def acknowledged(tx: JobTransaction, pending: CheckpointRecord, message: AcknowledgeCheckpoint) -> CheckpointRecord:
    """Return the row of a checkpoint of one operator after the acknowledgement, which completes it."""
    return replace(
        pending,
        status=CheckpointStatus.COMPLETED,
        triggered_at=_began_at(tx, pending, message.increment_seconds),
        completed_at=tx.now,
        metadata_uri=message.metadata_uri,
        metadata_size=message.metadata_size,
        metadata_sha256=message.metadata_sha256,
        state_size_bytes=message.state_size_bytes,
        full_size_bytes=message.full_size_bytes,
        counts=dict(message.counts),
        summary=message.summary,
        has_open_commit=message.has_commit and not pending.properties.is_savepoint,
    )


def abort(
    tx: JobTransaction,
    pending: CheckpointRecord,
    reason: CheckpointFailureReason,
    message: str = "",
    increment_seconds: float = 0.0,
) -> CheckpointRecord:
    """
    Abort a checkpoint that is not complete, and settle its request.

    :param message: Failure message; that of the reason by default.
    :param increment_seconds: Duration of the increment between the trigger and the start of the checkpoint.
    :return: The row of the aborted checkpoint.
    :raises CoordinatorError: if the checkpoint has ended; the caller must roll back the transaction.
    """
    aborted = replace(
        pending,
        status=CheckpointStatus.ABORTED,
        triggered_at=_began_at(tx, pending, increment_seconds),
        ended_at=tx.now,
        failure_reason=reason.value,
        failure_message=storable_text(message or reason.message),
    )
    tx.update_checkpoint(aborted, expected=pending.status)
    if not pending.is_adoption:
        _record_end(tx, aborted)
    log.debug("Checkpoint %s of job %s aborted: %s", pending.checkpoint_id, tx.job.name, reason.value)
    return aborted


def abort_pending(
    tx: JobTransaction,
    operator_id: OperatorId,
    reason: CheckpointFailureReason,
    where: Callable[[CheckpointRecord], bool] = lambda _: True,
) -> None:
    """Abort the pending checkpoints of an operator that match ``where``."""
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.status is CheckpointStatus.PENDING and where(checkpoint):
            abort(tx, checkpoint, reason)


def expire(tx: JobTransaction, operator_id: OperatorId) -> None:
    """Abort the expired pending checkpoints of an operator."""
    abort_pending(tx, operator_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, lambda c: _is_expired(c, tx.now))


def subsume(
    tx: JobTransaction, operator_id: OperatorId, num_retained: int, retained_runs: int
) -> list[CheckpointRecord]:
    """
    Subsume the completed checkpoints beyond retention, except the one that the next attempt is to restore.

    :return: The subsumed checkpoints, oldest first.
    """
    operator = tx.operator(operator_id)
    rows = [c for c in tx.open_checkpoints(operator_id) if c.is_restorable]
    beyond = subsumed_by_retention(rows, num_retained, retained_runs)
    kept = () if operator is None else (operator.next_restore, operator.pinned_checkpoint)
    chosen = [c for c in beyond if c.checkpoint_id not in kept]
    return [mark_subsumed(tx, checkpoint) for checkpoint in chosen]


def record_restore(tx: JobTransaction, attempt: AttemptRecord, restored: CheckpointRecord | None) -> None:
    """Pin the checkpoint that an attempt has restored, and count the restore; ``None`` if the attempt starts over."""
    if restored is None:
        tx.save_attempt(replace(attempt, restored_from=None))
        return
    tx.save_attempt(replace(attempt, restored_from=restored.checkpoint_id))
    statistics.restored(tx, attempt, restored)


def note_work(tx: JobTransaction, attempt: AttemptRecord, summary: CheckpointSummary | None) -> None:
    """Record what an attempt works on when it acknowledges a checkpoint, if the row of the attempt tells otherwise."""
    known = attempt.restored_summary or CheckpointSummary()
    if summary is not None and (summary.computing, summary.computing_after) != (known.computing, known.computing_after):
        noted = replace(known, computing=summary.computing, computing_after=summary.computing_after)
        tx.save_attempt(replace(attempt, restored_summary=noted))


def roll_back(tx: JobTransaction, checkpoints: Iterable[CheckpointRecord]) -> None:
    """Subsume completed checkpoints without a successor, and drop their open commits."""
    for checkpoint in checkpoints:
        mark_subsumed(tx, replace(checkpoint, has_open_commit=False))


def roll_back_runs(tx: JobTransaction, operator: OperatorRecord, checkpoints: Iterable[CheckpointRecord]) -> None:
    """Roll back the newest checkpoints of an operator, so that the state no longer contains the work of their runs."""
    roll_back(tx, checkpoints)
    left = next(iter(restorable(tx, operator)), None)
    leave_out(tx, operator, 0 if left is None else left.checkpoint_id)


def leave_out(tx: JobTransaction, of: OperatorRecord | AttemptRecord, checkpoint_id: int) -> None:
    """Record that the state no longer contains the work of the complete checkpoints that are newer than a given one."""
    # Retention has subsumed most checkpoints of a run before the run is rolled back.
    for each in tx.completed_after(of.operator_id, of.generation, checkpoint_id):
        tx.update_checkpoint(replace(each, unusable_reason=ROLLED_BACK), expected=each.status)


def end_commits(
    tx: JobTransaction,
    operator_id: OperatorId,
    where: Callable[[CheckpointRecord], bool],
    summary_of: Callable[[CheckpointRecord], CheckpointSummary | None] = lambda checkpoint: checkpoint.summary,
) -> None:
    """
    Close the open commits of the checkpoints of an operator that match ``where``.

    :param summary_of: Figures of a checkpoint after its commit; by default those before.
    """
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.awaits_commit and where(checkpoint):
            committed = replace(checkpoint, has_open_commit=False, summary=summary_of(checkpoint))
            tx.update_checkpoint(committed, expected=checkpoint.status)


def mark_discarded(tx: JobTransaction, operator_id: OperatorId, checkpoint_ids: Iterable[int]) -> None:
    """
    Record that the files of ended checkpoints are deleted, and ignore other checkpoints.

    Rows may have changed since the caller deleted the files, so the check uses the rows of this transaction.
    """
    protected, deleted = _protected(tx, operator_id), frozenset(checkpoint_ids)
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.checkpoint_id not in deleted or not checkpoint.awaits_discard:
            continue
        if checkpoint.checkpoint_id in protected:
            log.error("Files of checkpoint %s of job %s deleted while in use", checkpoint.checkpoint_id, tx.job.name)
        elif not _may_have_writer(tx, checkpoint):
            tx.update_checkpoint(replace(checkpoint, discarded_at=tx.now), expected=checkpoint.status)
            if checkpoint.status is CheckpointStatus.DISPOSED:
                _settle_disposal(tx, checkpoint)


def close_abandoned(tx: JobTransaction, attempt: AttemptRecord) -> None:
    """Fence an attempt whose driver has stopped, and abort its pending checkpoints."""
    abort_pending(tx, attempt.operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
    tx.save_attempt(replace(attempt, status=AttemptStatus.FENCED, ended_at=tx.now))
    log.info("Job %s: closed abandoned attempt %s (%s)", tx.job.name, attempt.epoch, attempt.owner.label)


def end_outdated_requests(tx: JobTransaction, attempt: AttemptRecord, *, is_wanted: bool) -> None:
    """
    Fail the open requests of earlier attempts for a savepoint at their end that is not one at the end of a new attempt.

    :param is_wanted: Whether it requests a savepoint at its end, and takes over the request of an earlier attempt of
        its run.
    """
    for request in tx.open_requests(attempt.operator_id):
        asking = tx.attempt_by_key(request.request_key) if request.properties.is_terminate else None
        if asking is None or (is_wanted and asking.owner.run_key == attempt.owner.run_key):
            continue
        message = f"not taken before attempt {attempt.epoch} ({attempt.owner.label}) started"
        fail_request(tx, request, CheckpointFailureReason.ATTEMPT_ENDED, message)


def end_unserved_requests(tx: JobTransaction, operator_id: OperatorId, request_keys: Collection[str]) -> None:
    """Fail the queued requests for a savepoint at the end of attempts whose run has ended."""
    for request in tx.open_requests(operator_id):
        if request.request_key in request_keys and request.status is RequestStatus.QUEUED:
            message = "not taken before the run ended: the stage did not finish, or has no checkpoint"
            fail_request(tx, request, CheckpointFailureReason.ATTEMPT_ENDED, message)


def fail_request(
    tx: JobTransaction,
    request: CheckpointRequest,
    reason: CheckpointFailureReason,
    message: str = "",
    *,
    failed_by: str | None = None,
) -> CheckpointRequest:
    """
    Fail a request and return it.

    :param message: Failure message; that of the reason by default.
    :param failed_by: Key of the request for which the full queue refuses it.
    """
    failed = replace(
        request,
        status=RequestStatus.FAILED,
        ended_at=tx.now,
        failure_reason=reason.value,
        failure_message=storable_text(message or reason.message),
        failed_by=failed_by,
    )
    tx.save_request(failed)
    return failed


def request_savepoint_at_end(tx: JobTransaction, attempt: AttemptRecord) -> None:
    """Request a savepoint for the end of an attempt's stage, unless an earlier attempt has left such a request open."""
    if any(each.properties.is_terminate for each in tx.open_requests(attempt.operator_id)):
        return
    tx.save_request(
        CheckpointRequest(
            job_id=attempt.job_id,
            request_key=attempt.attempt_key,
            operator_id=attempt.operator_id,
            properties=CheckpointProperties.for_sync_savepoint(terminate=True),
            requested_by=attempt.owner.label,
            requested_at=tx.now,
        )
    )


def begin_request(tx: JobTransaction, request_key: str, checkpoint_id: int) -> CheckpointRequest:
    """
    Mark an open request as running with the id of its checkpoint.

    :raises CheckpointNotFoundError: if the request does not exist or has ended.
    """
    request = tx.request(request_key)
    if request is None or not request.status.is_open:
        found = "none" if request is None else request.status.value
        raise CheckpointNotFoundError(
            f"Expected an open savepoint request in job {tx.job.name!r}, found {found}; request the savepoint again.",
            request_key=request_key,
        )
    running = replace(request, status=RequestStatus.RUNNING, checkpoint_id=checkpoint_id)
    tx.save_request(running)
    return running


def settle_request(tx: JobTransaction, ended: CheckpointRecord) -> None:
    """End the request of a checkpoint that has ended, or return the request to the queue for another attempt."""
    for request in _requests_of(tx, ended):
        if request.checkpoint_id == ended.checkpoint_id:
            tx.save_request(_settled_request(tx, request, ended))


def _requests_of(tx: JobTransaction, ended: CheckpointRecord) -> list[CheckpointRequest]:
    # A stage takes its checkpoints without a request.
    is_requested = ended.properties.is_savepoint or ended.is_of_job
    return tx.open_requests(ended.operator_id) if is_requested else []


def properties_of(request: RequestSavepoint) -> CheckpointProperties:
    """
    Return the properties of a requested savepoint.

    :raises InvalidConfigurationError: if the kind is not one of a savepoint.
    """
    if not request.kind.is_savepoint:
        raise InvalidConfigurationError(
            f"Expected the kind of a savepoint, found {request.kind.value!r}; set another kind."
        )
    if request.kind is CheckpointType.SAVEPOINT:
        return CheckpointProperties.for_savepoint(savepoint_format=request.savepoint_format)
    return CheckpointProperties.for_sync_savepoint(
        terminate=request.kind.is_terminate, savepoint_format=request.savepoint_format
    )


def restorable(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    """Return the restorable checkpoints of the generation of an operator or attempt, newest first."""
    rows = tx.open_checkpoints(of.operator_id)
    return tuple(c for c in reversed(rows) if c.is_restorable and c.generation == of.generation)


def effects_of(tx: JobTransaction, operator_id: OperatorId) -> OpenEffects:
    """Return the open effects of an operator after this transaction's changes."""
    operator = tx.operator(operator_id)
    attempt = tx.attempt(operator_id, operator.epoch) if operator is not None else None
    generation = 0 if operator is None else operator.generation
    effects = open_effects(tx.open_checkpoints(operator_id), generation, attempt, tx.open_requests(operator_id))
    if operator is None or operator.is_of_job:
        return effects
    return replace(effects, stop=_stop_of(tx, operator))


def _stop_of(tx: JobTransaction, operator: OperatorRecord) -> CheckpointRecord | None:
    """Return the pending savepoint with which the job suspends, unless it awaits a checkpoint of the stage."""
    newest = next(iter(restorable(tx, operator)), None)
    # A stage that waits takes no checkpoint, so it must have given one with confirmed commits.
    if newest is None or newest.unusable_reason is not None:
        return None
    if any(c.awaits_commit for c in restorable(tx, operator)):
        return None
    return next((c for c in _suspending(tx) if newest.is_after(c)), None)


def _suspending(tx: JobTransaction) -> Iterator[CheckpointRecord]:
    for request in tx.requests_of_job():
        is_stop = request.properties.snapshot_type is CheckpointType.SAVEPOINT_SUSPEND
        # The requests of a coordinator in a program have no requester, and stop the tasks of that program only.
        if is_stop and request.requested_by and request.checkpoint_id is not None:
            savepoint = tx.checkpoint(request.checkpoint_id)
            if savepoint is not None and savepoint.status is CheckpointStatus.PENDING and savepoint.expires_at > tx.now:
                yield savepoint


def suspended_with(checkpoints: Iterable[CheckpointRecord]) -> list[CheckpointRecord]:
    """Return the complete savepoints with which an operator was suspended, of its checkpoints."""
    completed = (c for c in checkpoints if c.status is CheckpointStatus.COMPLETED)
    return [c for c in completed if c.properties.snapshot_type is CheckpointType.SAVEPOINT_SUSPEND]


def job_suspended_with(tx: JobTransaction) -> list[CheckpointRecord]:
    """Return the complete savepoints with which a user suspended the whole job."""
    taken = suspended_with(tx.checkpoints_of_job())
    requested = {r.checkpoint_id for r in tx.view().requests if r.requested_by} if taken else set()
    return [c for c in taken if c.checkpoint_id in requested]


def _settled_request(tx: JobTransaction, request: CheckpointRequest, checkpoint: CheckpointRecord) -> CheckpointRequest:
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return replace(request, status=RequestStatus.COMPLETED, ended_at=tx.now)
    if _is_retried(request, checkpoint):
        return replace(request, status=RequestStatus.QUEUED, checkpoint_id=None)
    return replace(
        request,
        status=RequestStatus.FAILED,
        ended_at=tx.now,
        failure_reason=checkpoint.failure_reason,
        failure_message=checkpoint.failure_message,
    )


def _is_retried(request: CheckpointRequest, ended: CheckpointRecord) -> bool:
    if not ended.is_of_job:
        return ended.failure_reason in _RETRIED_REASONS
    # The coordinator ended before it had triggered all tasks. Its own requests fail, because a program waits for them.
    return ended.failure_reason == CheckpointFailureReason.JOB_FAILURE.value and bool(request.requested_by)


def _settle_disposal(tx: JobTransaction, savepoint: CheckpointRecord) -> None:
    for action in tx.open_actions(savepoint.operator_id):
        if (action.action, action.checkpoint_id) == (JobAction.DISPOSE, savepoint.checkpoint_id):
            end_action(tx, action, RequestStatus.COMPLETED, "its files are deleted")


def _record_end(tx: JobTransaction, ended: CheckpointRecord) -> None:
    statistics.ended(tx, ended)
    settle_request(tx, ended)
    if ended.is_of_job and ended.properties.is_savepoint:
        _unpin_parts(tx)


def _unpin_parts(tx: JobTransaction) -> None:
    for operator, _ in tx.operators_besides(frozenset()):
        if operator.pinned_checkpoint is not None:
            tx.save_operator(replace(operator, pinned_checkpoint=None))


def _began_at(tx: JobTransaction, pending: CheckpointRecord, increment_seconds: float) -> datetime:
    # The driver reports a duration because its clock may differ from the coordinator's.
    elapsed = (tx.now - pending.triggered_at).total_seconds()
    ahead = max(min(increment_seconds, elapsed), 0.0) if increment_seconds > 0 else 0.0
    return pending.triggered_at + timedelta(seconds=ahead)


def mark_subsumed(tx: JobTransaction, checkpoint: CheckpointRecord) -> CheckpointRecord:
    """Subsume a completed checkpoint, and return its row."""
    subsumed = replace(checkpoint, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
    tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)
    if is_savepoint_directory(checkpoint.location) and not checkpoint.properties.unclaimed:
        _dispose_of_claimed(tx, checkpoint)
    return subsumed


def _dispose_of_claimed(tx: JobTransaction, claiming: CheckpointRecord) -> None:
    # The operator has claimed its own savepoint, whose files go with the checkpoint that it has become.
    claimed = canonical_uri(claiming.location)
    for other in tx.open_checkpoints(claiming.operator_id):
        is_claimed = canonical_uri(other.location) == claimed and other.status is CheckpointStatus.COMPLETED
        if is_claimed and other.properties.is_savepoint:
            tx.update_checkpoint(
                replace(other, status=CheckpointStatus.DISPOSED, ended_at=tx.now), expected=CheckpointStatus.COMPLETED
            )


def _is_expired(pending: CheckpointRecord, now: datetime) -> bool:
    # The time of a restore is not limited.
    return pending.expires_at <= now and not pending.is_adoption


def _protected(tx: JobTransaction, operator_id: OperatorId) -> frozenset[int]:
    operator = tx.operator(operator_id)
    if operator is None:
        return frozenset()
    attempt = tx.attempt(operator_id, operator.epoch)
    return protected_checkpoints(tx.open_checkpoints(operator_id), operator.generation, attempt)


def _may_have_writer(tx: JobTransaction, checkpoint: CheckpointRecord) -> bool:
    # Garbage collection does not scan savepoint directories. The row stays open, and a later discard deletes late
    # files.
    is_aborted = checkpoint.status is CheckpointStatus.ABORTED
    return is_aborted and checkpoint.properties.is_savepoint and tx.now < checkpoint.expires_at
