"""Commands that list, verify, recover, clean up and rewind jobs, and that serve their state."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.attempt_work import work_of
from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import JobId, given_job_id, is_uri
from airflow_provider_statecheck.checkpoint.job_list import (
    LARGEST_JOB_PAGE,
    JobList,
    JobOverview,
    JobSort,
    JobsPage,
    ListedStatus,
)
from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.cli.output import (
    Exit,
    Row,
    audited,
    checkpoint_rows,
    command,
    is_confirmed,
    job_row,
    operators_of,
    print_message,
    print_rows,
)
from airflow_provider_statecheck.exceptions import CorruptRowError, InvalidConfigurationError, StateCheckError
from airflow_provider_statecheck.hooks.connection import guarded_storage_opener, pointer_storage_opener
from airflow_provider_statecheck.hooks.transport import (
    find_job,
    job_recovery,
    job_rewinding,
    job_rows,
    job_savepoints,
    maintenance_gateway,
)
from airflow_provider_statecheck.maintenance.gc import (
    CollectedJob,
    JobReport,
    PrunedJob,
    PruneRequest,
    collect_job,
    prune_job,
)
from airflow_provider_statecheck.maintenance.job_maintenance import SIDE_BY_SIDE, each_job
from airflow_provider_statecheck.maintenance.rewind import RewindJob
from airflow_provider_statecheck.maintenance.verify import verify_job
from airflow_provider_statecheck.storage.orphans import SHORTEST_STAY
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobStore, JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
    from airflow_provider_statecheck.maintenance.recover import RecoveredJob
    from airflow_provider_statecheck.maintenance.rewind import RewoundOperator
    from airflow_provider_statecheck.maintenance.verify import Verification


_DESCENDING = frozenset({JobSort.COMPLETED_AT, JobSort.SIZE, JobSort.FAILED_AT})
"""Orders that begin with the newest or the largest value."""


@command
def jobs(args: Namespace) -> Exit:
    """List jobs with their status, work, newest checkpoint and last failure."""
    rows = job_rows()
    listed = _listed_jobs(rows, args)
    shown = [overview for page in listed for overview in page.jobs][: args.limit]
    print_rows([job_row(overview, _computing(rows, overview)) for overview in shown], args.output)
    counts = listed[0].counts
    left = (sum(counts.values()) if args.status is None else counts.get(args.status, 0)) - len(shown)
    if left > 0:
        print_message(f"{counted(left, 'more job')}; raise --limit to list them.")
    return Exit.DONE


def _computing(rows: JobStore, overview: JobOverview) -> list[str]:
    """Return what the tasks of a job are working on, by operator; empty for a job that cannot be read."""
    if overview.status is not ListedStatus.RUNNING:
        return []
    try:
        view = rows.describe(overview.job_id)
    except StateCheckError:
        # The row of the job tells its problem.
        return []
    works = ((operator.uid, work_of(view, operator.operator_id).computing) for operator in view.operators)
    return [f"{uid}: {work}" for uid, work in works if work is not None]


def _listed_jobs(rows: JobStore, args: Namespace) -> list[JobList]:
    sort = JobSort(args.sort)
    page = JobsPage(
        limit=min(args.limit, LARGEST_JOB_PAGE),
        sort=sort,
        descending=(sort in _DESCENDING) is not args.reverse,
        name=args.name,
        status=None if args.status is None else ListedStatus(args.status),
        dag_id=args.dag_id,
        with_test_jobs=True,
    )
    listed = [rows.job_overviews(page)]
    while listed[-1].following is not None and page.limit * len(listed) < args.limit:
        listed.append(rows.job_overviews(replace(page, after=listed[-1].following)))
    return listed


@command
def checkpoints(args: Namespace) -> Exit:
    """List the newest checkpoints of a job in ascending order."""
    gateway = maintenance_gateway()
    view = find_job(gateway, args.job)
    operators = operators_of(view, args.uid)
    page = CheckpointPage(
        before=args.before,
        limit=args.limit,
        operator_id=None if args.uid is None else operators[0].operator_id,
        status=None if args.status is None else CheckpointStatus(args.status),
    )
    newest = gateway.checkpoints(view.job.job_id, page)
    print_rows(checkpoint_rows(view, reversed(newest)), args.output)
    if len(newest) == args.limit:
        print_message(f"There may be earlier checkpoints; list them with --before {newest[-1].checkpoint_id}.")
    return Exit.DONE


@command
def verify(args: Namespace) -> Exit:
    """Check that the retained checkpoints of a job, or one checkpoint, can be restored."""
    verifications = _verify_pointer(args) if is_uri(args.job) else _verify_job(args)
    print_rows([_verification_row(each) for each in verifications], args.output)
    if not verifications:
        print_message("Nothing to verify: the job has no retained checkpoint.")
    return Exit.DONE if all(each.is_restorable for each in verifications) else Exit.FOUND


@command
@audited
def recover(args: Namespace) -> Exit:
    """Rebuild the rows of jobs from the checkpoints in a directory."""
    from airflow_provider_statecheck.maintenance.recover import Recoveries

    opener = guarded_storage_opener(args.storage_conn_id, args.directory, args.savepoints)
    recoveries = Recoveries(job_recovery(), opener, savepoints=args.savepoints, dry_run=args.dry_run)
    recovered = recoveries.recover(args.directory, args.job)
    print_rows([_recovered_row(each) for each in recovered], args.output)
    verb = "would be recovered" if args.dry_run else "recovered"
    print_message(f"{sum(each.is_recovered for each in recovered)} of {counted(len(recovered), 'job')} {verb}.")
    return _worst(recovered)


@command
@audited
def gc(args: Namespace) -> Exit:
    """Delete the files of ended checkpoints and orphan files."""
    if bool(args.jobs) is args.all:
        raise InvalidConfigurationError(
            "Expected either names of jobs or --all, found both or neither; give one of the two."
        )
    quarantine = _quarantine(args)
    job_ids = _job_ids(maintenance_gateway(), args.jobs)
    question = "Delete these files, and take the requested savepoints?"
    if not is_confirmed(args, lambda: _collect(args, job_ids, quarantine, dry_run=True), question):
        return Exit.DONE
    taken = [] if args.dry_run else job_savepoints(storage_conn_id=args.storage_conn_id).take_all(job_ids)
    collected = _collect(args, job_ids, quarantine, dry_run=args.dry_run)
    for each in taken:
        print_message(f"Savepoints of job {each.job} failed: {'; '.join((*each.problems, *each.unreachable))}")
    return _worst([*taken, *collected])


def _collect(
    args: Namespace, job_ids: list[JobId], quarantine: timedelta | None, *, dry_run: bool
) -> list[CollectedJob]:
    gateway, opener = maintenance_gateway(), guarded_storage_opener(args.storage_conn_id)
    collected = list(
        each_job(
            job_ids,
            lambda job_id: collect_job(gateway, job_id, opener, quarantine=quarantine, dry_run=dry_run),
            CollectedJob,
            side_by_side=SIDE_BY_SIDE,
        )
    )
    print_rows([_collected_row(each) for each in collected if _has_news(each)], args.output)
    _print_summary(collected, quarantine, dry_run=dry_run)
    return collected


def _quarantine(args: Namespace) -> timedelta | None:
    if args.quarantine_age is not None and not args.quarantine:
        # Without a quarantine, orphan files are deleted at once, whatever age the user has in mind.
        raise InvalidConfigurationError(
            "Expected --quarantine-age together with --quarantine, found it alone; add --quarantine, or omit the age "
            "to delete orphan files at once."
        )
    return (args.quarantine_age or SHORTEST_STAY) if args.quarantine else None


@command
@audited
def prune(args: Namespace) -> Exit:
    """Remove old rows of ended checkpoints and attempts, or whole jobs with their files."""
    gateway = maintenance_gateway()
    if args.jobs and (args.test_jobs or args.older_than):
        raise InvalidConfigurationError(
            "Expected either names of jobs or --older-than and --test-jobs, found both; give one of the two, since "
            "named jobs are removed at any age."
        )
    named = tuple(_job_ids(gateway, args.jobs)) if args.jobs else ()
    request = PruneRequest(job_ids=named, older_than=args.older_than, test_jobs=args.test_jobs, dry_run=args.dry_run)
    preview = replace(request, dry_run=True)
    if not is_confirmed(args, lambda: _prune(args, gateway, preview), "Remove these database rows and files?"):
        return Exit.DONE
    return _prune(args, gateway, request)


@command
@audited
def rewind(args: Namespace) -> Exit:
    """Rewind the state of a job, or of one operator, to the position before a run."""
    view = find_job(maintenance_gateway(), args.job)
    operators_of(view, args.uid)
    if not is_confirmed(args, lambda: _rewind(args, view, dry_run=True), "Rewind these operators?"):
        return Exit.DONE
    _rewind(args, view, dry_run=args.dry_run)
    verb = "would be rewound" if args.dry_run else "was rewound"
    print_message(
        f"{view.job.name} {verb} to the position before {args.before}; clear that run and all later runs before "
        "another run starts, and run them in order."
    )
    return Exit.DONE


def _prune(args: Namespace, gateway: JobMaintenance, request: PruneRequest) -> Exit:
    opener = guarded_storage_opener(args.storage_conn_id)
    job_ids = request.job_ids or _job_ids(gateway, [])
    pruned = list(
        each_job(
            job_ids,
            lambda job_id: prune_job(gateway, job_id, request, opener),
            PrunedJob,
            side_by_side=SIDE_BY_SIDE,
        )
    )
    print_rows([_pruned_row(each) for each in pruned if each.has_changes], args.output)
    tokens = 0 if request.job_ids else _drop_tokens(gateway, request)
    verb = "would be removed" if request.dry_run else "removed"
    print_message(
        f"{sum(each.is_removed for each in pruned)} of {counted(len(pruned), 'job')} and "
        f"{counted(tokens, 'ended token')} {verb}."
    )
    return _worst(pruned)


def _drop_tokens(gateway: JobMaintenance, request: PruneRequest) -> int:
    age = request.older_than or DEFAULT_AGE
    return gateway.drop_tokens(age_seconds=age.total_seconds(), dry_run=request.dry_run)


def _job_ids(gateway: JobMaintenance, names: list[str]) -> list[JobId]:
    if names:
        return [_job_id(gateway, name) for name in dict.fromkeys(names)]
    return [job.job_id for job in gateway.jobs()]


def _job_id(gateway: JobMaintenance, name: str) -> JobId:
    try:
        return find_job(gateway, name).job.job_id
    except CorruptRowError:
        # It must not stop the other jobs; its own report names the row.
        return given_job_id(name)


def _verify_pointer(args: Namespace) -> list[Verification]:
    from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier

    if args.checkpoint is not None:
        raise InvalidConfigurationError(
            "Expected --checkpoint with the name of a job, found it with a pointer; omit --checkpoint."
        )
    opener = pointer_storage_opener(args.storage_conn_id, args.job)
    verifier = CheckpointVerifier(opener(args.job), is_deep=args.deep)
    return [verifier.verify_pointer(args.job)]


def _verify_job(args: Namespace) -> list[Verification]:
    gateway = maintenance_gateway()
    view = find_job(gateway, args.job)
    opener = guarded_storage_opener(args.storage_conn_id)
    return list(
        verify_job(gateway, view, opener, checkpoint_id=args.checkpoint, is_deep=args.deep, with_savepoints=True)
    )


def _verification_row(verification: Verification) -> Row:
    return {
        "checkpoint": verification.checkpoint_id,
        "restorable": verification.is_restorable,
        "problems": list(verification.problems),
        "unchecked": list(verification.unchecked),
        "pointer": redact(verification.pointer),
    }


def _recovered_row(job: RecoveredJob) -> Row:
    return {
        "job": job.job,
        "job_id": job.job_id,
        "recovered": job.is_recovered,
        "operators": list(job.operators),
        "checkpoints": [redact(uri) for uri in job.checkpoints],
        "savepoints": [redact(uri) for uri in job.savepoints],
        "problems": [*job.problems, *job.unreachable],
    }


def _print_summary(collected: list[CollectedJob], quarantine: timedelta | None, *, dry_run: bool) -> None:
    total, count = sum(each.deleted_bytes for each in collected), sum(len(each.deleted) for each in collected)
    verb = "would be deleted" if dry_run else "deleted"
    print_message(
        f"{counted(len(collected), 'job')} checked, {counted(count, 'directory')} with {readable_size(total)} {verb}."
    )
    quarantined = sum(len(each.quarantined) for each in collected)
    if quarantined:
        print_message(
            f"{counted(quarantined, 'orphan')} quarantined; a run after {quarantine} deletes those that are still "
            "orphans."
        )


def _collected_row(job: CollectedJob) -> Row:
    return {
        "job": job.job,
        "bytes": job.deleted_bytes,
        "directories": [redact(uri) for uri in job.deleted],
        "quarantined": [redact(uri) for uri in job.quarantined],
        "retained": job.kept,
        "problems": [*job.problems, *job.unreachable],
    }


def _pruned_row(job: PrunedJob) -> Row:
    return {
        "job": job.job,
        "removed": job.is_removed,
        "checkpoints": job.checkpoints,
        "attempts": job.attempts,
        "bytes": job.deleted_bytes,
        "retained": job.kept,
        "problems": [*job.problems, *job.unreachable],
    }


def _has_news(job: CollectedJob) -> bool:
    return bool(job.deleted or job.quarantined or job.kept or job.problems or job.unreachable)


def _worst(jobs: Sequence[JobReport | RecoveredJob]) -> Exit:
    if any(each.unreachable for each in jobs):
        return Exit.UNAVAILABLE
    return Exit.FOUND if any(each.problems for each in jobs) else Exit.DONE


def _rewind(args: Namespace, view: JobView, *, dry_run: bool) -> None:
    request = RewindJob(job_id=view.job.job_id, run_key=args.before, uid=args.uid, dry_run=dry_run)
    print_rows([_rewound_row(operator) for operator in job_rewinding().rewind(request)], args.output)


def _rewound_row(operator: RewoundOperator) -> Row:
    newest = operator.stands_at
    return {
        "operator": operator.uid,
        "rolled_back": [checkpoint.checkpoint_id for checkpoint in operator.taken_back],
        "runs": list(dict.fromkeys(checkpoint.run_key for checkpoint in operator.taken_back)),
        "newest_checkpoint": None if newest is None else newest.checkpoint_id,
        "newest_run": None if newest is None else newest.run_key,
        "fenced": None if operator.fenced is None else operator.fenced.owner.label,
        "withdrawn_choice": operator.withdrawn_choice,
        "withdrawn_restore": None if operator.withdrawn_restore is None else redact(operator.withdrawn_restore),
    }


@command
def serve_state(args: Namespace) -> Exit:
    """Serve queryable state until the process is stopped; print the URL as soon as it accepts requests."""
    from airflow_provider_statecheck.api.state_server import (
        API_TIMEOUT_SECONDS,
        StateServerSettings,
        create_state_app,
        run_server,
    )
    from airflow_provider_statecheck.configuration import StateServingSettings
    from airflow_provider_statecheck.gateway.http import root_url
    from airflow_provider_statecheck.hooks.connection import CoordinatorAddress, coordinator_address

    address = CoordinatorAddress(url=args.api_url) if args.api_url else coordinator_address()
    address = replace(address, url=root_url(address.url), timeout_seconds=API_TIMEOUT_SECONDS)
    settings = StateServerSettings(
        api_url=address.url,
        max_staleness_seconds=args.max_staleness,
        requests_per_second=StateServingSettings.read().state_requests_per_second,
    )
    app = create_state_app(settings, address.open_async, guarded_storage_opener(args.storage_conn_id))
    run_server(app, args.host, args.port, lambda url: _announce(url, address.url, args.output))
    return Exit.DONE


def _announce(url: str, api_url: str, output: str) -> None:
    print_rows([{"url": url, "api": api_url}], output)
    sys.stdout.flush()  # a pipe would keep the row until the end of the process
