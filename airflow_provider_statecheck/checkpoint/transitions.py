"""Status transitions of a checkpoint row, and the effects that follow from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import statistics
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeCheckpoint, OpenEffects, RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.checkpoint.subsumption import subsumed_by_retention
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError


def open_effects(
    checkpoints: Iterable[CheckpointRecord],
    generation: int,
    attempt: AttemptRecord | None,
    requests: Iterable[SnapshotRequest] = (),
) -> OpenEffects:
    """
    Say what of an operator's bytes is to be deleted, what must stay, and what its sink has to commit.

    :param checkpoints: The operator's checkpoints that are not yet discarded, oldest first.
    :param generation: That of the operator.
    :param attempt: The newest attempt; while it runs, what it restored from is pinned.
    :param requests: What is asked of the operator and has not ended.
    """
    rows = list(checkpoints)
    pinned = needed_though_ended(rows, generation, attempt)
    return OpenEffects(
        discards=tuple(c for c in rows if c.awaits_discard and c.checkpoint_id not in pinned),
        retained=tuple(c for c in rows if c.status is CheckpointStatus.COMPLETED or _is_pinned(c, pinned)),
        savepoints=tuple(r for r in requests if r.properties.is_savepoint and r.status is RequestStatus.QUEUED),
        commits=tuple(c.checkpoint_id for c in rows if c.awaits_commit),
    )


def needed_though_ended(
    checkpoints: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None
) -> frozenset[int]:
    """
    Return the checkpoints of an operator whose bytes must stay even if they are not restored any more.

    :param checkpoints: All of the operator.
    :param generation: That of the operator.
    :param attempt: The newest attempt.
    """
    return frozenset(_pinned(attempt) | _taken_back(checkpoints, generation, attempt))


def _pinned(attempt: AttemptRecord | None) -> set[int]:
    if attempt is None or attempt.status is not AttemptStatus.RUNNING or attempt.restored_from is None:
        return set()
    return {attempt.restored_from}


def _taken_back(rows: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None) -> set[int]:
    # A run that begins again may find that it cannot; until it has something newer, its state of before is the only one.
    mine = [c for c in rows if c.generation == generation]
    newest = max((c.checkpoint_id for c in mine if c.is_restorable), default=None)
    if newest is None or attempt is None:
        return set()
    subsumed = (c for c in mine if c.status is CheckpointStatus.SUBSUMED and c.discarded_at is None)
    given_up = (c for c in subsumed if c.checkpoint_id > newest)
    return {c.checkpoint_id for c in given_up if not _has_worked_since(attempt, c)}


def _has_worked_since(attempt: AttemptRecord, taken_back: CheckpointRecord) -> bool:
    # A job may be rewound after its last attempt; that one's end is not the end of work that replaces it.
    is_later = taken_back.ended_at is None or attempt.registered_at >= taken_back.ended_at
    return attempt.status is AttemptStatus.FINISHED and is_later


def _is_pinned(checkpoint: CheckpointRecord, pinned: frozenset[int]) -> bool:
    return checkpoint.checkpoint_id in pinned and checkpoint.metadata_uri is not None


LONGEST_WRITE = timedelta(days=1)
"""How long a savepoint may take: all bytes of the state are copied, however long a checkpoint of a few new ones may take."""

_SERVED_AGAIN = frozenset(
    {CheckpointFailureReason.ATTEMPT_ENDED.value, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND.value}
)


def properties_of(request: RequestSavepoint) -> CheckpointProperties:
    """
    Return the properties of the savepoint that is asked for.

    :raises InvalidConfigurationError: if no savepoint is.
    """
    if not request.kind.is_savepoint:
        raise InvalidConfigurationError(f"Expected to be asked for a savepoint, found {request.kind.value!r}.")
    if request.kind is CheckpointType.SAVEPOINT:
        return CheckpointProperties.for_savepoint(savepoint_format=request.savepoint_format)
    return CheckpointProperties.for_sync_savepoint(
        terminate=request.kind.is_terminate, savepoint_format=request.savepoint_format
    )


def begin(tx: JobTransaction, request_key: str, checkpoint_id: int) -> SnapshotRequest:
    """
    Say which checkpoint is taken for an open request.

    :raises CheckpointNotFoundError: if there is no such request, or it has ended.
    """
    request = tx.request(request_key)
    if request is None or not request.status.is_open:
        found = "none" if request is None else request.status.value
        raise CheckpointNotFoundError(
            f"Expected an open request for a savepoint in job {tx.job.name!r}, found {found}; ask for the savepoint again.",
            request_key=request_key,
        )
    running = replace(request, status=RequestStatus.RUNNING, checkpoint_id=checkpoint_id)
    tx.save_request(running)
    return running


def settle(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    """End the request that a savepoint was taken for, or put it back where another attempt can serve it."""
    for request in tx.open_requests(checkpoint.operator_id):
        if request.checkpoint_id == checkpoint.checkpoint_id:
            tx.save_request(_settled(tx, request, checkpoint))


def _settled(tx: JobTransaction, request: SnapshotRequest, checkpoint: CheckpointRecord) -> SnapshotRequest:
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return replace(request, status=RequestStatus.COMPLETED, ended_at=tx.now)
    if checkpoint.failure_reason in _SERVED_AGAIN:
        return replace(request, status=RequestStatus.QUEUED, checkpoint_id=None)
    return replace(
        request,
        status=RequestStatus.FAILED,
        ended_at=tx.now,
        failure_reason=checkpoint.failure_reason,
        failure_message=checkpoint.failure_message,
    )


log = logging.getLogger(__name__)


def complete(tx: JobTransaction, pending: CheckpointRecord, message: AcknowledgeCheckpoint) -> CheckpointRecord:
    """Make a pending checkpoint the one to restore from."""
    completed = replace(
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
        has_open_commit=message.has_commit and not pending.properties.is_savepoint,
    )
    tx.update_checkpoint(completed, expected=CheckpointStatus.PENDING)
    _settle(tx, completed)
    return completed


def abort(
    tx: JobTransaction,
    pending: CheckpointRecord,
    reason: CheckpointFailureReason,
    message: str = "",
    increment_seconds: float = 0.0,
) -> None:
    """
    End a pending checkpoint without completing it.

    :param increment_seconds: How long the increment took for which its id was drawn ahead.
    """
    aborted = replace(
        pending,
        status=CheckpointStatus.ABORTED,
        triggered_at=_began_at(tx, pending, increment_seconds),
        ended_at=tx.now,
        failure_reason=reason.value,
        failure_message=message or reason.message,
    )
    tx.update_checkpoint(aborted, expected=CheckpointStatus.PENDING)
    if not pending.is_adoption:
        _settle(tx, aborted)
    log.debug("Checkpoint %s of job %s aborted: %s", pending.checkpoint_id, tx.job.name, reason.value)


def abort_pending(
    tx: JobTransaction,
    operator_id: OperatorId,
    reason: CheckpointFailureReason,
    where: Callable[[CheckpointRecord], bool] = lambda _: True,
) -> None:
    """End the pending checkpoints of an operator for which ``where`` holds."""
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.status is CheckpointStatus.PENDING and where(checkpoint):
            abort(tx, checkpoint, reason)


def expire(tx: JobTransaction, operator_id: OperatorId) -> None:
    """End the pending checkpoints of an operator whose time is over."""
    abort_pending(tx, operator_id, CheckpointFailureReason.CHECKPOINT_EXPIRED, lambda c: _is_due(c, tx.now))


def subsume(tx: JobTransaction, operator_id: OperatorId, num_retained: int, retained_runs: int) -> None:
    """Take the completed checkpoints that fall out of retention away from restore."""
    rows = [c for c in tx.open_checkpoints(operator_id) if c.is_restorable]
    for checkpoint in subsumed_by_retention(rows, num_retained, retained_runs):
        _take_away(tx, checkpoint)


def take_back(tx: JobTransaction, checkpoints: Iterable[CheckpointRecord]) -> None:
    """Take completed checkpoints away from restore whose run begins again; nothing of them is to be committed any more."""
    for checkpoint in checkpoints:
        _take_away(tx, replace(checkpoint, has_open_commit=False))


def end_commits(tx: JobTransaction, operator_id: OperatorId, where: Callable[[CheckpointRecord], bool]) -> None:
    """Record of the checkpoints of an operator for which ``where`` holds that nothing of them is to be committed any more."""
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.awaits_commit and where(checkpoint):
            tx.update_checkpoint(replace(checkpoint, has_open_commit=False), expected=checkpoint.status)


def discarded(tx: JobTransaction, operator_id: OperatorId, checkpoint_ids: Iterable[int]) -> None:
    """
    Record that the bytes of an operator's ended checkpoints are gone; any other checkpoint is left as it is.

    What the caller saw when it deleted may have changed since, so the rows of this transition decide.
    """
    needed, gone = _needed_though_ended(tx, operator_id), frozenset(checkpoint_ids)
    for checkpoint in tx.open_checkpoints(operator_id):
        if checkpoint.checkpoint_id not in gone or not checkpoint.awaits_discard:
            continue
        if checkpoint.checkpoint_id in needed:
            log.error("Checkpoint %s of job %s is still needed", checkpoint.checkpoint_id, tx.job.name)
        elif not _may_be_written(tx, checkpoint):
            tx.update_checkpoint(replace(checkpoint, discarded_at=tx.now), expected=checkpoint.status)


def _take_away(tx: JobTransaction, checkpoint: CheckpointRecord) -> None:
    subsumed = replace(checkpoint, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
    tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)


def _is_due(pending: CheckpointRecord, now: datetime) -> bool:
    # How long a restore takes is not limited.
    return pending.expires_at <= now and not pending.is_adoption


def _needed_though_ended(tx: JobTransaction, operator_id: OperatorId) -> frozenset[int]:
    operator = tx.operator(operator_id)
    if operator is None:
        return frozenset()
    attempt = tx.attempt(operator_id, operator.epoch)
    return needed_though_ended(tx.open_checkpoints(operator_id), operator.generation, attempt)


def _may_be_written(tx: JobTransaction, checkpoint: CheckpointRecord) -> bool:
    # Nobody sweeps where savepoints lie, so what a writer that was ended adds later is deleted by discarding once more.
    is_aborted = checkpoint.status is CheckpointStatus.ABORTED
    return is_aborted and checkpoint.properties.is_savepoint and tx.now < checkpoint.expires_at


def close_abandoned(tx: JobTransaction, attempt: AttemptRecord) -> None:
    """End an attempt whose driver is known to be gone, and what it had pending."""
    abort_pending(tx, attempt.operator_id, CheckpointFailureReason.ATTEMPT_ENDED)
    tx.save_attempt(replace(attempt, status=AttemptStatus.FENCED, ended_at=tx.now))
    log.info("Job %s: attempt %s (%s) closed, it is abandoned", tx.job.name, attempt.epoch, attempt.owner.label)


def restorable(tx: JobTransaction, of: OperatorRecord | AttemptRecord) -> tuple[CheckpointRecord, ...]:
    """Return the checkpoints of a generation of an operator that a restore may start from, newest first."""
    rows = tx.open_checkpoints(of.operator_id)
    return tuple(c for c in reversed(rows) if c.is_restorable and c.generation == of.generation)


def effects_of(tx: JobTransaction, operator_id: OperatorId) -> OpenEffects:
    """Return what is open for an operator after this transition."""
    operator = tx.operator(operator_id)
    attempt = tx.attempt(operator_id, operator.epoch) if operator is not None else None
    generation = 0 if operator is None else operator.generation
    return open_effects(tx.open_checkpoints(operator_id), generation, attempt, tx.open_requests(operator_id))


def _began_at(tx: JobTransaction, pending: CheckpointRecord, increment_seconds: float) -> datetime:
    # The driver tells a duration, because its clock may differ from the one that dated the row.
    elapsed = (tx.now - pending.triggered_at).total_seconds()
    ahead = max(min(increment_seconds, elapsed), 0.0) if increment_seconds > 0 else 0.0
    return pending.triggered_at + timedelta(seconds=ahead)


def _settle(tx: JobTransaction, ended: CheckpointRecord) -> None:
    statistics.ended(tx, ended)
    if ended.properties.is_savepoint:
        settle(tx, ended)
