"""Who may act: fencing by epoch, liveness of tasks, and the order of runs that share a job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from itertools import dropwhile, groupby, islice
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, AttemptRecord, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.store import JobTransaction
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
            f"Attempt {ref.epoch} of operator {ref.operator_id} is not registered in job {ref.job_id}; register it first.",
            epoch=ref.epoch,
        )
    if operator.epoch != ref.epoch:
        raise replaced(ref.epoch, operator.epoch, f"{operator.uid!r} in job {tx.job.name!r}")
    if attempt.status is AttemptStatus.FENCED:
        # A rewind, a restore in place and gc fence an attempt before a newer one registers.
        raise StaleAttemptError(
            f"Attempt {ref.epoch} of operator {operator.uid!r} in job {tx.job.name!r} was fenced, its checkpoints now being rejected, because no task of it was "
            f"found running; stop it, because its calls have no effect any more, and run it again.",
            epoch=ref.epoch,
        )
    return attempt


def replaced(epoch: int, current_epoch: int, operator: str) -> StaleAttemptError:
    """Return the error for an attempt that a newer one has replaced."""
    return StaleAttemptError(
        f"Attempt {epoch} of operator {operator} was replaced by attempt {current_epoch}; stop it, because its calls have no "
        f"effect any more.",
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
            f"Attempt {ref.epoch} of job {tx.job.name!r} has already ended as {attempt.status.value}; register a new one.",
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
    Return whether an attempt is a later try of the same task and run, without a clear, a restart or a restore in between.

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
    # Airflow names a scheduled run after its date, and creates the newest one again if a user deletes it. Every later try of a
    # run, also after a clear, has a higher number, except for test runs: that of an existing run has its number each time.
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
        """Return whether the owner's try is known to be the last one of its task instance, which was not cleared since."""

    def earlier_run_of(self, owner: AttemptOwner) -> str | None:
        """Return the earliest run in which the owner's task is known to run or to start, if it is before the owner's run."""


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


_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


def is_earlier(run_key: str, other: str) -> bool:
    """Return whether a run has an earlier logical date than another run."""
    date, other_date = logical_date_of(run_key), logical_date_of(other)
    return date is not None and other_date is not None and date < other_date


def is_same(run_key: str, other: str) -> bool:
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

    For a run without checkpoints, these are the checkpoints from the newest run with an earlier logical date on. Newer runs
    without a logical date are skipped.

    :param checkpoints: Checkpoints of one generation, newest first.
    :param run_key: Run, with or without checkpoints.
    """
    keys = [checkpoint.run_key for checkpoint in checkpoints]
    own = [index for index, key in enumerate(keys) if is_same(run_key, key)]
    # A run starts from the checkpoint before its own first one, even if that run has no logical date.
    if own:
        return tuple(checkpoints[own[-1] + 1 :])
    later = [index for index, key in enumerate(keys) if is_earlier(run_key, key)]
    rest = checkpoints[later[-1] + 1 if later else 0 :]
    return tuple(dropwhile(lambda checkpoint: not is_earlier(checkpoint.run_key, run_key), rest))


def ends_of_runs(checkpoints: Sequence[CheckpointRecord]) -> Iterator[CheckpointRecord]:
    """
    Yield the newest checkpoint of each run.

    :param checkpoints: Checkpoints of one generation, newest first.
    """
    return (next(group) for _, group in groupby(checkpoints, lambda checkpoint: checkpoint.run_key))


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


class Retained(Protocol):
    """Completed checkpoint, as a row or as an object."""

    @property
    def properties(self) -> CheckpointProperties:
        """Return the properties, which determine the owner."""


Checkpoint = TypeVar("Checkpoint", bound=Retained)


def beyond_retention(checkpoints: Sequence[Checkpoint], num_retained: int) -> list[Checkpoint]:
    """
    Return the checkpoints beyond retention, oldest first.

    The newest checkpoint is always retained, and so is the newest one that is not a savepoint: the user may delete a
    savepoint, and a restore needs a checkpoint that only the job can delete. No such checkpoint is needed after a savepoint
    that stops the job.

    :param checkpoints: Retained checkpoints, oldest first.
    :param num_retained: Number of checkpoints to retain, at least 1; exceeded if more must be retained.
    :raises InvalidConfigurationError: for a number below 1.
    """
    require("num_retained", num_retained, lambda number: number >= 1, "at least 1")
    required = _required_indexes(checkpoints)
    candidates = [c for index, c in enumerate(checkpoints) if index not in required]
    return candidates[: max(0, len(checkpoints) - num_retained)]


def _required_indexes(checkpoints: Sequence[Retained]) -> set[int]:
    newest = len(checkpoints) - 1
    if newest < 0 or checkpoints[newest].properties.is_synchronous:
        return {newest}
    own = [index for index, c in enumerate(checkpoints) if not c.properties.is_savepoint]
    return {newest, *own[-1:]}


def subsumed_by_retention(
    completed: Sequence[CheckpointRecord], num_retained: int, retained_runs: int
) -> list[CheckpointRecord]:
    """
    Return the completed checkpoints of an operator that retention subsumes.

    - Unusable checkpoints do not count, which leaves `num_retained` usable ones as fallbacks. They are subsumed when all
      retained checkpoints are newer.
    - Checkpoints of earlier generations are subsumed by the first checkpoint of a later generation.
    - Savepoints neither count nor are subsumed, unless the operator was restored from them.
    - Checkpoints with an open commit are retained in addition.

    :param completed: Completed checkpoints of the operator, oldest first.
    :param num_retained: Number of usable checkpoints to retain, at least 1.
    :param retained_runs: Number of earlier runs whose last usable checkpoint is retained in addition.
    """
    own = [c for c in completed if c.is_restorable]
    if not own:
        return []
    generation = own[-1].generation
    usable = [c for c in own if c.is_usable and c.generation == generation]
    ends = {c.checkpoint_id for c in islice(ends_of_runs(usable[::-1]), 1, 1 + retained_runs)}
    beyond = (c for c in beyond_retention(usable, num_retained) if not c.awaits_commit)
    subsumed = {c.checkpoint_id for c in beyond if c.checkpoint_id not in ends}
    oldest_retained = next((c.checkpoint_id for c in usable if c.checkpoint_id not in subsumed), 0) if subsumed else 0
    return [c for c in own if _is_subsumed(c, generation, subsumed, oldest_retained)]


def _is_subsumed(checkpoint: CheckpointRecord, generation: int, subsumed: set[int], oldest_retained: int) -> bool:
    if checkpoint.generation < generation or checkpoint.checkpoint_id in subsumed:
        return True
    return checkpoint.unusable_reason is not None and checkpoint.checkpoint_id < oldest_retained
