"""Commands that take, rescale and delete savepoints, and that restore a job in place."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, JobId, new_key, new_savepoint_uri
from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
from airflow_provider_statecheck.checkpoint.properties import SavepointFormat
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, RequestStatus
from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    audited,
    command,
    is_confirmed,
    operators_of,
    print_message,
    print_rows,
)
from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.hooks.connection import pointer_storage_opener
from airflow_provider_statecheck.hooks.transport import (
    find_job,
    job_savepoints,
    maintenance_gateway,
    restore_gateway,
    savepoint_gateway,
)
from airflow_provider_statecheck.maintenance.action_targets import uid_of
from airflow_provider_statecheck.maintenance.disposal import dispose as dispose_savepoint, savepoint_directory
from airflow_provider_statecheck.maintenance.job_restore import RestoredOperator, RestoreJob, read_savepoint
from airflow_provider_statecheck.maintenance.job_savepoints import not_stopped, savepoint_kind
from airflow_provider_statecheck.maintenance.savepoints import missing_directory
from airflow_provider_statecheck.storage.uris import normalise_savepoint_dir, redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
    from airflow_provider_statecheck.maintenance.job_restore import (
        JobSavepoint,
        RestoredJob,
        SavedMember,
    )
    from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints


@command
@audited
def savepoint(args: Namespace) -> Exit:
    """Take a savepoint of a whole job, or of one of its operators."""
    view = find_job(maintenance_gateway(), args.job)
    service = job_savepoints(storage_conn_id=args.storage_conn_id, target=args.target)
    key = new_key()
    try:
        _request(view, args, service, key)
        request, awaited = service.wait_for(view.job.job_id, key, 0 if args.no_wait else args.timeout)
    except KeyboardInterrupt:
        print_message(
            f"If request {key} is recorded, it stays open; the maintenance Dag or 'airflow statecheck gc' completes it."
        )
        raise
    row = _request_row(view, request, service.maintenance)
    print_rows([row], args.output)
    if awaited and not request.status.is_open:
        print_message(str(not_stopped(awaited, str(row["pointer"]))))
        return Exit.DONE if args.no_wait else Exit.FOUND
    return _status_of(request, awaited, has_waited=not args.no_wait)


@command
@audited
def dispose(args: Namespace) -> Exit:
    """Delete a savepoint, also if its job has no rows any more."""
    if is_confirmed(args, lambda: _dispose(args, dry_run=True), "Delete this savepoint?"):
        _dispose(args, dry_run=args.dry_run)
    return Exit.DONE


def _dispose(args: Namespace, *, dry_run: bool) -> None:
    opener = pointer_storage_opener(args.storage_conn_id, savepoint_directory(args.pointer).rpartition("/")[0])
    disposed = dispose_savepoint(savepoint_gateway(), maintenance_gateway(), opener, args.pointer, dry_run=dry_run)
    print_rows([{"pointer": redact(disposed.pointer), "bytes": disposed.size_bytes}], args.output)
    size = readable_size(disposed.size_bytes) if disposed.size_bytes else "no files"
    verb = "would be deleted" if dry_run else "deleted"
    print_message(f"{redact(disposed.pointer)} with {size} {verb}.")


@command
@audited
def rescale(args: Namespace) -> Exit:
    """Rewrite a checkpoint as a savepoint with another maximum parallelism."""
    from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
    from airflow_provider_statecheck.storage.pointers import pointer_uri, resolve_checkpoint

    target = args.target or configured_savepoint_dir()
    if target is None:
        raise missing_directory()
    opener = pointer_storage_opener(args.storage_conn_id, args.pointer, target)
    checkpoint = resolve_checkpoint(opener(args.pointer), pointer_uri(args.pointer))
    source, _ = checkpoint.read()
    directory = new_savepoint_uri(normalise_savepoint_dir(target), JobId(source.job_id))
    rescaled = rescale_max_parallelism(
        checkpoint.storage, source, directory=directory, max_parallelism=args.max_parallelism
    )
    row = {"pointer": redact(directory), "max_parallelism": args.max_parallelism, "bytes": rescaled.state_size_bytes}
    print_rows([row], args.output)
    print_message("The checkpoint is unchanged; start the stage from the savepoint with the new max_parallelism.")
    return Exit.DONE


def _request(view: JobView, args: Namespace, service: WholeJobSavepoints, key: str) -> None:
    kind, written = savepoint_kind(args.stop), SavepointFormat(args.format)
    if args.uid in (None, ALIGNED_UID):
        service.request(view, args.target, written, kind=kind, request_key=key)
        return
    (operator,) = operators_of(view, args.uid)
    request = RequestSavepoint(
        job_id=view.job.job_id,
        operator_id=operator.operator_id,
        request_key=key,
        target=service.directory_of(args.target),
        savepoint_format=written,
        kind=kind,
        requested_by="airflow statecheck savepoint",
    )
    savepoint_gateway().request(request)


def _request_row(view: JobView, request: CheckpointRequest, gateway: JobMaintenance) -> Row:
    checkpoint_id = request.checkpoint_id
    taken = None if checkpoint_id is None else gateway.checkpoint(view.job.job_id, checkpoint_id)
    is_completed = request.status is RequestStatus.COMPLETED
    return {
        "operator": uid_of(view, request.operator_id) or ALIGNED_UID,
        "request": request.request_key,
        "status": request.status.value,
        "checkpoint": request.checkpoint_id,
        "pointer": redact(taken.location) if taken is not None and is_completed else None,
        "failure": request.failure_message or None,
    }


def _status_of(request: CheckpointRequest, awaited: tuple[str, ...], *, has_waited: bool) -> Exit:
    if request.status.is_open:
        stages = f" of {', '.join(awaited)}" if awaited else ""
        what = "end" if request.properties.is_terminate else "next checkpoint"
        print_message(
            f"The savepoint awaits the {what}{stages}; the maintenance Dag or 'airflow statecheck gc' then completes "
            "it."
        )
    is_late = request.status.is_open and has_waited
    return Exit.FOUND if is_late or request.status is RequestStatus.FAILED else Exit.DONE


@command
@audited
def restore(args: Namespace) -> Exit:
    """Restore all stages of a job from a savepoint of the whole job."""
    job = find_job(maintenance_gateway(), args.job).job
    savepoint = read_savepoint(pointer_storage_opener(args.storage_conn_id, args.pointer), args.pointer, job)
    if not is_confirmed(args, lambda: _restore(args, job.job_id, savepoint, dry_run=True), "Restore these operators?"):
        return Exit.DONE
    restored = _restore(args, job.job_id, savepoint, dry_run=args.dry_run)
    verb = "would be restored" if args.dry_run else "was restored"
    print_message(
        f"{job.name} {verb} from {redact(savepoint.pointer)}. Run these tasks again before other runs start, and their "
        "runs in order:"
    )
    for line in restored.tasks_to_run:
        print_message(line)
    return Exit.DONE


def _restore(args: Namespace, job_id: JobId, savepoint: JobSavepoint, *, dry_run: bool) -> RestoredJob:
    requested_by = "airflow statecheck restore"
    request = RestoreJob(job_id=job_id, savepoint=savepoint, requested_by=requested_by, dry_run=dry_run)
    restored = restore_gateway().restore(request)
    rows = [*map(_restored_row, restored.operators), *map(_missing_row, restored.missing)]
    print_rows(rows, args.output)
    for operator in restored.operators:
        if operator.warning:
            print_message(operator.warning)
    return restored


def _restored_row(operator: RestoredOperator) -> Row:
    member = operator.member
    return {
        "operator": operator.uid,
        "start": "without state" if member is None else "member of the savepoint",
        "checkpoint": None if member is None else member.checkpoint_id,
        "run": None if member is None else member.run or None,
        "rolled_back": [checkpoint.checkpoint_id for checkpoint in operator.taken_back],
        "runs": list(dict.fromkeys(checkpoint.run_key for checkpoint in operator.taken_back)),
        "fenced": None if operator.fenced is None else operator.fenced.owner.label,
        "replaced": redact(operator.replaced) or None,
    }


def _missing_row(member: SavedMember) -> Row:
    row = _restored_row(RestoredOperator(uid=member.uid, member=member, taken_back=(), first_run=""))
    return row | {"start": "not in the job"}
