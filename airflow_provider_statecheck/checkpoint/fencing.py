"""Who may act: fencing by epoch, and liveness of tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta
from typing import Protocol

from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import StaleAttemptError


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
    own = (c for c in checkpoints if c.epoch == attempt.epoch)
    calls = (t for c in own for t in (c.triggered_at, c.completed_at) if t is not None)
    last = max((attempt.registered_at, *calls))
    return last if last < now - SILENCE else None
