"""Commands that take, rescale and delete savepoints."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, JobId, new_key
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
from airflow_provider_statecheck.hooks.savepoints import job_savepoints
from airflow_provider_statecheck.hooks.storage import storage_opener
from airflow_provider_statecheck.maintenance.savepoints import dispose as dispose_savepoint
from airflow_provider_statecheck.storage.uris import normalise_pointer

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.records import OperatorRecord
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway

_KINDS = {
    None: CheckpointType.SAVEPOINT,
    "suspend": CheckpointType.SAVEPOINT_SUSPEND,
    "terminate": CheckpointType.SAVEPOINT_TERMINATE,
}


@command
@audited
def savepoint(args: Namespace) -> Exit:
    """Take a savepoint of a whole job, or of one of its operators."""
    view = find_job(maintenance_gateway(), args.job)
    if args.stop is not None and args.uid is None:
        raise InvalidConfigurationError(
            f"Expected --uid with --stop {args.stop}, found none; name the operator whose stage is to stop."
        )
    service = job_savepoints(storage_conn_id=args.storage_conn_id)
    if args.uid is None:
        key = new_key()
        service.request(view, _target(args), SavepointFormat(args.format), request_key=key)
    else:
        (operator,) = operators_of(view, args.uid)
        key = _request(view, operator, args)
    request, awaited = service.wait_for(view.job.job_id, key, 0 if args.no_wait else args.timeout)
    print_rows([_request_row(view, request, service.maintenance)], args.output)
    return _status_of(request, awaited, has_waited=not args.no_wait)


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
        target=_target(args),
        savepoint_format=SavepointFormat(args.format),
        kind=_KINDS[args.stop],
        requested_by="airflow statecheck savepoint",
    )
    return savepoint_gateway().request(request).request_key


def _target(args: Namespace) -> str | None:
    return None if args.target is None else normalise_pointer(args.target)


def _request_row(view: JobView, request: SnapshotRequest, gateway: MaintenanceGateway) -> Row:
    checkpoint_id = request.checkpoint_id
    taken = None if checkpoint_id is None else gateway.checkpoint(view.job.job_id, checkpoint_id)
    is_completed = request.status is RequestStatus.COMPLETED
    return {
        "operator": next((o.uid for o in view.operators if o.operator_id == request.operator_id), ALIGNED_UID),
        "request": request.request_key,
        "status": request.status.value,
        "checkpoint": request.checkpoint_id,
        "pointer": shown(taken.location) if taken is not None and is_completed else None,
        "failure": request.failure_message or None,
    }


def _status_of(request: SnapshotRequest, awaited: tuple[str, ...], *, has_waited: bool) -> Exit:
    if request.status.is_open:
        stages = f" of {', '.join(awaited)}" if awaited else ""
        print_message(
            f"The savepoint awaits the next checkpoint{stages}; the maintenance Dag or 'airflow statecheck gc' then completes it."
        )
    is_late = request.status.is_open and has_waited
    return Exit.FOUND if is_late or request.status is RequestStatus.FAILED else Exit.DONE
