"""
Savepoints: snapshots that belong to the user, asked for from outside the stage.

A request is a row. A stage that runs takes the savepoint at its next boundary; where none runs, whoever has the storage
copies the newest checkpoint, as the command and the maintenance Dag do.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from airflow_provider_statecheck.checkpoint import savepoint_requests, transitions
from airflow_provider_statecheck.checkpoint.claims import already_claimed
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.layout import is_savepoint_of, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import (
    BeginSavepoint,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.requests import SnapshotRequest
from airflow_provider_statecheck.checkpoint.statistics import recording
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.checkpoint.validation import require_metadata_in
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, ConcurrentAttemptError


class SavepointGateway(Protocol):
    """The coordinator as somebody sees it who wants a savepoint; every call may be repeated."""

    def request(self, request: RequestSavepoint) -> SnapshotRequest:
        """Ask for a savepoint of an operator."""
        ...

    def begin(self, request: BeginSavepoint) -> CheckpointRecord:
        """Draw the id of a savepoint that is copied from the newest checkpoint of an operator that does not run."""
        ...

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """Say that such a savepoint is written, or why it cannot be."""
        ...

    def dispose(self, request: DisposeSavepoint) -> DisposedSavepoint:
        """Give a savepoint up; its bytes may go."""
        ...


class JobSavepoints:
    """
    A ``SavepointGateway`` on the rows themselves.

    :param store: The rows.
    """

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def request(self, request: RequestSavepoint) -> SnapshotRequest:
        """
        Ask for a savepoint of an operator.

        :raises CheckpointNotFoundError: if there is no such job or operator.
        :raises InvalidConfigurationError: if it is no savepoint that is asked for.
        """
        properties = savepoint_requests.properties_of(request)
        with self._store.transaction(request.job_id) as tx:
            known = tx.request(request.request_key)
            if known is not None:
                return known
            _require_operator(tx, request.operator_id)
            row = SnapshotRequest(
                job_id=request.job_id,
                request_key=request.request_key,
                operator_id=request.operator_id,
                properties=properties,
                target=request.target,
                requested_by=request.requested_by,
                requested_at=tx.now,
            )
            tx.save_request(row)
        return row

    def begin(self, request: BeginSavepoint) -> CheckpointRecord:
        """
        Draw the id of a savepoint that is copied from the newest checkpoint of an operator that does not run.

        :raises ConcurrentAttemptError: if a stage runs; it takes the savepoint itself.
        :raises CheckpointNotFoundError: if there is no such request, or it has ended.
        """
        with self._store.transaction(request.job_id) as tx:
            known = tx.checkpoint_by_request(request.trigger_key)
            if known is not None:
                return known
            _abort_previous(tx, request.request_key)
            checkpoint_id = tx.draw_checkpoint_id()
            asked = savepoint_requests.begin(tx, request.request_key, checkpoint_id)
            operator = _require_operator(tx, asked.operator_id)
            _require_idle(tx, operator)
            savepoint = CheckpointRecord(
                job_id=request.job_id,
                checkpoint_id=checkpoint_id,
                operator_id=asked.operator_id,
                epoch=operator.epoch,
                generation=operator.generation,
                status=CheckpointStatus.PENDING,
                request_key=request.trigger_key,
                location=new_savepoint_uri(asked.target or request.savepoint_dir, request.job_id),
                triggered_at=tx.now,
                expires_at=tx.now + savepoint_requests.LONGEST_WRITE,
                properties=asked.properties,
            )
            tx.add_checkpoint(savepoint)
        return savepoint

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """
        Say that such a savepoint is written, or why it cannot be; one that has ended already is left as it is.

        :raises CheckpointNotFoundError: if there is no such savepoint.
        """
        with self._store.transaction(request.job_id) as tx:
            savepoint = _require_savepoint(tx, request.checkpoint_id)
            if savepoint.status is CheckpointStatus.PENDING:
                _end(tx, savepoint, request)
            return _require_savepoint(tx, request.checkpoint_id)

    def dispose(self, request: DisposeSavepoint) -> DisposedSavepoint:
        """
        Give a savepoint up; its bytes may go, whether its job is still known or not.

        :raises CheckpointNotFoundError: if what lies there is a checkpoint of the job and no savepoint.
        :raises SnapshotClaimedError: if an operator claimed it, which deletes it itself.
        """
        if self._store.claim(request.pointer) is not None:
            raise already_claimed(request.pointer)
        disposed = (self._dispose_in(job_id, request.pointer) for job_id in self._jobs_of(request))
        return DisposedSavepoint(checkpoint=next((row for row in disposed if row is not None), None))

    def _jobs_of(self, request: DisposeSavepoint) -> list[JobId]:
        known = [job.job_id for job in self._store.jobs()]
        # Without metadata only the directory's name tells of the job.
        return [i for i in known if i == request.job_id] or [i for i in known if is_savepoint_of(request.pointer, i)]

    def _dispose_in(self, job_id: JobId, pointer: str) -> CheckpointRecord | None:
        with self._store.transaction(job_id) as tx:
            if tx.claim(pointer) is not None:
                raise already_claimed(pointer)
            return _dispose(tx, pointer)


def _end(tx: JobTransaction, savepoint: CheckpointRecord, request: EndSavepoint) -> None:
    if request.failure is not None:
        transitions.abort(tx, savepoint, CheckpointFailureReason.IO_EXCEPTION, request.failure)
        return
    require_metadata_in(savepoint.location, request.metadata_uri)
    completed = replace(
        savepoint,
        status=CheckpointStatus.COMPLETED,
        completed_at=tx.now,
        metadata_uri=request.metadata_uri,
        metadata_size=request.metadata_size,
        metadata_sha256=request.metadata_sha256,
        state_size_bytes=request.state_size_bytes,
        full_size_bytes=request.state_size_bytes,
        counts=dict(request.counts),
    )
    tx.update_checkpoint(completed, expected=CheckpointStatus.PENDING)
    recording.ended(tx, completed)
    savepoint_requests.settle(tx, completed)


def _dispose(tx: JobTransaction, pointer: str) -> CheckpointRecord | None:
    row = next((c for c in tx.view().checkpoints if c.location == pointer and not c.properties.unclaimed), None)
    if row is None:
        return None
    savepoint = _require_savepoint(tx, row.checkpoint_id)
    if savepoint.status is CheckpointStatus.PENDING:
        # Its writer must not complete what is deleted under its hands.
        reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
        transitions.abort(tx, savepoint, reason, "it was disposed of while it was written")
        savepoint = _require_savepoint(tx, row.checkpoint_id)
    if savepoint.status is CheckpointStatus.COMPLETED:
        savepoint = replace(savepoint, status=CheckpointStatus.DISPOSED, ended_at=tx.now)
        tx.update_checkpoint(savepoint, expected=CheckpointStatus.COMPLETED)
    return savepoint


def _require_operator(tx: JobTransaction, operator_id: OperatorId) -> OperatorRecord:
    operator = tx.operator(operator_id)
    if operator is None:
        raise CheckpointNotFoundError(f"Job {tx.job.name!r} has no operator {operator_id}; name one that it has.")
    return operator


def _require_idle(tx: JobTransaction, operator: OperatorRecord) -> None:
    attempt = tx.attempt(operator.operator_id, operator.epoch)
    if attempt is not None and attempt.status is AttemptStatus.RUNNING:
        raise ConcurrentAttemptError(
            f"Operator {operator.uid!r} of job {tx.job.name!r} runs as attempt {attempt.epoch} ({attempt.owner.label}); it "
            f"takes the savepoint itself at its next boundary.",
            uid=operator.uid,
        )


def _abort_previous(tx: JobTransaction, request_key: str) -> None:
    # Whoever began to serve this request before has died or is slower; only one of them may complete it.
    request = tx.request(request_key)
    previous = tx.checkpoint(request.checkpoint_id) if request and request.checkpoint_id is not None else None
    if previous is not None and previous.status is CheckpointStatus.PENDING:
        transitions.abort(tx, previous, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)


def _require_savepoint(tx: JobTransaction, checkpoint_id: int) -> CheckpointRecord:
    savepoint = tx.checkpoint(checkpoint_id)
    is_own = savepoint is not None and savepoint.properties.is_savepoint and not savepoint.properties.unclaimed
    if savepoint is None or not is_own:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} of job {tx.job.name!r} to be a savepoint, found "
            f"{'none' if savepoint is None else 'another kind'}; name a savepoint.",
            checkpoint_id=checkpoint_id,
        )
    return savepoint
