"""Savepoints taken in place of a stage that does not run: the newest checkpoint is copied by whoever has the storage."""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.maintenance import each_job
from airflow_provider_statecheck.checkpoint.messages import BeginSavepoint, EndSavepoint
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, OperatorRecord
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CoordinatorError,
    InvalidConfigurationError,
    StateCheckError,
)
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.maintenance import MaintenanceGateway
    from airflow_provider_statecheck.checkpoint.savepoints import SavepointGateway
    from airflow_provider_statecheck.hooks.collecting import OpenStorage
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.savepoints import WrittenSavepoint

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
    from airflow_provider_statecheck.storage.documents import load_document
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
