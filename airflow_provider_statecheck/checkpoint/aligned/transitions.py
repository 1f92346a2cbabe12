"""
Status transitions of aligned checkpoints in the rows.

Each function runs in a transaction of the job. A checkpoint is pending until all acknowledgements have arrived, then
finalizing, then completed; a pending or finalizing checkpoint may be aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import datetime, timedelta

from airflow_provider_statecheck.checkpoint import statistics, transitions as rows
from airflow_provider_statecheck.checkpoint.aligned.decider import CheckpointRequestDecider, Choice
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
    AcknowledgeAligned,
    AcknowledgedCheckpoint,
    Assessment,
    AwaitedTask,
    BeginCheckpoint,
    TakeLeadership,
)
from airflow_provider_statecheck.checkpoint.codec import require, storable_text
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.fencing import require_running
from airflow_provider_statecheck.checkpoint.ids import (
    OperatorId,
    checkpoint_uri,
    new_key,
    new_savepoint_uri,
)
from airflow_provider_statecheck.checkpoint.messages import AcknowledgeResult, AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.registration import skip_ids_on_storage
from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.checkpoint.statistics import truncated_cause
from airflow_provider_statecheck.checkpoint.store import (
    JobTransaction,
    operator_of_job,
)
from airflow_provider_statecheck.exceptions import InvalidConfigurationError

REMEMBERED_CHECKPOINTS = 16
COORDINATOR = "coordinator"
"""The attempt id in the acknowledgement row of the coordinator."""
_FREQUENT = (AbortScope.EXPIRED, AbortScope.OLDER)
"""The aborts at every tick or completed checkpoint, which read open rows only."""


def lead(tx: JobTransaction, request: TakeLeadership) -> AttemptRef:
    """
    Register a leader under the next epoch and fence the previous one.

    :raises StaleAttemptError: if the leader with this key has been replaced since.
    """
    skip_ids_on_storage(tx, request.newest_on_storage)
    known = tx.attempt_by_key(request.attempt_key)
    if known is not None:
        return AttemptRef.of(require_running(tx, AttemptRef.of(known)))
    operator = operator_of_job(tx)
    _fence(tx, operator)
    operator = replace(operator, epoch=operator.epoch + 1)
    tx.save_operator(operator)
    tx.save_attempt(_new_attempt(tx, operator, request))
    return AttemptRef.of(operator)


def _fence(tx: JobTransaction, operator: OperatorRecord) -> None:
    previous = rows.open_attempt(tx, operator)
    if previous is not None:
        tx.save_attempt(replace(previous, status=AttemptStatus.FENCED, ended_at=tx.now))
    for checkpoint in of_status(tx, CheckpointStatus.FINALIZING):
        # The fenced finalizer cannot finish, so the new leader need not wait for its lease to expire.
        tx.update_checkpoint(replace(checkpoint, lease_until=tx.now), expected=CheckpointStatus.FINALIZING)


def _new_attempt(tx: JobTransaction, operator: OperatorRecord, request: TakeLeadership) -> AttemptRecord:
    return AttemptRecord(
        job_id=operator.job_id,
        operator_id=operator.operator_id,
        epoch=operator.epoch,
        attempt_key=request.attempt_key,
        generation=operator.generation,
        status=AttemptStatus.RUNNING,
        owner=request.owner,
        start_reason="leads the aligned checkpoints",
        restored_from=None,
        storage_base=request.storage_base,
        num_retained=1,
        checkpoint_timeout_seconds=0.0,
        registered_at=tx.now,
    )


def of_status(tx: JobTransaction, status: CheckpointStatus) -> list[CheckpointRecord]:
    """Return the aligned checkpoints with a status whose files exist, oldest first."""
    return [c for c in tx.checkpoints_of_job() if c.status is status]


def is_triggered(acknowledgements: Iterable[AcknowledgementRecord]) -> bool:
    """Return whether all tasks of a pending checkpoint were triggered and the coordinator's manifest is written."""
    return all(a.is_acknowledged for a in acknowledgements if a.is_of_job)


def choose(tx: JobTransaction, decider: CheckpointRequestDecider, cleanings: int) -> Choice:
    """Return the decision on the queue, without any effect."""
    pending = of_status(tx, CheckpointStatus.PENDING)
    completed = (c.completed_at for c in tx.checkpoints_of_job() if c.completed_at is not None)
    return decider.choose(
        tx.requests_of_job(),
        is_triggering=not all(is_triggered(tx.acknowledgements(c.checkpoint_id)) for c in pending),
        pending_count=len(pending) + len(of_status(tx, CheckpointStatus.FINALIZING)),
        cleanings=cleanings,
        last_completed_at=max(completed, default=None),
        now=tx.now,
    )


def begin(tx: JobTransaction, leader: AttemptRecord, message: BeginCheckpoint) -> CheckpointRecord | None:
    """Add a pending checkpoint with the rows of its awaited acknowledgements, and start its request."""
    for each in tx.requests_of_job():
        if each.request_key == message.request_key and each.checkpoint_id is not None:
            begun = tx.checkpoint(each.checkpoint_id)
            return begun if begun is not None and begun.finalizer == message.coordinator else None
    request = choose(tx, message.decider, message.cleanings).run
    if request is None or request.request_key != message.request_key:
        return None
    checkpoint = _add_pending(tx, leader, request, message)
    for task in (AwaitedTask(operator_id=leader.operator_id, attempt_id=COORDINATOR), *message.awaited):
        tx.save_acknowledgement(
            AcknowledgementRecord(
                job_id=checkpoint.job_id,
                checkpoint_id=checkpoint.checkpoint_id,
                operator_id=task.operator_id,
                attempt_id=task.attempt_id,
                is_finished=task.is_finished,
            )
        )
    tx.save_request(replace(request, status=RequestStatus.RUNNING, checkpoint_id=checkpoint.checkpoint_id))
    return checkpoint


def _add_pending(
    tx: JobTransaction, leader: AttemptRecord, request: CheckpointRequest, message: BeginCheckpoint
) -> CheckpointRecord:
    checkpoint_id, properties = tx.draw_checkpoint_id(), request.properties
    location = checkpoint_uri(leader.storage_base, leader.job_id, checkpoint_id)
    if properties.is_savepoint:
        # The files below are those of the job, so no task chooses the directory.
        location = new_savepoint_uri(_savepoint_parent(request, message), leader.job_id)
    elif message.is_full:
        properties = replace(properties, snapshot_type=CheckpointType.FULL_CHECKPOINT)
    return rows.begin(
        tx,
        leader,
        checkpoint_id=checkpoint_id,
        location=location,
        timeout=timedelta(seconds=message.timeout_seconds),
        # A request that returned to the queue begins another checkpoint.
        request_key=new_key(),
        properties=properties,
        is_periodic=request.is_periodic,
        finalizer=message.coordinator,
    )


def _savepoint_parent(request: CheckpointRequest, message: BeginCheckpoint) -> str:
    parent = request.target or message.savepoint_dir
    if parent is None:
        raise InvalidConfigurationError(
            "Expected a target or a savepoint_dir for a savepoint, found none; pass a target, or set "
            "execution.checkpointing.savepoint-dir.",
            key="savepoint_dir",
        )
    return parent


def acknowledge(tx: JobTransaction, message: AcknowledgeAligned) -> Assessment:
    """Return the verdict on an acknowledgement, and store one that the checkpoint awaits."""
    checkpoint = tx.checkpoint(message.checkpoint_id)
    if checkpoint is None or not checkpoint.is_of_job:
        return Assessment(verdict=AcknowledgeResult.FORGOTTEN)
    acknowledgements = tuple(tx.acknowledgements(message.checkpoint_id))
    own = acknowledgement_of(acknowledgements, message.attempt_id)
    verdict = _verdict(tx, checkpoint, own)
    if verdict is AcknowledgeResult.SUCCESS and own is not None:
        if not message.is_written:
            return Assessment(verdict=verdict, checkpoint=checkpoint)
        _save(tx, checkpoint, own, message)
        return Assessment(
            verdict=verdict, checkpoint=checkpoint, finalizing=_finalize_if_complete(tx, checkpoint, message)
        )
    if verdict is AcknowledgeResult.DISCARDED and checkpoint.status is CheckpointStatus.ABORTED:
        _record_late(tx, checkpoint, own, message)
    # The reply to the last acknowledgement may have been lost, and no other process finalizes the checkpoint before the
    # lease ends.
    is_repeated = verdict is AcknowledgeResult.DUPLICATE and message.is_written
    is_held_here = checkpoint.status is CheckpointStatus.FINALIZING and checkpoint.finalizer == message.finalizer
    finalizing = AcknowledgedCheckpoint(checkpoint=checkpoint, acknowledgements=acknowledgements)
    return Assessment(
        verdict=verdict,
        checkpoint=checkpoint,
        acknowledgements=acknowledgements,
        finalizing=finalizing if is_repeated and is_held_here else None,
    )


def _verdict(tx: JobTransaction, checkpoint: CheckpointRecord, own: AcknowledgementRecord | None) -> AcknowledgeResult:
    if not checkpoint.is_in_progress:
        # A task repeats an acknowledgement if the reply was lost; its state belongs to the completed checkpoint.
        if own is not None and own.is_acknowledged and checkpoint.status is not CheckpointStatus.ABORTED:
            return AcknowledgeResult.DUPLICATE
        return (
            AcknowledgeResult.DISCARDED if _is_remembered(tx, checkpoint.checkpoint_id) else AcknowledgeResult.FORGOTTEN
        )
    if own is None:
        return AcknowledgeResult.UNKNOWN
    return AcknowledgeResult.DUPLICATE if own.is_acknowledged else AcknowledgeResult.SUCCESS


def acknowledgement_of(
    acknowledgements: Iterable[AcknowledgementRecord], attempt_id: str | None
) -> AcknowledgementRecord | None:
    """Return the acknowledgement row of an attempt, or of the coordinator for ``None``."""
    if attempt_id is None:
        return next((a for a in acknowledgements if a.is_of_job), None)
    tasks = (a for a in acknowledgements if not a.is_of_job)
    return next((a for a in tasks if a.attempt_id == attempt_id), None)


def _is_remembered(tx: JobTransaction, checkpoint_id: int) -> bool:
    mine = (c for c in tx.view().checkpoints if c.is_of_job and not c.is_in_progress)
    latest = sorted(mine, key=lambda c: (c.ended_at or c.completed_at or c.triggered_at, c.checkpoint_id))
    return checkpoint_id in {c.checkpoint_id for c in latest[-REMEMBERED_CHECKPOINTS:]}


def _save(
    tx: JobTransaction, checkpoint: CheckpointRecord, own: AcknowledgementRecord, message: AcknowledgeAligned
) -> None:
    if message.manifest is not None:
        own = _with_manifest(own, message.manifest, checkpoint.location)
    tx.save_acknowledgement(
        replace(
            own,
            state_size_bytes=message.state_size_bytes,
            full_size_bytes=message.state_size_bytes,
            metrics=dict(message.metrics),
            acknowledged_at=tx.now,
        )
    )


def _record_late(
    tx: JobTransaction, aborted: CheckpointRecord, own: AcknowledgementRecord | None, message: AcknowledgeAligned
) -> None:
    # A repeated message finds its size in the row, and adds nothing.
    if own is not None and not own.is_acknowledged:
        _save(tx, aborted, own, replace(message, manifest=None))
    found = sum(a.state_size_bytes for a in tx.acknowledgements(aborted.checkpoint_id))
    statistics.acknowledged_late(tx, aborted, state_size_bytes=found)


def _with_manifest(own: AcknowledgementRecord, manifest: FileStateHandle, directory: str) -> AcknowledgementRecord:
    is_inside = manifest.uri.rpartition("/")[0] == directory
    require("manifest", manifest.uri, lambda _: is_inside, f"a file in {directory}")
    return replace(own, manifest_uri=manifest.uri, manifest_size=manifest.size, manifest_sha256=manifest.sha256)


def _finalize_if_complete(
    tx: JobTransaction, checkpoint: CheckpointRecord, message: AcknowledgeAligned
) -> AcknowledgedCheckpoint | None:
    acknowledgements = tuple(tx.acknowledgements(checkpoint.checkpoint_id))
    if not all(a.is_acknowledged for a in acknowledgements):
        return None
    lease_until = tx.now + timedelta(seconds=message.lease_seconds)
    finalizing = replace(
        checkpoint, status=CheckpointStatus.FINALIZING, finalizer=message.finalizer, lease_until=lease_until
    )
    tx.update_checkpoint(finalizing, expected=CheckpointStatus.PENDING)
    return AcknowledgedCheckpoint(checkpoint=finalizing, acknowledgements=acknowledgements)


def take_over(tx: JobTransaction, finalizer: str, lease: timedelta) -> list[CheckpointRecord]:
    """Assign the checkpoints whose lease has expired to another finalizer, and return all that it holds."""
    for each in of_status(tx, CheckpointStatus.FINALIZING):
        if each.lease_until is None or each.lease_until <= tx.now:
            taken = replace(each, finalizer=finalizer, lease_until=tx.now + lease)
            tx.update_checkpoint(taken, expected=CheckpointStatus.FINALIZING)
    # A repeated message also returns what the first one has taken over.
    return [c for c in of_status(tx, CheckpointStatus.FINALIZING) if c.finalizer == finalizer]


def is_held(checkpoint: CheckpointRecord, finalizer: str | None, lease_until: datetime | None) -> bool:
    """Return whether a finalizer still holds a checkpoint."""
    held = (checkpoint.finalizer, checkpoint.lease_until) == (finalizer, lease_until)
    return held and checkpoint.status is CheckpointStatus.FINALIZING


def abort(tx: JobTransaction, message: AbortCheckpoints) -> list[CheckpointRecord]:
    """
    Abort the checkpoints of a scope, and fail their requests and the queued ones of the scope.

    A repeated message returns the checkpoints that it aborted before, and has no further effect.
    """
    before = _aborted_before(tx, message)
    if before:
        return before
    if message.scope in (AbortScope.REQUEST, AbortScope.QUEUED, AbortScope.EVERYTHING):
        _fail_queued(tx, message)
    chosen = [c for c in tx.checkpoints_of_job() if _includes(tx, message, c)]
    keyed = [replace(c, finalizer=message.abort_key) for c in chosen]
    return [rows.abort(tx, c, message.reason, _failure_message(tx, message, c)) for c in keyed]


def _aborted_before(tx: JobTransaction, message: AbortCheckpoints) -> list[CheckpointRecord]:
    # The files may be deleted before a delayed message arrives; then only the view contains the rows.
    is_frequent = message.scope in _FREQUENT
    known = tx.checkpoints_of_job() if is_frequent else tx.view().checkpoints
    return [c for c in known if c.status is CheckpointStatus.ABORTED and c.finalizer == message.abort_key]


def _fail_queued(tx: JobTransaction, message: AbortCheckpoints) -> None:
    for request in tx.requests_of_job():
        is_included = message.scope is AbortScope.EVERYTHING or request.request_key == message.request_key
        if is_included and request.status is RequestStatus.QUEUED:
            rows.fail_request(tx, request, message.reason, message.message)


def _includes(tx: JobTransaction, message: AbortCheckpoints, checkpoint: CheckpointRecord) -> bool:
    if message.scope is AbortScope.FINALIZATION:
        is_named = checkpoint.checkpoint_id == message.checkpoint_id
        return is_named and is_held(checkpoint, message.finalizer, message.lease_until)
    return checkpoint.status is CheckpointStatus.PENDING and _includes_pending(tx, message, checkpoint)


def _includes_pending(tx: JobTransaction, message: AbortCheckpoints, pending: CheckpointRecord) -> bool:
    match message.scope:
        case AbortScope.CHECKPOINT:
            return pending.checkpoint_id == message.checkpoint_id
        case AbortScope.REQUEST:
            request = tx.request(message.request_key)
            return request is not None and request.checkpoint_id == pending.checkpoint_id
        case AbortScope.EXPIRED:
            return pending.expires_at <= tx.now
        case AbortScope.OLDER:
            completed = tx.checkpoint(message.checkpoint_id)
            return completed is not None and pending in rows.ended_by(tx, completed)
        case _:
            return message.scope is AbortScope.EVERYTHING


def _failure_message(tx: JobTransaction, message: AbortCheckpoints, checkpoint: CheckpointRecord) -> str:
    if message.scope is not AbortScope.EXPIRED:
        return message.message
    tasks = (a for a in tx.acknowledgements(checkpoint.checkpoint_id) if not a.is_of_job)
    awaited = [a.operator_id for a in tasks if not a.is_acknowledged]
    if not awaited:
        return message.message
    missing = [o for o in awaited if not checkpoint.properties.is_savepoint or not _is_pinned(tx, o)]
    if not missing:
        return "The savepoint expired before the copies of its members were finished"
    uids = sorted(message.uids.get(each, each) for each in missing)
    return storable_text(f"The checkpoint expired before {', '.join(map(repr, uids))} had acknowledged")


def _is_pinned(tx: JobTransaction, operator_id: OperatorId) -> bool:
    # A stage whose member is chosen has given it, and acknowledges when all members are copied.
    operator = tx.operator(operator_id)
    return operator is not None and operator.pinned_checkpoint is not None


def report_failure(
    tx: JobTransaction,
    operator_id: OperatorId,
    reason: CheckpointFailureReason,
    checkpoint_id: int | None,
    cause: str | None,
) -> None:
    """Count a failed checkpoint once, and add its cause to the statistics."""
    row = None if checkpoint_id is None else tx.checkpoint(checkpoint_id)
    known = statistics.load(tx, operator_id)
    if checkpoint_id is None or not known.has_counted(checkpoint_id):
        if row is None or row.operator_id != operator_id:
            statistics.save(tx, operator_id, known.rejected_once(reason.value))
        elif row.status is CheckpointStatus.ABORTED:
            statistics.ended(tx, row)
    if checkpoint_id is not None and cause is not None:
        known = statistics.load(tx, operator_id)
        changed = known.annotated(checkpoint_id, failure_cause=truncated_cause(storable_text(cause)))
        if changed != known:
            statistics.save(tx, operator_id, changed)
