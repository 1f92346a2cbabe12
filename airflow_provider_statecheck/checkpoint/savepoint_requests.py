"""Requests for savepoints and what becomes of them with the checkpoints that are triggered for them."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError

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
