"""Command that lists and removes what the provider keeps in the database and on the storage."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.ids import job_uri
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    audited,
    command,
    is_confirmed,
    print_message,
    print_rows,
)
from airflow_provider_statecheck.exceptions import CorruptRowError, StateCheckError
from airflow_provider_statecheck.hooks.connection import guarded_storage_opener
from airflow_provider_statecheck.hooks.transport import maintenance_gateway, provider_tables
from airflow_provider_statecheck.maintenance.gc import PrunedJob, PruneRequest, prune_job, storage_bases
from airflow_provider_statecheck.maintenance.job_maintenance import SIDE_BY_SIDE, each_job
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.ids import JobId
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.gc import OpenStorage
    from airflow_provider_statecheck.metadata.provider_tables import ProviderTables

_JOBS = "statecheck_job"


@command
@audited
def uninstall(args: Namespace) -> Exit:
    """List what this provider keeps in the database and on the storage, and remove it."""
    tables = provider_tables()
    rows = tables.rows()
    question = "Remove these tables, and the files of all jobs?" if args.storage else "Remove these tables?"
    if not rows:
        print_rows([], args.output)
        print_message("Nothing to remove: the database has no table of this provider.")
    elif args.dry_run:
        _list(args, rows, _jobs(rows))
    elif is_confirmed(args, lambda: _list(args, rows, _jobs(rows)), question):
        return _remove(args, tables)
    return Exit.DONE


def _remove(args: Namespace, tables: ProviderTables) -> Exit:
    # The answer to the question may have taken its time.
    rows = tables.rows()
    job_ids = _jobs(rows)
    views = list(_readable(job_ids))
    if _tell_running(views):
        print_rows([], args.output)
        return Exit.FOUND
    removed = [row for view in views for row in _directories(view, _opener(args))] if args.storage else []
    left = _remove_files(args, job_ids) if args.storage else set()
    is_complete = not left and not (args.storage and _tell_new(_jobs(rows)))
    if is_complete:
        tables.drop()
    found = [_row("table", name, count=count) for name, count in rows.items()] if is_complete else []
    print_rows([*found, *(row for row in removed if row["job"] not in left)], args.output)
    if is_complete:
        _tell_what_is_left(views, with_files=args.storage)
    return Exit.DONE if is_complete else Exit.FOUND


def _jobs(rows: dict[str, int]) -> list[JobId]:
    return [job.job_id for job in maintenance_gateway().jobs()] if _JOBS in rows else []


def _opener(args: Namespace) -> OpenStorage:
    return guarded_storage_opener(args.storage_conn_id)


def _readable(job_ids: list[JobId]) -> Iterator[JobView]:
    gateway = maintenance_gateway()
    for job_id in job_ids:
        try:
            yield gateway.describe(job_id)
        except CorruptRowError as error:
            print_message(f"The files of job {job_id} cannot be listed: {error}")


def _list(args: Namespace, rows: dict[str, int], job_ids: list[JobId]) -> None:
    views, opener = list(_readable(job_ids)), _opener(args)
    found = [_row("table", name, count=count) for name, count in rows.items()]
    found += [row for view in views for row in (*_directories(view, opener), *_savepoints(view))]
    print_rows(found, args.output)
    _tell_running(views)


def _tell_running(views: list[JobView]) -> bool:
    """Return whether attempts have not ended, whose tasks would fail without the tables, and say so."""
    running = [view.job.name for view in views if any(map(view.has_open_attempt, view.operators))]
    if running:
        print_message(
            f"{counted(len(running), 'job')} with an attempt that has not ended, such as {running[0]}: nothing is "
            "removed before. Pause the Dags, wait until their tasks have ended, or stop them, and repeat the "
            "command. The attempt of a driver that crashed ends with the next attempt of its task, or days later "
            "with 'airflow statecheck gc'."
        )
    return bool(running)


def _tell_new(job_ids: list[JobId]) -> bool:
    """Return whether jobs have registered since the files of all were removed, and say so."""
    if job_ids:
        print_message(
            f"{counted(len(job_ids), 'job')} registered while files were removed, such as {job_ids[0]}. The tables are "
            "retained, since they name its files; pause the Dags, and repeat the command."
        )
    return bool(job_ids)


def _directories(view: JobView, open_storage: OpenStorage) -> Iterator[Row]:
    for base in storage_bases(view):
        directory = job_uri(base, view.job.job_id)
        try:
            size = sum(open_storage(base).list_files(directory).values())
        except StateCheckError as error:
            print_message(f"{redact(directory)} cannot be read: {error}")
            yield _row("directory", redact(directory), job=view.job.name)
        else:
            if size:
                yield _row("directory", redact(directory), job=view.job.name, size=size)


def _savepoints(view: JobView) -> Iterator[Row]:
    for taken in view.checkpoints:
        if taken.is_of_user and taken.completed_at is not None and taken.discarded_at is None:
            yield _row("savepoint", redact(taken.location), job=view.job.name, size=taken.full_size_bytes)


def _row(kind: str, name: str, *, job: str | None = None, count: int | None = None, size: int | None = None) -> Row:
    return {"kind": kind, "name": name, "job": job, "database_rows": count, "bytes": size}


def _remove_files(args: Namespace, job_ids: list[JobId]) -> set[str]:
    """Remove all jobs with their files, and return the names of those that were left."""
    gateway, opener = maintenance_gateway(), _opener(args)
    request = PruneRequest(job_ids=tuple(job_ids))
    pruned = each_job(
        job_ids, lambda job_id: prune_job(gateway, job_id, request, opener), PrunedJob, side_by_side=SIDE_BY_SIDE
    )
    left = [each for each in pruned if not each.is_removed]
    for each in left:
        print_message(f"Job {each.job} was not removed: {'; '.join((*each.kept, *each.problems, *each.unreachable))}")
    if left:
        print_message("The tables are retained, since they name the files of these jobs; repeat the command later.")
    return {each.job for each in left}


def _tell_what_is_left(views: list[JobView], *, with_files: bool) -> None:
    print_message(
        "The tables were removed. Uninstall the package next: while it is installed, 'airflow db migrate' creates "
        "them again."
    )
    savepoints = [str(row["name"]) for view in views for row in _savepoints(view)]
    if savepoints:
        print_message(
            f"Savepoints belong to their users and were not deleted: {counted(len(savepoints), 'savepoint')}, such as "
            f"{savepoints[0]}."
        )
    if views and not with_files:
        print_message(
            "The files of the jobs were not deleted: 'airflow statecheck recover' makes database rows from them."
        )
