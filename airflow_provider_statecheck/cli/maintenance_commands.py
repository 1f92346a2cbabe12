"""Commands that list, clean, verify, recover and rewind jobs."""

from __future__ import annotations

import fnmatch
from argparse import Namespace
from dataclasses import replace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.config_options import readable_size
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.checkpoint.retention import DEFAULT_AGE
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
    print_rows,
    shown,
    tell,
)
from airflow_provider_statecheck.configuration import configured_savepoint_dir
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.hooks.maintenance import (
    find_job,
    job_recovery,
    job_rewinding,
    maintenance_gateway,
    savepoint_gateway,
    storage_opener,
)
from airflow_provider_statecheck.maintenance.gc import CollectedJob, collect_job
from airflow_provider_statecheck.maintenance.job_maintenance import DropTokens, each_job
from airflow_provider_statecheck.maintenance.prune import PrunedJob, PruneRequest, prune_job
from airflow_provider_statecheck.maintenance.rewind import RewindJob
from airflow_provider_statecheck.maintenance.savepoints import serve_jobs
from airflow_provider_statecheck.maintenance.verify import verify_job

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.store import JobView
    from airflow_provider_statecheck.maintenance.job_maintenance import MaintenanceGateway
    from airflow_provider_statecheck.maintenance.recover import RecoveredJob
    from airflow_provider_statecheck.maintenance.rewind import RewoundOperator
    from airflow_provider_statecheck.maintenance.verify import Verification


@command
def jobs(args: Namespace) -> Exit:
    """List jobs with their newest checkpoint, the most recently active first."""
    gateway = maintenance_gateway()
    found = [job for job in gateway.jobs() if args.name is None or fnmatch.fnmatchcase(job.name, args.name)]
    views = each_job([job.job_id for job in found[: args.limit]], gateway.describe)
    print_rows([job_row(view) for view in views], args.output)
    if len(found) > args.limit:
        tell(f"{len(found) - args.limit} more jobs; raise --limit to see them.")
    return Exit.DONE


@command
def checkpoints(args: Namespace) -> Exit:
    """List the newest checkpoints of a job, the oldest of them first."""
    gateway = maintenance_gateway()
    view = find_job(gateway, args.job)
    operators = operators_of(view, args.uid)
    page = CheckpointPage(
        before=args.before,
        limit=args.limit,
        operator_id=None if args.uid is None else operators[0].operator_id,
        status=None if args.status is None else CheckpointStatus(args.status),
    )
    found = gateway.checkpoints(view.job.job_id, page)
    print_rows(checkpoint_rows(view, reversed(found)), args.output)
    if len(found) == args.limit:
        tell(f"Earlier ones may follow; see them with --before {found[-1].checkpoint_id}.")
    return Exit.DONE


@command
def verify(args: Namespace) -> Exit:
    """Check that the retained checkpoints of a job, or one checkpoint, can be restored."""
    found = _verify_pointer(args) if "://" in args.job else _verify_job(args)
    print_rows([_verification_row(each) for each in found], args.output)
    if not found:
        tell("Nothing to verify: no checkpoint is retained.")
    return Exit.DONE if all(each.is_restorable for each in found) else Exit.FOUND


@command
@audited
def recover(args: Namespace) -> Exit:
    """Make the rows of jobs anew from what lies below a checkpoint directory."""
    from airflow_provider_statecheck.maintenance.recover import Recoveries

    opener = storage_opener(args.storage_conn_id)
    recoveries = Recoveries(job_recovery(), opener, savepoints=args.savepoints, dry_run=args.dry_run)
    done = recoveries.recover(args.directory, args.job)
    print_rows([_recovered_row(each) for each in done], args.output)
    verb = "would be recovered" if args.dry_run else "recovered"
    tell(f"{sum(each.is_recovered for each in done)} of {len(done)} jobs {verb}.")
    return Exit.FOUND if any(each.problems for each in done) else Exit.DONE


@command
@audited
def gc(args: Namespace) -> Exit:
    """Delete the bytes of ended checkpoints and what ended attempts left."""
    if bool(args.jobs) is args.all:
        raise InvalidConfigurationError("Expected names of jobs or --all, found both or neither; say which jobs.")
    gateway, opener = maintenance_gateway(), storage_opener(args.storage_conn_id)
    wanted = _job_ids(gateway, args.jobs)
    if not args.dry_run:
        serve_jobs(savepoint_gateway(), gateway, wanted, opener, configured_savepoint_dir())
    quarantine = args.quarantine_age if args.quarantine else None
    done = list(
        each_job(
            wanted, lambda job_id: collect_job(gateway, job_id, opener, quarantine=quarantine, dry_run=args.dry_run)
        )
    )
    print_rows([_collected_row(each) for each in done if _is_worth_telling(each)], args.output)
    total, verb = sum(each.deleted_bytes for each in done), "would be deleted" if args.dry_run else "deleted"
    count = sum(len(each.deleted) for each in done)
    tell(f"{len(done)} jobs looked at, {count} directories with {readable_size(total)} {verb}.")
    waiting = sum(len(each.quarantined) for each in done)
    if waiting:
        tell(
            f"{waiting} orphans stay for now; they go when they still are orphans {args.quarantine_age} after they were found."
        )
    return _worst(done)


@command
@audited
def prune(args: Namespace) -> Exit:
    """Remove the rows of what has ended long ago, or whole jobs with their bytes."""
    gateway = maintenance_gateway()
    if args.jobs and (args.test_jobs or args.older_than):
        raise InvalidConfigurationError("Expected names of jobs or conditions, found both; named jobs go at any age.")
    named = tuple(_job_ids(gateway, args.jobs)) if args.jobs else ()
    request = PruneRequest(job_ids=named, older_than=args.older_than, test_jobs=args.test_jobs, dry_run=args.dry_run)
    shown_first = replace(request, dry_run=True)
    asks = not args.dry_run and not args.yes
    if asks and not is_confirmed(lambda: _prune(args, gateway, shown_first), "Remove that?"):
        tell("Nothing was removed.")
        return Exit.DONE
    return _prune(args, gateway, request)


def _prune(args: Namespace, gateway: MaintenanceGateway, request: PruneRequest) -> Exit:
    opener = storage_opener(args.storage_conn_id)
    wanted = request.job_ids or _job_ids(gateway, [])
    done = list(each_job(wanted, lambda job_id: prune_job(gateway, job_id, request, opener)))
    print_rows([_pruned_row(each) for each in done if each.is_worth_telling], args.output)
    tokens = 0 if request.job_ids else _drop_tokens(gateway, request)
    verb = "would be removed" if request.dry_run else "removed"
    tell(f"{sum(each.is_removed for each in done)} of {len(done)} jobs and {tokens} ended tokens {verb}.")
    return _worst(done)


def _drop_tokens(gateway: MaintenanceGateway, request: PruneRequest) -> int:
    age = request.older_than or DEFAULT_AGE
    return gateway.drop_tokens(DropTokens(age_seconds=age.total_seconds(), dry_run=request.dry_run))


def _job_ids(gateway: MaintenanceGateway, names: list[str]) -> list[JobId]:
    if names:
        return [find_job(gateway, name).job.job_id for name in dict.fromkeys(names)]
    return [job.job_id for job in gateway.jobs()]


def _verify_pointer(args: Namespace) -> list[Verification]:
    from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier

    if args.checkpoint is not None:
        raise InvalidConfigurationError("Expected --checkpoint with the name of a job, found it with a pointer.")
    return [
        CheckpointVerifier(storage_opener(args.storage_conn_id)(args.job), is_deep=args.deep).verify_pointer(args.job)
    ]


def _verify_job(args: Namespace) -> list[Verification]:
    gateway = maintenance_gateway()
    view = find_job(gateway, args.job)
    opener = storage_opener(args.storage_conn_id)
    return list(
        verify_job(gateway, view, opener, checkpoint_id=args.checkpoint, is_deep=args.deep, with_savepoints=True)
    )


def _verification_row(found: Verification) -> Row:
    return {
        "checkpoint": found.checkpoint_id,
        "restorable": found.is_restorable,
        "problems": list(found.problems),
        "unchecked": list(found.unchecked),
        "pointer": shown(found.pointer),
    }


def _recovered_row(done: RecoveredJob) -> Row:
    return {
        "job": done.job,
        "job_id": done.job_id,
        "recovered": done.is_recovered,
        "operators": list(done.operators),
        "checkpoints": [shown(uri) for uri in done.checkpoints],
        "savepoints": [shown(uri) for uri in done.savepoints],
        "problems": list(done.problems),
    }


def _collected_row(done: CollectedJob) -> Row:
    return {
        "job": done.job,
        "bytes": done.deleted_bytes,
        "directories": [shown(uri) for uri in done.deleted],
        "quarantined": [shown(uri) for uri in done.quarantined],
        "kept": done.kept,
        "problems": [*done.problems, *done.unreachable],
    }


def _pruned_row(done: PrunedJob) -> Row:
    return {
        "job": done.job,
        "removed": done.is_removed,
        "checkpoints": done.checkpoints,
        "attempts": done.attempts,
        "bytes": done.deleted_bytes,
        "kept": done.kept,
        "problems": [*done.problems, *done.unreachable],
    }


def _is_worth_telling(done: CollectedJob) -> bool:
    return bool(done.deleted or done.quarantined or done.kept or done.problems or done.unreachable)


def _worst(done: list[CollectedJob] | list[PrunedJob]) -> Exit:
    if any(each.unreachable for each in done):
        return Exit.UNAVAILABLE
    return Exit.FOUND if any(each.problems for each in done) else Exit.DONE


@command
@audited
def rewind(args: Namespace) -> Exit:
    """Let the operators of a job, or one of them, stand where they stood before a run."""
    view = find_job(maintenance_gateway(), args.job)
    operators_of(view, args.uid)
    if not args.dry_run and not args.yes and not is_confirmed(lambda: _rewind(args, view, dry_run=True), "Do that?"):
        tell("Nothing was changed.")
        return Exit.DONE
    _rewind(args, view, dry_run=args.dry_run)
    verb = "would stand" if args.dry_run else "stands"
    tell(
        f"{view.job.name} {verb} before {args.before}; clear that run and the later ones before any other works, and let them "
        "run in their order."
    )
    return Exit.DONE


def _rewind(args: Namespace, view: JobView, *, dry_run: bool) -> None:
    request = RewindJob(job_id=view.job.job_id, run_key=args.before, uid=args.uid, dry_run=dry_run)
    print_rows([_row(operator) for operator in job_rewinding().rewind(request)], args.output)


def _row(operator: RewoundOperator) -> Row:
    stands_at = operator.stands_at
    return {
        "operator": operator.uid,
        "taken_back": [checkpoint.checkpoint_id for checkpoint in operator.taken_back],
        "runs": list(dict.fromkeys(checkpoint.run_key for checkpoint in operator.taken_back)),
        "stands_at": None if stands_at is None else stands_at.checkpoint_id,
        "of_run": None if stands_at is None else stands_at.run_key,
        "fenced": None if operator.fenced is None else operator.fenced.owner.label,
    }
