"""Command that restores a job in place."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    audited,
    command,
    is_confirmed,
    print_message,
    print_rows,
    shown,
)
from airflow_provider_statecheck.hooks.maintenance import find_job, maintenance_gateway, restore_gateway
from airflow_provider_statecheck.hooks.storage import storage_opener
from airflow_provider_statecheck.maintenance.job_restore import RestoreJob, read_savepoint

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.maintenance.job_restore import (
        JobSavepoint,
        RestoredJob,
        RestoredOperator,
        SavepointPart,
    )


@command
@audited
def restore(args: Namespace) -> Exit:
    """Restore all stages of a job from a savepoint of the whole job."""
    job = find_job(maintenance_gateway(), args.job).job
    savepoint = read_savepoint(storage_opener(args.storage_conn_id), args.pointer, job)
    asks = not args.dry_run and not args.yes
    if asks and not is_confirmed(
        lambda: _restore(args, job.job_id, savepoint, dry_run=True), "Restore these operators?"
    ):
        print_message("Nothing was changed.")
        return Exit.DONE
    restored = _restore(args, job.job_id, savepoint, dry_run=args.dry_run)
    verb = "would be restored" if args.dry_run else "was restored"
    print_message(
        f"{job.name} {verb} from {shown(savepoint.pointer)}. Run these tasks again before other runs start, and their runs in order:"
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
    part = operator.part
    return {
        "operator": operator.uid,
        "start": "without state" if part is None else "part of the savepoint",
        "checkpoint": None if part is None else part.checkpoint_id,
        "run": None if part is None else part.run or None,
        "rolled_back": [checkpoint.checkpoint_id for checkpoint in operator.taken_back],
        "runs": list(dict.fromkeys(checkpoint.run_key for checkpoint in operator.taken_back)),
        "fenced": None if operator.fenced is None else operator.fenced.owner.label,
        "replaced": shown(operator.replaced) or None,
    }


def _missing_row(part: SavepointPart) -> Row:
    return {
        "operator": part.uid,
        "start": "not in the job",
        "checkpoint": part.checkpoint_id,
        "run": part.run or None,
        "rolled_back": [],
        "runs": [],
        "fenced": None,
        "replaced": None,
    }
