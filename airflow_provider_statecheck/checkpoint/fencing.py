"""
Who may act: fencing by epoch, liveness of tasks, and the order of the runs that share a job.

Logical dates and the dates of partitions order runs. All other runs have no order, and the rows tell which of them the
state contains: those with a complete checkpoint of the generation that was neither rolled back nor skipped.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import dropwhile
from typing import Protocol

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.attempt_work import last_answer
from airflow_provider_statecheck.checkpoint.ids import is_test_job, job_name
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import RunSupersededError, StaleAttemptError


def require_current(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it is the newest one of its operator and was not fenced; it may have ended.

    :raises StaleAttemptError: if a newer attempt has registered, this one was fenced, or no attempt has this epoch.
    """
    operator = tx.operator(ref.operator_id)
    attempt = tx.attempt(ref.operator_id, ref.epoch)
    if operator is None or attempt is None:
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of operator {ref.operator_id} is not registered in job {ref.job_id}; register it "
            "first.",
            epoch=ref.epoch,
        )
    if operator.epoch != ref.epoch:
        raise replaced(ref.epoch, operator.epoch, f"{operator.uid!r} in job {tx.job.name!r}")
    if attempt.status is AttemptStatus.FENCED:
        # A rewind, a restore in place and gc fence an attempt before a newer one registers.
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of operator {operator.uid!r} in job {tx.job.name!r} was shut out (fenced), because "
            "no task of it was found running; stop it, because its calls have no effect any more, and run it again.",
            epoch=ref.epoch,
        )
    return attempt


def replaced(epoch: int, current_epoch: int, operator: str) -> StaleAttemptError:
    """Return the error for an attempt that a newer one has replaced."""
    return StaleAttemptError(
        f"Attempt {epoch} of operator {operator} was replaced by attempt {current_epoch}; stop it, because its calls "
        "have no effect any more.",
        epoch=epoch,
        current_epoch=current_epoch,
    )


def require_running(tx: JobTransaction, ref: AttemptRef) -> AttemptRecord:
    """
    Return the attempt if it is the newest one of its operator and has not ended.

    :raises StaleAttemptError: if a newer attempt has registered or this one has ended.
    """
    attempt = require_current(tx, ref)
    if not attempt.is_running:
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of job {tx.job.name!r} has already ended as {attempt.status.value}; register a new "
            "one.",
            epoch=ref.epoch,
        )
    return attempt


def require_same_task(attempt: AttemptRecord, owner: AttemptOwner) -> None:
    """
    Raise an error unless an owner is a try of the same task and run as an attempt.

    :raises StaleAttemptError: for another task or run.
    """
    expected = attempt.owner
    is_same_task = (expected.logical_task, expected.run_id) == (owner.logical_task, owner.run_id)
    if not is_same_task or is_other_instance(expected, owner):
        raise StaleAttemptError(
            f"Expected {expected.logical_task!r} of run {expected.run_id!r} to adopt attempt {attempt.epoch}, found "
            f"{owner.logical_task!r} of run {owner.run_id!r}; register an attempt instead.",
            epoch=attempt.epoch,
        )


def is_same_try(owner: AttemptOwner, other: AttemptOwner) -> bool:
    """Return whether two owners are the same try of a task, which may have been deferred in between."""
    return bool(owner.ti_id) and owner.ti_id == other.ti_id


def is_other_instance(owner: AttemptOwner, other: AttemptOwner) -> bool:
    """Return whether two owners are instances of one mapped task in one run that have the same map key."""
    mine, theirs = ((each.logical_task, each.run_id) for each in (owner, other))
    return mine == theirs and map_index_of(owner) != map_index_of(other)


def is_retry_of(attempt: AttemptRecord, earlier: AttemptRecord, has_completed: Callable[[int], bool]) -> bool:
    """
    Return whether an attempt is a later try of the same task and run, with no clear, restart or restore in between.

    :param has_completed: Whether a checkpoint of the operator was completed in a generation.
    """
    mine, theirs = (
        (a.operator_id, a.owner.logical_task, a.owner.run_id, a.owner.clear_marker) for a in (attempt, earlier)
    )
    if mine != theirs or earlier.epoch >= attempt.epoch or is_of_new_run(attempt.owner, earlier.owner):
        return False
    # The retry of an attempt without a checkpoint begins a new generation.
    return not any(map(has_completed, range(earlier.generation, attempt.generation)))


def is_of_new_run(owner: AttemptOwner, earlier: AttemptOwner) -> bool:
    """Return whether a try is of a run that was deleted and created again with its id; undefined for test runs."""
    # Airflow names a scheduled run after its date, and creates the newest one again if a user deletes it. Every later
    # try of a run, also after a clear, has a higher number, except for test runs: that of an existing run has its
    # number each time.
    number, before = owner.try_number, earlier.try_number
    is_number_repeated = owner.task == earlier.task and 0 < (number or 0) <= (before or 0)
    return is_number_repeated and not is_of_same_try(owner, earlier)


def is_of_same_try(owner: AttemptOwner, earlier: AttemptOwner) -> bool:
    """Return whether a task continues its try, as it does after a reschedule or a deferral."""
    # A retry, a clear and a run that is created again give the task instance another id.
    return bool(owner.ti_id) and owner.ti_id == earlier.ti_id


def map_index_of(owner: AttemptOwner) -> str:
    """Return the index of the owner among the instances of its task; empty if the task is not mapped."""
    return "" if owner.task is None or owner.task.map_index < 0 else str(owner.task.map_index)


class TaskLiveness(Protocol):
    """Source of the liveness of tasks."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return whether the owner's task is known to be running."""

    def is_last_try(self, owner: AttemptOwner) -> bool:
        """
        Return whether the owner's try is known to be the last one of its task instance, which was not cleared since.
        """

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        """
        Return the earliest run in which the owner's task is known to run or to start, if it is before the owner's run.
        """


class UnknownLiveness:
    """Liveness outside Airflow, where it is unknown and a newer attempt always fences an older one."""

    def is_running(self, owner: AttemptOwner) -> bool:
        """Return ``False``."""
        return False

    def is_last_try(self, owner: AttemptOwner) -> bool:
        """Return ``False``."""
        return False

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        """Return ``None``."""
        return None


SILENCE = timedelta(days=4)
"""Time without calls after which an attempt counts as abandoned; longer than the validity of its tokens."""


def is_silent(view: JobView, attempt: AttemptRecord, now: datetime) -> bool:
    """Return whether a running attempt has not called for so long that its tokens have expired."""
    return silent_since(attempt, view.of_operator(attempt.operator_id), now) is not None


def silent_since(attempt: AttemptRecord, checkpoints: Iterable[CheckpointRecord], now: datetime) -> datetime | None:
    """Return the time of the last call of a running attempt whose tokens have expired; ``None`` for other attempts."""
    if not attempt.is_running:
        return None
    last = last_answer(attempt, checkpoints)
    return last if last < now - SILENCE else None


ONE_RUN_AT_A_TIME = "Run one Dag run at a time, with max_active_runs=1 or 'airflow backfill create --max-active-runs 1'"
"""Advice for runs of which a later one has overtaken an earlier one."""

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


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


def is_earlier_run(run_key: str, other: str) -> bool:
    """Return whether a run has an earlier logical date than another run."""
    date, other_date = logical_date_of(run_key), logical_date_of(other)
    return date is not None and other_date is not None and date < other_date


def is_same_run(run_key: str, other: str) -> bool:
    """Return whether two run keys are equal, or are the same logical date in different notations."""
    return run_key == other or (
        logical_date_of(run_key) is not None and logical_date_of(run_key) == logical_date_of(other)
    )


def remaining_after_rollback(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return the checkpoints that remain after a rollback of the run that took the newest ones.

    :param checkpoints: Checkpoints of one generation, newest first.
    :param run_key: Run to roll back.
    """
    others = (index for index, checkpoint in enumerate(checkpoints) if checkpoint.run_key != run_key)
    return tuple(checkpoints[next(others, len(checkpoints)) :])


def checkpoints_before_run(checkpoints: Sequence[CheckpointRecord], run_key: str) -> tuple[CheckpointRecord, ...]:
    """
    Return the checkpoints that were taken before a run started.

    For a run without checkpoints, these are the checkpoints from the newest run with an earlier logical date on. Newer
    runs without a logical date are skipped.

    :param checkpoints: Checkpoints of one generation, newest first.
    :param run_key: Run, with or without checkpoints.
    """
    keys = [checkpoint.run_key for checkpoint in checkpoints]
    own = [index for index, key in enumerate(keys) if is_same_run(run_key, key)]
    # A run starts from the checkpoint before its own first one, even if that run has no logical date.
    if own:
        return tuple(checkpoints[own[-1] + 1 :])
    later = [index for index, key in enumerate(keys) if is_earlier_run(run_key, key)]
    rest = checkpoints[later[-1] + 1 if later else 0 :]
    return tuple(dropwhile(lambda checkpoint: not is_earlier_run(checkpoint.run_key, run_key), rest))


def logical_date_of(run_key: str) -> datetime | None:
    """Return the logical date in a run key, or ``None`` if the key is a run id."""
    # fromisoformat() also accepts plain digits, which may be a run id.
    if _DATE.match(run_key) is None:
        return None
    try:
        date = datetime.fromisoformat(run_key)
    except ValueError:
        return None
    return date if date.tzinfo is not None else date.replace(tzinfo=UTC)
