"""
Order of the runs that share a job, and which of them have advanced its state.

Logical dates and the dates of partitions order runs. All other runs have no order, and the rows tell which of them the
state contains: those with a complete checkpoint of the generation that was neither rolled back nor skipped.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.fencing import logical_date_of
from airflow_provider_statecheck.checkpoint.ids import is_test_job, job_name
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, CheckpointRecord, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import RunSupersededError

ONE_RUN_AT_A_TIME = "Run one Dag run at a time, with max_active_runs=1 or 'airflow backfill create --max-active-runs 1'"
"""Advice for runs of which a later one has overtaken an earlier one."""


def require_not_superseded(tx: JobTransaction, operator: OperatorRecord, owner: AttemptOwner) -> None:
    """
    Require a run that the state of an operator is not past.

    :raises RunSupersededError: if the state contains a later run, or if the run itself and then another one have
        advanced it.
    """
    newest = next(iter(transitions.restorable(tx, operator)), None)
    if newest is None or newest.run_key == owner.run_key:
        return
    found = _superseded_by(tx, operator, newest, owner)
    if found is not None:
        raise _superseded_error(tx, operator, newest, owner.run_key, found)


def _superseded_by(
    tx: JobTransaction, operator: OperatorRecord, newest: CheckpointRecord, owner: AttemptOwner
) -> str | None:
    """Return why the state is past a run, as the end of a sentence; ``None`` if the run may resume the state."""
    date, reached = date_of(owner), logical_date_of(newest.run_key)
    # The date of a partition may differ from one that its key contains, so its order is that of the rows.
    if not owner.partition_date and date is not None and reached is not None and date != reached:
        return "" if date < reached else None
    owners = tx.owners(operator.operator_id)
    advanced = tx.advanced_runs(operator.operator_id, operator.generation)
    if not advanced.isdisjoint(keys_of(owner, owners)):
        return ", which already contains this run"
    later = None if date is None else _latest_after(date, advanced, _partition_dates(owners))
    return None if later is None else f", which also contains the later run {later!r}"


def _superseded_error(
    tx: JobTransaction, operator: OperatorRecord, newest: CheckpointRecord, run: str, found: str
) -> RunSupersededError:
    rewind = shlex.join(["airflow", "statecheck", "rewind", tx.job.name, "--before", run])
    return RunSupersededError(
        f"Expected the state of operator {operator.uid!r} in job {tx.job.name!r} not to be past run {run!r}, found it "
        f"at the later run {newest.run_key!r} (checkpoint {newest.checkpoint_id}){found}; nothing was changed. Either "
        "roll back the "
        f'later runs with "{rewind}" and clear this run and the later ones, or set '
        f"from_checkpoint='before:{run}', with which this run works on a copy of the earlier state. "
        f"{ONE_RUN_AT_A_TIME}, where several runs at once have led to this.",
        run_key=run,
        stands_at=newest.run_key,
        checkpoint_id=newest.checkpoint_id,
    )


def under_known_key(tx: JobTransaction, operator: OperatorRecord, owner: AttemptOwner) -> AttemptOwner:
    """
    Return the owner of an attempt with the key under which its run has taken the newest checkpoint.

    The key of a run changes if a user clears the fields of its partition in Airflow. Older versions of this package
    knew a run of a partition by its run id.
    """
    newest = next(iter(transitions.restorable(tx, operator)), None)
    if newest is None or newest.run_key == owner.run_key or logical_date_of(owner.run_key) is not None:
        return owner
    is_known = newest.run_key in keys_of(owner, tx.owners(operator.operator_id))
    return replace(owner, run_key=newest.run_key) if is_known else owner


def keys_of(owner: AttemptOwner, owners: Iterable[AttemptOwner]) -> frozenset[str]:
    """Return the keys under which the rows may know a run; see :func:`under_known_key`."""
    former = (each.run_key for each in owners if each.run_id == owner.run_id == owner.run_key)
    return frozenset((owner.run_key, owner.run_id, *former))


def date_of(owner: AttemptOwner) -> datetime | None:
    """Return the date that orders the run of an attempt: its logical date, or that of its partition."""
    return logical_date_of(owner.partition_date or owner.run_key)


def _partition_dates(owners: Iterable[AttemptOwner]) -> Mapping[str, datetime]:
    dates = ((each.run_key, logical_date_of(each.partition_date)) for each in owners if each.partition_date)
    return {key: date for key, date in dates if date is not None}


def _latest_after(date: datetime, runs: Iterable[str], partitions: Mapping[str, datetime]) -> str | None:
    dates = ((partitions.get(key) or logical_date_of(key), key) for key in runs)
    return max(((each, key) for each, key in dates if each is not None and each > date), default=(date, None))[1]


def owners_of_run(view: JobView) -> tuple[AttemptOwner, ...]:
    """
    Return the owners of the attempts of a job whose stages belong to the Dag run of its name.

    Empty for any other job.
    """
    owners = tuple(attempt.owner for attempt in view.attempts_of_stages)
    return owners if owners and all(is_named_after_run(view.job.name, owner) for owner in owners) else ()


def is_named_after_run(name: str, owner: AttemptOwner) -> bool:
    """Return whether a job is named after the Dag run of an attempt, and therefore ends with the run."""
    dag_id = owner.dag_id
    return dag_id is not None and name == job_name(f"{dag_id}/{owner.run_key}", is_test=is_test_job(name))
