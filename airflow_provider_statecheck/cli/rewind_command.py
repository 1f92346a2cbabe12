"""The command that takes the state of a job back to where it stood before a run."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.rewinding import RewindJob
from airflow_provider_statecheck.cli.confirming import is_confirmed
from airflow_provider_statecheck.cli.exits import Exit, audited, command, tell
from airflow_provider_statecheck.cli.printing import Row, print_rows
from airflow_provider_statecheck.cli.selection import operators_of
from airflow_provider_statecheck.hooks.maintenance import find_job, job_rewinding, maintenance_gateway

if TYPE_CHECKING:
    from airflow_provider_statecheck.checkpoint.job_view import JobView
    from airflow_provider_statecheck.checkpoint.rewinding import RewoundOperator


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
