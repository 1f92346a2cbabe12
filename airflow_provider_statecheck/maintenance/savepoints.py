"""
Savepoints requested from outside a stage: taken for idle jobs, and disposed of.

A request is a row. A stage that runs takes the savepoint at its next boundary; where none runs, whoever has the storage
copies the newest checkpoint, as the command and the maintenance Dag do.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from airflow_provider_statecheck.checkpoint import statistics, transitions
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, new_key
from airflow_provider_statecheck.checkpoint.layout import (
    METADATA_FILE,
    is_savepoint_directory,
    is_savepoint_of,
    new_savepoint_uri,
)
from airflow_provider_statecheck.checkpoint.messages import (
    BeginSavepoint,
    ConfirmDiscards,
    DisposedSavepoint,
    DisposeSavepoint,
    EndSavepoint,
    RequestSavepoint,
    require_metadata_in,
)
from airflow_provider_statecheck.checkpoint.properties import already_claimed
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CoordinatorError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.maintenance.job_maintenance import each_job
from airflow_provider_statecheck.storage.pointers import pointer_uri
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.gc import OpenStorage
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument
    from airflow_provider_statecheck.storage.savepoints import WrittenSavepoint


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
        properties = transitions.properties_of(request)
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
            asked = transitions.begin_request(tx, request.request_key, checkpoint_id)
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
                expires_at=tx.now + transitions.SAVEPOINT_TIMEOUT,
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
    statistics.ended(tx, completed)
    transitions.settle_request(tx, completed)


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


log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenSavepoint:
    """What became of one request."""

    uid: str
    request_key: str
    pointer: str | None = None
    """Where the savepoint is; ``None`` if it failed."""
    problem: str | None = None


def serve_jobs(
    gateway: SavepointGateway,
    maintenance: MaintenanceGateway,
    job_ids: Iterable[JobId],
    open_storage: OpenStorage,
    directory: str | None,
) -> None:
    """Take the savepoints that such operators of several jobs are asked for, and say which failed."""
    for taken in each_job(
        job_ids, lambda job_id: serve_idle(gateway, maintenance.describe(job_id), open_storage, directory)
    ):
        for each in taken:
            if each.problem is not None:
                log.warning("A savepoint of operator %r that was asked for failed: %s", each.uid, each.problem)


def serve_idle(
    gateway: SavepointGateway, view: JobView, open_storage: OpenStorage, directory: str | None
) -> list[TakenSavepoint]:
    """
    Take the savepoints that operators are asked for which do not run.

    :param gateway: The way to the rows.
    :param view: The job.
    :param open_storage: Gives the storage of a checkpoint directory.
    :param directory: Where savepoints go whose request names no place.
    """
    opened = functools.cache(open_storage)
    taken = []
    for operator in view.operators:
        if not view.has_open_attempt(operator):
            taken += [_take(gateway, view, operator, r, opened, directory) for r in _waiting(view, operator)]
    return [each for each in taken if each is not None]


def _waiting(view: JobView, operator: OperatorRecord) -> list[SnapshotRequest]:
    rows = {c.checkpoint_id: c for c in view.checkpoints}
    mine = [r for r in view.requests if r.operator_id == operator.operator_id and r.properties.is_savepoint]
    return [r for r in mine if r.status is RequestStatus.QUEUED or _was_given_up(view, r, rows)]


def _was_given_up(view: JobView, request: SnapshotRequest, rows: dict[int, CheckpointRecord]) -> bool:
    begun = rows.get(request.checkpoint_id or 0) if request.status is RequestStatus.RUNNING else None
    return begun is not None and begun.status is CheckpointStatus.PENDING and begun.expires_at <= view.read_at


def _take(
    gateway: SavepointGateway,
    view: JobView,
    operator: OperatorRecord,
    request: SnapshotRequest,
    open_storage: OpenStorage,
    directory: str | None,
) -> TakenSavepoint | None:
    attempt = view.current_attempt(operator)
    base = request.target or directory or (attempt.storage_base if attempt else "")
    message = BeginSavepoint(
        job_id=request.job_id, request_key=request.request_key, savepoint_dir=base, trigger_key=new_key()
    )
    try:
        begun = gateway.begin(message)
    except (ConcurrentAttemptError, CheckpointNotFoundError) as error:
        # A stage began in between and takes it, or somebody else has ended the request.
        log.info("A savepoint of operator %r is taken by somebody else: %s", operator.uid, error)
        return None
    try:
        source = _newest(view, operator, begun.generation)
        if request.target is None and directory is None:
            raise _no_place()
        storage = open_storage(attempt.storage_base if attempt else base)
        written = _write(storage.allowing(*view.directories_of(operator.operator_id)), source, begun)
    except StateCheckError as error:
        gateway.end(EndSavepoint(job_id=begun.job_id, checkpoint_id=begun.checkpoint_id, failure=str(error)))
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=str(error))
    try:
        ended = _ended(gateway, operator, request, _message(begun, source, written))
    except CoordinatorError as error:
        # Its outcome is unknown, so nothing is deleted; the request is taken up again when its time is over.
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=str(error))
    if ended.pointer is None:
        # Whoever ended it may have deleted the bytes before the last of them were written.
        _delete(open_storage(attempt.storage_base if attempt else base), begun)
    return ended


def _newest(view: JobView, operator: OperatorRecord, generation: int) -> CheckpointRecord:
    restorable = (c for c in view.of_operator(operator.operator_id) if c.is_restorable)
    usable = [c for c in restorable if c.unusable_reason is None and c.generation == generation]
    if not usable:
        raise CheckpointNotFoundError(
            f"Operator {operator.uid!r} of job {view.job.name!r} has no completed checkpoint that a savepoint could be made "
            f"of; let the stage complete one first.",
            uid=operator.uid,
        )
    return usable[-1]


def _write(storage: CheckpointStorage, source: CheckpointRecord, begun: CheckpointRecord) -> WrittenSavepoint:
    from airflow_provider_statecheck.storage.metadata_file import load_document
    from airflow_provider_statecheck.storage.savepoints import write_savepoint

    return write_savepoint(
        storage,
        load_document(storage, source),
        directory=begun.location,
        checkpoint_id=begun.checkpoint_id,
        properties=begun.properties,
        request_key=begun.request_key,
    )


def _delete(storage: CheckpointStorage, savepoint: CheckpointRecord) -> None:
    from airflow_provider_statecheck.storage.discarding import StorageDiscarder

    discarder = StorageDiscarder.of_checkpoint(storage, savepoint)
    try:
        discarder.discard_metadata(f"{savepoint.location}/{METADATA_FILE}")
        discarder.discard_location(savepoint.location)
    except StateCheckError as error:
        log.warning("What was written of a savepoint is left at %s: %s", redact(savepoint.location), error)


def _message(begun: CheckpointRecord, source: CheckpointRecord, written: WrittenSavepoint) -> EndSavepoint:
    return EndSavepoint(
        job_id=begun.job_id,
        checkpoint_id=begun.checkpoint_id,
        metadata_uri=written.metadata_uri,
        metadata_size=written.metadata_size,
        metadata_sha256=written.metadata_sha256,
        state_size_bytes=written.state_size_bytes,
        counts=dict(source.counts),
    )


def _ended(
    gateway: SavepointGateway, operator: OperatorRecord, request: SnapshotRequest, message: EndSavepoint
) -> TakenSavepoint:
    row = gateway.end(message)
    if row.status is CheckpointStatus.COMPLETED:
        return TakenSavepoint(uid=operator.uid, request_key=request.request_key, pointer=row.location)
    problem = (
        f"it was {row.status.value} while it was written ({row.failure_message}); a stage began, which takes it anew"
    )
    return TakenSavepoint(uid=operator.uid, request_key=request.request_key, problem=problem)


def _no_place() -> InvalidConfigurationError:
    return InvalidConfigurationError(
        "Expected a place for savepoints, found none; name one with --target, or set [statecheck] savepoint_dir."
    )


_NO_JOB = JobId("0" * 32)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disposed:
    """What was deleted."""

    pointer: str
    size_bytes: int


def dispose(
    savepoints: SavepointGateway,
    maintenance: MaintenanceGateway,
    open_storage: OpenStorage,
    pointer: str,
    *,
    dry_run: bool = False,
) -> Disposed:
    """
    Delete a savepoint, its metadata first, so that nobody restores from what is half gone.

    It may be repeated after a failure: a directory that has lost its metadata goes on being deleted.

    :param open_storage: Gives the storage of a directory.
    :param pointer: URI of the savepoint's directory, or of its metadata.
    :param dry_run: Only say what would go.
    :raises CheckpointNotFoundError: if nothing is there, or what is there belongs to a job.
    :raises InvalidConfigurationError: for a directory of another name than savepoints are given.
    :raises SnapshotClaimedError: if an operator claimed it.
    """
    from airflow_provider_statecheck.storage.discarding import StorageDiscarder

    directory = _directory(pointer)
    storage = open_storage(directory.rpartition("/")[0])
    size = sum(storage.list_files(directory).values())
    if size == 0 and not storage.exists(directory):
        raise CheckpointNotFoundError(f"Expected a savepoint at {redact(directory)}, found nothing there.")
    document = _document(storage, directory)
    if not dry_run:
        row = _give_up(savepoints, document, directory)
        discarder = StorageDiscarder(storage, _job_of(document), lambda savepoint: savepoint == directory)
        discarder.discard_metadata(f"{directory}/{METADATA_FILE}")
        discarder.discard_location(directory)
        if row is not None:
            maintenance.confirm_discards(row)
    return Disposed(pointer=directory, size_bytes=size)


def _directory(pointer: str) -> str:
    directory = pointer_uri(pointer).removesuffix(f"/{METADATA_FILE}")
    if not is_savepoint_directory(directory):
        raise InvalidConfigurationError(
            f"Expected the directory of a savepoint (savepoint-…), found {redact(directory)}; one that was renamed is yours "
            f"to delete, and what belongs to a job goes with 'airflow statecheck gc' or 'prune'."
        )
    return directory


def _document(storage: CheckpointStorage, directory: str) -> CheckpointDocument | None:
    from airflow_provider_statecheck.storage.metadata_file import decode_metadata

    uri = f"{directory}/{METADATA_FILE}"
    try:
        return decode_metadata(storage.read_bytes(uri), uri=uri)
    except CheckpointNotFoundError:
        return None


def _job_of(document: CheckpointDocument | None) -> JobId:
    # Without metadata the job is unknown; a claim of the directory is found all the same.
    return _NO_JOB if document is None else JobId(document.job_id)


def _give_up(
    savepoints: SavepointGateway, document: CheckpointDocument | None, directory: str
) -> ConfirmDiscards | None:
    row = savepoints.dispose(DisposeSavepoint(pointer=directory, job_id=_job_of(document))).checkpoint
    return None if row is None else ConfirmDiscards(job_id=row.job_id, checkpoint_ids=(row.checkpoint_id,))
