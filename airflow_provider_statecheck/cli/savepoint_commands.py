"""Commands that take, rescale and delete savepoints."""

from __future__ import annotations

import time
from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.layout import new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, SavepointFormat
from airflow_provider_statecheck.checkpoint.records import RequestStatus, SnapshotRequest
from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    audited,
    command,
    operators_of,
    print_message,
    print_rows,
    shown,
)
from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.maintenance import (
    find_job,
    maintenance_gateway,
    savepoint_gateway,
)
from airflow_provider_statecheck.hooks.storage import storage_opener
from airflow_provider_statecheck.maintenance.savepoints import dispose as dispose_savepoint, serve_idle
from airflow_provider_statecheck.storage.uris import normalise_pointer

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.records import OperatorRecord
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway

_PAUSE_SECONDS = 2.0
_KINDS = {
    None: CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "terminate": CheckpointType.SAVEPOINT_TERMINATE,
}


@command
@audited
def savepoint(args: Namespace) -> Exit:
    """Take a savepoint of each operator of a job, or of one operator."""
    gateway = maintenance_gateway()
    view = find_job(gateway, args.job)
    keys = [_request(view, operator, args) for operator in operators_of(view, args.uid)]
    directory = configured_savepoint_dir()
    view = gateway.describe(view.job.job_id)
    serve_idle(savepoint_gateway(), view, storage_opener(args.storage_conn_id), directory)
    timeout = 0 if args.no_wait else args.timeout
    requests = _wait(gateway, view.job.job_id, keys, timeout)
    print_rows([_request_row(view, each, gateway) for each in requests], args.output)
    return _status_of(requests, has_waited=not args.no_wait)


@command
@audited
def dispose(args: Namespace) -> Exit:
    """Delete a savepoint, also if its job has no rows any more."""
    opener = storage_opener(args.storage_conn_id)
    disposed = dispose_savepoint(savepoint_gateway(), maintenance_gateway(), opener, args.pointer, dry_run=args.dry_run)
    verb = "would be deleted" if args.dry_run else "deleted"
    print_message(f"{shown(disposed.pointer)} with {readable_size(disposed.size_bytes)} {verb}.")
    return Exit.DONE


@command
@audited
def rescale(args: Namespace) -> Exit:
    """Rewrite a checkpoint as a savepoint with another maximum parallelism."""
    from airflow_provider_statecheck.state.rescaling import rescale_max_parallelism
    from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint

    target = args.target or configured_savepoint_dir()
    if target is None:
        raise InvalidConfigurationError(
            "Expected a directory for the savepoint, found none; give --target or set [statecheck] savepoint_dir."
        )
    checkpoint = resolve_checkpoint(storage_opener(args.storage_conn_id)(args.pointer), pointer_uri(args.pointer))
    source, _ = checkpoint.read()
    directory = new_savepoint_uri(normalise_pointer(target), JobId(source.job_id))
    rescaled = rescale_max_parallelism(
        checkpoint.storage, source, directory=directory, max_parallelism=args.max_parallelism
    )
    row = {"pointer": shown(directory), "max_parallelism": args.max_parallelism, "bytes": rescaled.state_size_bytes}
    print_rows([row], args.output)
    print_message("The checkpoint is unchanged; start the stage from the savepoint with the new max_parallelism.")
    return Exit.DONE


def _request(view: JobView, operator: OperatorRecord, args: Namespace) -> str:
    request = RequestSavepoint(
        job_id=view.job.job_id,
        operator_id=operator.operator_id,
        request_key=new_key(),
        target=None if args.target is None else normalise_pointer(args.target),
        savepoint_format=SavepointFormat(args.format),
        kind=_KINDS[args.stop],
        requested_by="airflow statecheck savepoint",
    )
    return savepoint_gateway().request(request).request_key


def _wait(gateway: MaintenanceGateway, job_id: JobId, keys: list[str], timeout: float) -> list[SnapshotRequest]:
    deadline = time.monotonic() + timeout
    while True:
        requests = [r for r in gateway.describe(job_id).requests if r.request_key in keys]
        if time.monotonic() >= deadline or not any(r.status.is_open for r in requests):
            return requests
        time.sleep(_PAUSE_SECONDS)


def _request_row(view: JobView, request: SnapshotRequest, gateway: MaintenanceGateway) -> Row:
    checkpoint_id = request.checkpoint_id
    taken = None if checkpoint_id is None else gateway.checkpoint(view.job.job_id, checkpoint_id)
    is_completed = request.status is RequestStatus.COMPLETED
    return {
        "operator": next(o.uid for o in view.operators if o.operator_id == request.operator_id),
        "request": request.request_key,
        "status": request.status.value,
        "checkpoint": request.checkpoint_id,
        "pointer": shown(taken.location) if taken is not None and is_completed else None,
        "failure": request.failure_message or None,
    }


def _status_of(requests: list[SnapshotRequest], *, has_waited: bool) -> Exit:
    pending = sum(each.status.is_open for each in requests)
    if pending:
        print_message(
            f"{pending} of {len(requests)} savepoints not yet taken; a running stage takes its savepoint at its next boundary."
        )
    failed = any(each.status is RequestStatus.FAILED for each in requests)
    return Exit.FOUND if failed or (pending and has_waited) else Exit.DONE
