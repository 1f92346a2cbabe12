"""
Status transitions of aligned checkpoints in the rows.

Each function runs in a transaction of the job. A checkpoint is pending until all acknowledgements have arrived, then
finalizing, then completed; a pending or finalizing checkpoint may be aborted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from airflow_provider_statecheck.checkpoint import statistics, transitions as rows
from airflow_provider_statecheck.checkpoint.aligned.plan import CheckpointPlan
from airflow_provider_statecheck.checkpoint.failure import CheckpointException
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID, require_running
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    CheckpointRecord,
    CheckpointStatus,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CoordinatorError

REMEMBERED_CHECKPOINTS = 16
COORDINATOR = "coordinator"
"""The attempt id in the acknowledgement row of the coordinator."""
_ENDED = (
    CheckpointStatus.COMPLETED,
    CheckpointStatus.SUBSUMED,
    CheckpointStatus.DISPOSED,
    CheckpointStatus.ABORTED,
)


class Verdict(StrEnum):
    """The verdict on an acknowledgement."""

    SUCCESS = "success"
    """The checkpoint awaits it."""
    DUPLICATE = "duplicate"
    """The attempt has acknowledged before."""
    UNKNOWN = "unknown"
    """The checkpoint does not await this attempt."""
    DISCARDED = "discarded"
    """The checkpoint has ended recently."""
    FORGOTTEN = "forgotten"
    """The checkpoint does not exist or ended long ago."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """The verdict on an acknowledgement and the rows of its checkpoint."""

    verdict: Verdict
    checkpoint: CheckpointRecord | None = None
    acknowledgements: tuple[AcknowledgementRecord, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Aborted:
    """A checkpoint that was just aborted, with its acknowledgements."""

    checkpoint: CheckpointRecord
    acknowledgements: tuple[AcknowledgementRecord, ...]
    error: CheckpointException
    attempt_id: str | None = None
    operator: str = ""


def of_status(tx: JobTransaction, status: CheckpointStatus) -> list[CheckpointRecord]:
    """Return the aligned checkpoints with a status whose files exist, oldest first."""
    return [c for c in tx.open_checkpoints(ALIGNED_OPERATOR_ID) if c.status is status]


def in_progress(tx: JobTransaction) -> list[CheckpointRecord]:
    """Return the pending and finalizing checkpoints."""
    return [*of_status(tx, CheckpointStatus.PENDING), *of_status(tx, CheckpointStatus.FINALIZING)]


def is_triggered(tx: JobTransaction, checkpoint_id: int) -> bool:
    """Return whether all tasks of a pending checkpoint were triggered and the coordinator's manifest is written."""
    own = (a for a in tx.acknowledgements(checkpoint_id) if a.operator_id == ALIGNED_OPERATOR_ID)
    return all(a.is_acknowledged for a in own)


def is_triggering(tx: JobTransaction) -> bool:
    """Return whether any process is triggering a checkpoint."""
    return not all(is_triggered(tx, c.checkpoint_id) for c in of_status(tx, CheckpointStatus.PENDING))


def last_completed_at(tx: JobTransaction) -> datetime | None:
    """Return the completion time of the last completed checkpoint."""
    times = [c.completed_at for c in tx.open_checkpoints(ALIGNED_OPERATOR_ID) if c.completed_at is not None]
    return max(times, default=None)


def begin(
    tx: JobTransaction,
    leader: AttemptRef,
    request: SnapshotRequest,
    plan: CheckpointPlan,
    checkpoint_id: int,
    location: str,
    timeout: timedelta,
) -> CheckpointRecord:
    """Add a pending checkpoint with the rows of its awaited acknowledgements, and start its request."""
    checkpoint = rows.begin(
        tx,
        require_running(tx, leader),
        checkpoint_id=checkpoint_id,
        location=location,
        timeout=timeout,
        request_key=request.request_key,
        properties=request.properties,
        is_periodic=request.is_periodic,
    )
    for acknowledgement in _awaited_acknowledgements(checkpoint, plan):
        tx.save_acknowledgement(acknowledgement)
    tx.save_request(replace(request, status=RequestStatus.RUNNING, checkpoint_id=checkpoint_id))
    return checkpoint


def _awaited_acknowledgements(checkpoint: CheckpointRecord, plan: CheckpointPlan) -> Iterable[AcknowledgementRecord]:
    yield _awaited_acknowledgement(checkpoint, ALIGNED_OPERATOR_ID, COORDINATOR, is_finished=False)
    for task in plan.finished_tasks:
        yield _awaited_acknowledgement(checkpoint, task.operator_id, task.attempt_id, is_finished=True)
    for task in plan.tasks_to_wait_for:
        yield _awaited_acknowledgement(checkpoint, task.operator_id, task.attempt_id, is_finished=False)


def _awaited_acknowledgement(
    checkpoint: CheckpointRecord, operator_id: OperatorId, attempt_id: str, *, is_finished: bool
) -> AcknowledgementRecord:
    return AcknowledgementRecord(
        job_id=checkpoint.job_id,
        checkpoint_id=checkpoint.checkpoint_id,
        operator_id=operator_id,
        attempt_id=attempt_id,
        is_finished=is_finished,
    )


def assess(tx: JobTransaction, checkpoint_id: int, attempt_id: str) -> Assessment:
    """Return the verdict on an acknowledgement."""
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or checkpoint.operator_id != ALIGNED_OPERATOR_ID:
        return Assessment(verdict=Verdict.FORGOTTEN)
    acknowledgements = tuple(tx.acknowledgements(checkpoint_id))
    return Assessment(
        verdict=_verdict(tx, checkpoint, acknowledgements, attempt_id),
        checkpoint=checkpoint,
        acknowledgements=acknowledgements,
    )


def _verdict(
    tx: JobTransaction,
    checkpoint: CheckpointRecord,
    acknowledgements: tuple[AcknowledgementRecord, ...],
    attempt_id: str,
) -> Verdict:
    own = acknowledgement_of(acknowledgements, attempt_id)
    if checkpoint.status in _ENDED:
        # A task repeats an acknowledgement if the reply was lost; its state belongs to the completed checkpoint.
        if own is not None and own.is_acknowledged and checkpoint.status is not CheckpointStatus.ABORTED:
            return Verdict.DUPLICATE
        return Verdict.DISCARDED if _is_remembered(tx, checkpoint.checkpoint_id) else Verdict.FORGOTTEN
    if own is None:
        return Verdict.UNKNOWN
    return Verdict.DUPLICATE if own.is_acknowledged else Verdict.SUCCESS


def acknowledgement_of(
    acknowledgements: Iterable[AcknowledgementRecord], attempt_id: str
) -> AcknowledgementRecord | None:
    """Return the acknowledgement row of an attempt."""
    tasks = (a for a in acknowledgements if a.operator_id != ALIGNED_OPERATOR_ID)
    return next((a for a in tasks if a.attempt_id == attempt_id), None)


def _is_remembered(tx: JobTransaction, checkpoint_id: int) -> bool:
    mine = (c for c in tx.view().checkpoints if c.operator_id == ALIGNED_OPERATOR_ID and c.status in _ENDED)
    latest = sorted(mine, key=lambda c: (c.ended_at or c.completed_at or c.triggered_at, c.checkpoint_id))
    return checkpoint_id in {c.checkpoint_id for c in latest[-REMEMBERED_CHECKPOINTS:]}


def record_late(tx: JobTransaction, checkpoint: CheckpointRecord, size_bytes: int) -> None:
    """Record the time of a late acknowledgement in the statistics of an aborted checkpoint."""
    known = statistics.load(tx, ALIGNED_OPERATOR_ID)
    if checkpoint.status is not CheckpointStatus.ABORTED or known.is_late(checkpoint.checkpoint_id):
        return
    changed = known.annotated(checkpoint.checkpoint_id, state_size_bytes=size_bytes, late_at=tx.now)
    if changed != known:
        statistics.save(tx, ALIGNED_OPERATOR_ID, changed)


def finalize_if_complete(
    tx: JobTransaction, checkpoint_id: int, finalizer: str, lease: timedelta
) -> CheckpointRecord | None:
    """Assign a fully acknowledged pending checkpoint to a finalizer; ``None`` for any other checkpoint."""
    checkpoint = tx.checkpoint(checkpoint_id)
    if checkpoint is None or checkpoint.status is not CheckpointStatus.PENDING:
        return None
    if not all(a.is_acknowledged for a in tx.acknowledgements(checkpoint_id)):
        return None
    finalizing = replace(
        checkpoint, status=CheckpointStatus.FINALIZING, finalizer=finalizer, lease_until=tx.now + lease
    )
    tx.update_checkpoint(finalizing, expected=CheckpointStatus.PENDING)
    return finalizing


def take_over(tx: JobTransaction, finalizer: str, lease: timedelta) -> list[CheckpointRecord]:
    """Assign the checkpoints whose lease has expired to another finalizer."""
    expired = [
        c for c in of_status(tx, CheckpointStatus.FINALIZING) if c.lease_until is None or c.lease_until <= tx.now
    ]
    taken = [replace(c, finalizer=finalizer, lease_until=tx.now + lease) for c in expired]
    for checkpoint in taken:
        tx.update_checkpoint(checkpoint, expected=CheckpointStatus.FINALIZING)
    return taken


def is_held(tx: JobTransaction, checkpoint: CheckpointRecord) -> bool:
    """Return whether a finalizing checkpoint is still assigned to the same finalizer."""
    found = tx.checkpoint(checkpoint.checkpoint_id)
    return (
        found is not None
        and found.status is CheckpointStatus.FINALIZING
        and (found.finalizer, found.lease_until) == (checkpoint.finalizer, checkpoint.lease_until)
    )


def abort(
    tx: JobTransaction, checkpoint: CheckpointRecord, error: CheckpointException, *, attempt_id: str | None = None
) -> Aborted:
    """
    Abort a checkpoint and fail its request.

    :param error: The cause of the abort.
    :param attempt_id: The attempt that caused the abort, ``None`` for the coordinator.
    :raises CoordinatorError: if the checkpoint has ended; the caller must roll back the transaction.
    """
    aborted = rows.abort(tx, checkpoint, error.reason, _failure_message(error))
    acknowledgements = tuple(tx.acknowledgements(checkpoint.checkpoint_id))
    return Aborted(checkpoint=aborted, acknowledgements=acknowledgements, error=error, attempt_id=attempt_id)


def fail_request(tx: JobTransaction, request: SnapshotRequest, error: CheckpointException) -> None:
    """Fail a request, unless it has already ended."""
    known = tx.request(request.request_key)
    if known is not None and not known.status.is_open:
        return
    tx.save_request(
        replace(
            request,
            status=RequestStatus.FAILED,
            ended_at=tx.now,
            failure_reason=error.reason.value,
            failure_message=_failure_message(error),
        )
    )


def require_finalizing(checkpoint: CheckpointRecord | None, checkpoint_id: int) -> CheckpointRecord:
    """
    Return the row of a checkpoint that is being finalized.

    :raises CoordinatorError: if the checkpoint has another status or does not exist.
    """
    if checkpoint is None or checkpoint.status is not CheckpointStatus.FINALIZING:
        found = "none" if checkpoint is None else checkpoint.status.value
        raise CoordinatorError(f"Expected checkpoint {checkpoint_id} to be fully acknowledged, found {found}.")
    return checkpoint


def _failure_message(error: CheckpointException) -> str:
    return str(error.__cause__) if error.__cause__ is not None else error.reason.message
