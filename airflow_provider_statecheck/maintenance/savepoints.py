"""
Savepoints requested by users: triggering, and savepoints of idle jobs.

A request is a row. A running stage takes the savepoint at its next checkpoint boundary. For an idle operator, the
command or the maintenance Dag copies the newest checkpoint to a savepoint.
"""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated

from airflow_provider_statecheck.checkpoint import start_decision, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import (
    JobId,
    OperatorId,
    canonical_uri,
    is_savepoint_of,
    new_key,
    new_savepoint_uri,
)
from airflow_provider_statecheck.checkpoint.messages import (
    EndSavepoint,
    RequestSavepoint,
    require_metadata_in,
)
from airflow_provider_statecheck.checkpoint.properties import ClaimRecord, already_claimed
from airflow_provider_statecheck.checkpoint.records import (
    AcknowledgementRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CoordinatorError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.maintenance.rewind import changing
from airflow_provider_statecheck.storage.discarding import StorageDiscarder
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import load_document
from airflow_provider_statecheck.storage.pointers import WrittenSavepoint
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.maintenance.gc import OpenStorage


log = logging.getLogger(__name__)


class JobSavepoints:
    """Savepoints of operators and of whole jobs; every call is idempotent. A task makes the same calls over HTTP."""

    def __init__(self, store: JobStore) -> None:
        self._store = store

    def request(self, request: RequestSavepoint) -> CheckpointRequest:
        """
        Request a savepoint of an operator, or of the whole job.

        :raises CheckpointNotFoundError: if there is no such job or operator.
        :raises ConcurrentAttemptError: if another savepoint of the whole job has not ended.
        :raises InvalidConfigurationError: if the requested type is not a savepoint.
        """
        properties = transitions.properties_of(request)
        with self._store.transaction(request.job_id) as tx:
            known = tx.request(request.request_key)
            if known is not None:
                return known
            if request.is_of_job:
                _require_none_of_job(tx)
            else:
                _require_operator(tx, request.operator_id)
            row = CheckpointRequest(
                job_id=request.job_id,
                request_key=request.request_key,
                operator_id=request.operator_id,
                properties=replace(properties, force=False) if request.is_of_job else properties,
                target=request.target,
                requested_by=request.requested_by or ("unknown" if request.is_of_job else ""),
                requested_at=tx.now,
            )
            tx.save_request(row)
        return row

    def begin(self, job_id: JobId, request_key: str, savepoint_dir: str, trigger_key: str) -> CheckpointRecord:
        """
        Allocate the id of a savepoint that copies the newest checkpoint of an operator that is not running.

        :param request_key: Key of the savepoint request to serve.
        :param savepoint_dir: Parent directory of the savepoint, unless the request has a target.
        :param trigger_key: Idempotency key of the client; the same key returns the same savepoint.
        :raises ConcurrentAttemptError: if an attempt of the operator is running and takes the savepoint.
        :raises CheckpointNotFoundError: if there is no such request, or it has ended.
        """
        with self._store.transaction(job_id) as tx:
            known = tx.checkpoint_by_request(trigger_key)
            if known is not None:
                return known
            _abort_previous(tx, request_key)
            checkpoint_id = tx.draw_checkpoint_id()
            begun = transitions.begin_request(tx, request_key, checkpoint_id)
            operator = _require_operator(tx, begun.operator_id)
            _require_idle(tx, operator)
            return transitions.begin(
                tx,
                operator,
                checkpoint_id=checkpoint_id,
                location=new_savepoint_uri(begun.target or savepoint_dir, job_id),
                timeout=transitions.SAVEPOINT_TIMEOUT,
                request_key=trigger_key,
                properties=begun.properties,
            )

    def end(self, request: EndSavepoint) -> CheckpointRecord:
        """
        Report that a copied savepoint was written, or why writing failed. An ended savepoint is not changed.

        :raises CheckpointNotFoundError: if there is no such savepoint.
        """
        with self._store.transaction(request.job_id) as tx:
            savepoint = _require_savepoint(tx, request.checkpoint_id)
            if savepoint.status is CheckpointStatus.PENDING:
                _end(tx, savepoint, request)
            return _require_savepoint(tx, request.checkpoint_id)

    def pin(
        self, job_id: JobId, checkpoint_id: int, members: Annotated[dict[OperatorId, int], {"alias": "parts"}]
    ) -> tuple[AcknowledgementRecord, ...]:
        """
        Pin the checkpoints that a savepoint of the whole job copies, until it ends.

        :param checkpoint_id: Id of the savepoint.
        :param members: Chosen checkpoint of each stage; a stage that is not named keeps what is pinned.
        :return: The awaited acknowledgements of the savepoint, which name its stages.
        :raises CheckpointNotFoundError: if the savepoint is not pending, or a checkpoint is not retained.
        """
        with self._store.transaction(job_id) as tx:
            savepoint = _require_savepoint(tx, checkpoint_id)
            if savepoint.status is not CheckpointStatus.PENDING or not savepoint.is_of_job:
                raise CheckpointNotFoundError(
                    f"Expected savepoint {checkpoint_id} of job {tx.job.name!r} to be a pending one of the whole job, "
                    f"found one that is {savepoint.status.value}; request it again.",
                    checkpoint_id=checkpoint_id,
                )
            for operator_id, member in members.items():
                _pin(tx, operator_id, member)
            return tuple(tx.acknowledgements(checkpoint_id))

    def dispose(self, pointer: str, job_id: JobId, *, dry_run: bool = False) -> CheckpointRecord | None:
        """
        Dispose of a savepoint; its files may then be deleted.

        :param pointer: Directory of the savepoint.
        :param job_id: Job that the savepoint was taken of; it may no longer exist.
        :param dry_run: Whether to only check that it may be disposed of, and return the row as it would be.
        :return: Row of the savepoint if it still exists; the caller must then confirm the deletion of its files.
        :raises CheckpointNotFoundError: if the pointer refers to a checkpoint of a job.
        :raises SavepointClaimedError: if an operator claimed the savepoint and will delete it.
        :raises ConcurrentAttemptError: if an operator of its job restores the savepoint, or will restore it in place.
        """
        _require_disposable(self._store.claim(pointer), pointer)
        jobs = jobs_with_savepoint(self._store, pointer, job_id)
        disposed = (self._dispose_in(each, pointer, dry_run=dry_run) for each in jobs)
        return next((row for row in disposed if row is not None), None)

    def _dispose_in(self, job_id: JobId, pointer: str, *, dry_run: bool) -> CheckpointRecord | None:
        with changing(self._store, job_id, dry_run=dry_run) as tx:
            return dispose_in(tx, pointer)


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
        summary=request.summary,
    )
    transitions.complete(tx, savepoint, completed)


def jobs_with_savepoint(store: JobStore, pointer: str, job_id: JobId) -> tuple[JobId, ...]:
    """
    Return the jobs that a disposal of a savepoint concerns: those that have taken it, or that need it.

    :param job_id: Job that the savepoint says it is of; its metadata may be missing or forged, so that rows decide.
    """
    named = [job.job_id for job in store.jobs() if job.job_id == job_id or is_savepoint_of(pointer, job.job_id)]
    return tuple(each for each in named if _is_concerned(store.describe(each), pointer))


def _is_concerned(view: JobView, pointer: str) -> bool:
    return row_of(view, pointer) is not None or any(_need(view, operator, pointer) for operator in view.operators)


def dispose_in(tx: JobTransaction, pointer: str) -> CheckpointRecord | None:
    """
    Dispose of a savepoint in a transaction of its job; its files may then be deleted.

    :return: The row of the savepoint, or ``None`` if the job has none.
    :raises CheckpointNotFoundError: if the pointer refers to a checkpoint of the job.
    :raises SavepointClaimedError: if an operator claimed the savepoint and will delete it.
    :raises ConcurrentAttemptError: if an operator of the job restores the savepoint, or will restore it in place.
    """
    claim, view = tx.claim(pointer), tx.view()
    _require_disposable(claim, pointer)
    _require_unneeded(view, pointer)
    row = row_of(view, pointer)
    if row is None:
        return None
    savepoint = _require_savepoint(tx, row.checkpoint_id)
    if claim is None:
        # The files are deleted later, and no job may claim them in the meantime.
        none = OperatorId("")
        tx.save_claim(ClaimRecord(pointer=pointer, job_id=tx.job.job_id, operator_id=none, claimed_at=tx.now))
    if savepoint.is_in_progress:
        # Aborted first, so that its writer cannot complete a savepoint without files.
        reason = CheckpointFailureReason.CHECKPOINT_SUBSUMED
        transitions.abort(tx, savepoint, reason, "disposed of before it was complete")
        savepoint = _require_savepoint(tx, row.checkpoint_id)
    if savepoint.status is CheckpointStatus.COMPLETED:
        savepoint = replace(savepoint, status=CheckpointStatus.DISPOSED, ended_at=tx.now)
        tx.update_checkpoint(savepoint, expected=CheckpointStatus.COMPLETED)
    return savepoint


def _require_disposable(claim: ClaimRecord | None, pointer: str) -> None:
    if claim is not None and not claim.is_disposal:
        raise already_claimed(pointer)


def row_of(view: JobView, pointer: str) -> CheckpointRecord | None:
    """Return the row of a savepoint that its job has taken, or ``None``."""
    own = (c for c in view.checkpoints if not c.properties.unclaimed)
    return next((c for c in own if canonical_uri(c.location) == canonical_uri(pointer)), None)


def _require_unneeded(view: JobView, pointer: str) -> None:
    for operator in view.operators:
        need = _need(view, operator, pointer)
        if need is not None:
            raise ConcurrentAttemptError(
                f"Expected no operator of job {view.job.name!r} to need the savepoint {redact(pointer)}, found {need}; "
                "then dispose of the savepoint again.",
                uid=operator.uid,
            )


def _need(view: JobView, operator: OperatorRecord, pointer: str) -> str | None:
    return _running_need(view, operator, pointer) or _waiting_need(view, operator, pointer)


def _running_need(view: JobView, operator: OperatorRecord, pointer: str) -> str | None:
    # The attempt may read files of the savepoint until it ends.
    attempt = view.open_attempt(operator)
    restored = None if attempt is None else view.checkpoint(attempt.restored_from)
    if attempt is None or restored is None or not restored.properties.unclaimed:
        return None
    if canonical_uri(restored.location) != canonical_uri(pointer):
        return None
    return f"that {attempt.owner.label} runs operator {operator.uid!r} with it; wait until it has ended, or stop it"


def _waiting_need(view: JobView, operator: OperatorRecord, pointer: str) -> str | None:
    restore = start_decision.waiting_restore_in(view, operator)
    # A restore without a source starts an operator that has no member in the savepoint, and reads no file of it.
    if restore is None or restore.source is None or canonical_uri(restore.pointer) != canonical_uri(pointer):
        return None
    return (
        f"that the restore in place of operator {operator.uid!r} waits for an attempt that completes a checkpoint; let "
        "a run complete one, or withdraw the restore"
    )


def _require_none_of_job(tx: JobTransaction) -> None:
    # The pins of a second one would replace those of the first.
    for request in tx.requests_of_job():
        raise ConcurrentAttemptError(
            f"Expected no savepoint of the whole job {tx.job.name!r} in progress, found request {request.request_key} "
            f"of {request.requested_at.isoformat(timespec='seconds')}; wait until it has ended. If its command was "
            "interrupted, 'airflow statecheck gc' and the maintenance Dag go on with it.",
            request_key=request.request_key,
        )


def _pin(tx: JobTransaction, operator_id: OperatorId, checkpoint_id: int) -> None:
    operator = _require_operator(tx, operator_id)
    checkpoint = tx.checkpoint(checkpoint_id)
    # A checkpoint that is already pinned may have been rolled back since, or its stage may have started over.
    if checkpoint is None or checkpoint_id not in {c.checkpoint_id for c in transitions.restorable(tx, operator)}:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} of operator {operator.uid!r} of job {tx.job.name!r} to be retained, "
            f"found {'none' if checkpoint is None else checkpoint.status.value}; choose another one.",
            checkpoint_id=checkpoint_id,
        )
    if operator.pinned_checkpoint != checkpoint_id:
        tx.save_operator(replace(operator, pinned_checkpoint=checkpoint_id))


def _require_operator(tx: JobTransaction, operator_id: OperatorId) -> OperatorRecord:
    operator = tx.operator(operator_id)
    if operator is None:
        raise CheckpointNotFoundError(
            f"Job {tx.job.name!r} has no operator {operator_id}; name an operator of the job."
        )
    return operator


def _require_idle(tx: JobTransaction, operator: OperatorRecord) -> None:
    attempt = transitions.open_attempt(tx, operator)
    if attempt is not None:
        raise ConcurrentAttemptError(
            f"Operator {operator.uid!r} of job {tx.job.name!r} is running as attempt {attempt.epoch} "
            f"({attempt.owner.label}), which takes the savepoint at its next checkpoint boundary.",
            uid=operator.uid,
        )


def _abort_previous(tx: JobTransaction, request_key: str) -> None:
    # An earlier process may still write a savepoint for this request; only the newest one may complete it.
    request = tx.request(request_key)
    previous = tx.checkpoint(request.checkpoint_id) if request and request.checkpoint_id is not None else None
    if previous is not None and previous.status is CheckpointStatus.PENDING:
        transitions.abort(tx, previous, CheckpointFailureReason.CHECKPOINT_COORDINATOR_SUSPEND)


def _require_savepoint(tx: JobTransaction, checkpoint_id: int) -> CheckpointRecord:
    savepoint = tx.checkpoint(checkpoint_id)
    if savepoint is None or not savepoint.is_of_user:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint_id} of job {tx.job.name!r} to be a savepoint, found "
            f"{'none' if savepoint is None else 'another kind'}; name a savepoint.",
            checkpoint_id=checkpoint_id,
        )
    return savepoint


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSavepoint:
    """Result of a request."""

    uid: str
    request_key: str
    pointer: str | None = None
    """URI of the savepoint; ``None`` if it failed."""
    problem: str | None = None


def serve_idle(
    gateway: JobSavepoints, view: JobView, open_storage: OpenStorage, directory: str | None
) -> list[TakenSavepoint]:
    """
    Take the requested savepoints of idle operators in a job.

    :param open_storage: Function that opens the storage of a checkpoint directory.
    :param directory: Savepoint directory for requests without a target.
    """
    opened = functools.cache(open_storage)
    taken = []
    # The next leader of a coordinator of several operators takes its savepoints.
    for operator in view.stages:
        if not view.has_open_attempt(operator):
            taken += [_take(gateway, view, operator, r, opened, directory) for r in _open_requests(view, operator)]
    return [each for each in taken if each is not None]


def _open_requests(view: JobView, operator: OperatorRecord) -> list[CheckpointRequest]:
    rows = {c.checkpoint_id: c for c in view.checkpoints}
    requests = [r for r in view.requests if r.operator_id == operator.operator_id and r.properties.is_savepoint]
    due = [r for r in requests if not _waits_for_end(view, operator, r)]
    return [r for r in due if r.status is RequestStatus.QUEUED or _has_expired(view, r, rows)]


def _waits_for_end(view: JobView, operator: OperatorRecord, request: CheckpointRequest) -> bool:
    # An attempt requested the savepoint for the end of its stage, and a retry may still reach that end.
    if all(a.attempt_key != request.request_key for a in view.attempts):
        return False
    attempt = view.current_attempt(operator)
    return attempt is None or attempt.status is not AttemptStatus.FINISHED


def _has_expired(view: JobView, request: CheckpointRequest, rows: dict[int, CheckpointRecord]) -> bool:
    begun = rows.get(request.checkpoint_id or 0) if request.status is RequestStatus.RUNNING else None
    return begun is not None and begun.status is CheckpointStatus.PENDING and begun.expires_at <= view.read_at


def _take(
    gateway: JobSavepoints,
    view: JobView,
    operator: OperatorRecord,
    request: CheckpointRequest,
    open_storage: OpenStorage,
    directory: str | None,
) -> TakenSavepoint | None:
    attempt = view.current_attempt(operator)
    base = request.target or directory or (attempt.storage_base if attempt else "")
    try:
        begun = gateway.begin(request.job_id, request.request_key, base, new_key())
    except (ConcurrentAttemptError, CheckpointNotFoundError) as error:
        # A stage started in the meantime and takes the savepoint, or the request has ended.
        log.info("Savepoint of operator %r skipped: %s", operator.uid, error)
        return None
    try:
        source = _newest(view, operator, begun.generation)
        if request.target is None and directory is None:
            raise missing_directory()
        storage = open_storage(attempt.storage_base if attempt else base)
        written = _write(storage.allowing(*view.directories_of(operator.operator_id)), source, begun)
    except StateCheckError as error:
        gateway.end(EndSavepoint(job_id=begun.job_id, checkpoint_id=begun.checkpoint_id, failure=str(error)))
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=str(error))
    try:
        ended = _ended(gateway, operator, request, _message(begun, source, written))
    except CoordinatorError as error:
        # The result is unknown, so the files are not deleted; the request is served again after it expires.
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=str(error))
    if ended.pointer is None:
        # The savepoint was aborted while it was written, so this process deletes its files.
        delete_files(open_storage(attempt.storage_base if attempt else base), begun)
    return ended


def _newest(view: JobView, operator: OperatorRecord, generation: int) -> CheckpointRecord:
    start_decision.require_none_waiting(view, (operator,))
    usable = [c for c in view.of_operator(operator.operator_id) if c.is_usable and c.generation == generation]
    if not usable:
        raise CheckpointNotFoundError(
            f"Operator {operator.uid!r} of job {view.job.name!r} has no completed checkpoint to copy to a savepoint; "
            "run the stage until it completes one.",
            uid=operator.uid,
        )
    return usable[-1]


def _write(storage: CheckpointStorage, source: CheckpointRecord, begun: CheckpointRecord) -> WrittenSavepoint:
    from airflow_provider_statecheck.state.writing.canonical import write_savepoint

    return write_savepoint(
        storage,
        load_document(storage, source),
        directory=begun.location,
        checkpoint_id=begun.checkpoint_id,
        properties=begun.properties,
        request_key=begun.request_key,
    )


def delete_files(storage: CheckpointStorage, savepoint: CheckpointRecord) -> None:
    """Delete the files of a savepoint that has ended before it was complete, and log a failure."""
    try:
        StorageDiscarder.of_checkpoint(storage, savepoint).discard_checkpoint(savepoint.location)
    except StateCheckError as error:
        log.warning("Could not delete the incomplete savepoint %s: %s", redact(savepoint.location), error)


def _message(begun: CheckpointRecord, source: CheckpointRecord, written: WrittenSavepoint) -> EndSavepoint:
    return EndSavepoint(
        job_id=begun.job_id,
        checkpoint_id=begun.checkpoint_id,
        metadata_uri=written.metadata.uri,
        metadata_size=written.metadata.size,
        metadata_sha256=written.metadata.sha256,
        state_size_bytes=written.state_size_bytes,
        counts=dict(source.counts),
        summary=source.summary,
    )


def _ended(
    gateway: JobSavepoints, operator: OperatorRecord, request: CheckpointRequest, message: EndSavepoint
) -> TakenSavepoint:
    row = gateway.end(message)
    if row.status is CheckpointStatus.COMPLETED:
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, pointer=row.location)
    problem = f"it was {row.status.value} while it was written ({row.failure_message}); a running stage takes it again"
    return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=problem)


def missing_directory() -> InvalidConfigurationError:
    """Return the error of a savepoint for which no directory is given or configured."""
    return InvalidConfigurationError(
        "Expected a directory for savepoints, found none; give a target, or set [statecheck] savepoint_dir."
    )
