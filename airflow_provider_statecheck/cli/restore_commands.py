"""Command that restores a job in place, and the tasks that have to run again after it."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.run_order import is_earlier, logical_date_of
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
from airflow_provider_statecheck.hooks.maintenance import find_job, job_restoring, maintenance_gateway
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
    for line in tasks_to_run(restored.operators):
        print_message(line)
    return Exit.DONE


def tasks_to_run(operators: Iterable[RestoredOperator]) -> Iterator[str]:
    """Return how the tasks of restored operators run again: commands of Airflow, or a text where none can name the runs."""
    ranges: dict[tuple[str, str, str], set[str]] = defaultdict(set)
    for operator in operators:
        owner = None if operator.newest is None else operator.newest.owner
        task = {} if owner is None else dict(owner.airflow)
        first = operator.first_run or ("" if owner is None else owner.run_key)
        if owner is None or not {"dag_id", "task_id"} <= task.keys():
            yield f"{operator.uid}: start {'it' if owner is None else owner.label} again."
        elif logical_date_of(first) is None or logical_date_of(owner.run_key) is None:
            yield f"{operator.uid}: clear task {task['task_id']} of Dag {task['dag_id']} in run {first} and all later runs."
        else:
            ranges[task["dag_id"], first, owner.run_key if is_earlier(first, owner.run_key) else first].add(
                task["task_id"]
            )
    yield from (_clear_command(*each, sorted(tasks)) for each, tasks in sorted(ranges.items()))


def _clear_command(dag_id: str, first: str, last: str, task_ids: Iterable[str]) -> str:
    pattern = f"^({'|'.join(map(re.escape, task_ids))})$"
    return shlex.join(["airflow", "tasks", "clear", dag_id, "-t", pattern, "-s", first, "-e", last])


def _restore(args: Namespace, job_id: JobId, savepoint: JobSavepoint, *, dry_run: bool) -> RestoredJob:
    requested_by = "airflow statecheck restore"
    request = RestoreJob(job_id=job_id, savepoint=savepoint, requested_by=requested_by, dry_run=dry_run)
    restored = job_restoring().restore(request)
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
