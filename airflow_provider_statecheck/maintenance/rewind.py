"""
Rewinding the state of a job to the point before a run, and checkpoints that a run can fork.

A cleared run rewinds its own state when it starts again. A rewind does the same for a run and all later ones before any
of them starts: one transaction rolls back their checkpoints, and the next run restores the newest earlier checkpoint.
The files of the checkpoints that were rolled back are deleted after a newer checkpoint completes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint import start_decision, transitions
from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.fencing import (
    TaskLiveness,
    checkpoints_before_run,
    is_earlier_run,
    is_named_after_run,
    is_same_run,
)
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction, JobView, rolled_back
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    NoRestorableCheckpointError,
)
from airflow_provider_statecheck.maintenance.action_targets import UserAction, chosen_of

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewindJob:
    """Request to rewind a job to its state before a run."""

    job_id: JobId
    run_key: str
    """Logical date of the run, or its run id if it has no logical date; the run may have no checkpoints."""
    uid: str | None = None
    """Uid of one operator; by default all operators of the job."""
    dry_run: bool = False
    """Whether to only return the result."""

    def __post_init__(self) -> None:
        require("the run", self.run_key, bool, "a logical date or a run id")


@dataclass(frozen=True, slots=True, kw_only=True)
class RewoundOperator:
    """Result for one operator."""

    uid: str
    taken_back: tuple[CheckpointRecord, ...]
    """Checkpoints that are rolled back, newest first."""
    stands_at: CheckpointRecord | None
    """Checkpoint that the next run restores; ``None`` if it starts without state."""
    fenced: AttemptRecord | None = None
    """Open attempt that is fenced because its task is not running."""
    withdrawn_choice: int | None = None
    """Checkpoint that a user chose for the next attempt, which no longer restores it; ``None`` without a choice."""
    withdrawn_restore: str | None = None
    """Savepoint of the job that the next attempt no longer restores in place; ``None`` without such a restore."""


class JobRewinding:
    """
    Rewinds jobs without running tasks.

    :param liveness: Source of the state of tasks.
    """

    def __init__(self, store: JobStore, liveness: TaskLiveness) -> None:
        self._store = store
        self._liveness = liveness

    def rewind(self, request: RewindJob) -> tuple[RewoundOperator, ...]:
        """
        Rewind the operators of a job to their state before a run, atomically. The call is idempotent.

        :raises CheckpointNotFoundError: if there is no such job, or it has no state across runs.
        :raises ConcurrentAttemptError: if a task of the job is running.
        :raises NoRestorableCheckpointError: if the state before the run is not retained or not readable.
        """
        dead = self.dead_attempts(request)
        with changing(self._store, request.job_id, dry_run=request.dry_run) as tx:
            return rewind_in(tx, request, dead)

    def dead_attempts(self, request: RewindJob) -> tuple[AttemptRecord, ...]:
        """
        Return the open attempts whose tasks do not run, for :func:`rewind_in`.

        Airflow is queried before the transaction, as foreign code must not run while a row is locked.
        """
        view = self._store.describe(request.job_id)
        return dead_attempts(view, _selected(view, request), self._liveness)


def rewind_in(tx: JobTransaction, request: RewindJob, dead: Sequence[AttemptRecord]) -> tuple[RewoundOperator, ...]:
    """
    Rewind the operators of a job in a transaction; raises as :meth:`JobRewinding.rewind`.

    :param dead: Open attempts whose tasks do not run.
    """
    plans = [_plan(tx, each, request.run_key, dead) for each in _selected(tx.view(), request)]
    if not request.dry_run:
        for operator, plan in plans:
            _carry_out(tx, operator, plan)
    return tuple(plan for _, plan in plans)


def changing(store: JobStore, job_id: JobId, *, dry_run: bool) -> AbstractContextManager[JobTransaction]:
    """Return a transaction on the rows of a job, which for a dry run is rolled back at its end."""
    return rolled_back(store, job_id) if dry_run else store.transaction(job_id)


def dead_attempts(
    view: JobView, operators: Iterable[OperatorRecord], liveness: TaskLiveness
) -> tuple[AttemptRecord, ...]:
    """Return the open attempts of operators whose tasks do not run."""
    found = map(view.open_attempt, operators)
    return tuple(a for a in found if a is not None and not liveness.is_running(a.owner))


def _selected(view: JobView, request: RewindJob) -> list[OperatorRecord]:
    # Aligned checkpoints do not belong to a run.
    selected = [o for o in view.stages if request.uid in (None, o.uid)]
    if not selected:
        raise CheckpointNotFoundError(
            f"Expected an operator of job {view.job.name!r} with state across runs, found none; aligned checkpoints of "
            f"several operators do not belong to a run and cannot be rewound."
        )
    return selected


def require_no_running_task(
    tx: JobTransaction, operator: OperatorRecord, dead: Sequence[AttemptRecord]
) -> AttemptRecord | None:
    """
    Return the open attempt of an operator, whose task does not run, or ``None``.

    :param dead: Open attempts whose tasks do not run.
    :raises ConcurrentAttemptError: if the task of the open attempt is running.
    """
    attempt = transitions.open_attempt(tx, operator)
    if attempt is not None and attempt not in dead:
        raise ConcurrentAttemptError(
            f"Expected no running task for operator {operator.uid!r} of job {tx.job.name!r}, found "
            f"{attempt.owner.label}; nothing was changed. Wait until it ends, or stop it."
        )
    return attempt


def _plan(
    tx: JobTransaction, before: OperatorRecord, run: str, dead: Sequence[AttemptRecord]
) -> tuple[OperatorRecord, RewoundOperator]:
    fenced, restore = require_no_running_task(tx, before, dead), start_decision.waiting_restore(tx, before)
    # A choice from before the rewind would take the operator to another checkpoint than the rewind reports.
    operator = start_decision.withdraw(tx, before, "replaced by a rewind")
    restorable = transitions.restorable(tx, operator)
    earlier = checkpoints_before_run(restorable, run)
    if restorable and not earlier and not _starts_with(operator, run):
        runs = ", ".join(dict.fromkeys(repr(c.run_key) for c in restorable))
        raise NoRestorableCheckpointError(
            f"Expected a retained checkpoint of operator {operator.uid!r} in job {tx.job.name!r} from before run "
            f"{run!r}, found checkpoints of {runs}; nothing was changed. Retain checkpoints of more runs with "
            "retained_runs, or run on a copy of the state with from_checkpoint=."
        )
    if earlier and all(c.unusable_reason is not None for c in earlier):
        raise NoRestorableCheckpointError(
            f"Expected a readable checkpoint of operator {operator.uid!r} in job {tx.job.name!r} from before run "
            f"{run!r}, found that {earlier[0].checkpoint_id} could not be read: {earlier[0].unusable_reason}; nothing "
            "was changed. Restore its files from a backup.",
            checkpoint_ids=tuple(c.checkpoint_id for c in earlier),
        )
    return operator, RewoundOperator(
        uid=operator.uid,
        taken_back=restorable[: len(restorable) - len(earlier)],
        stands_at=earlier[0] if earlier else None,
        fenced=fenced,
        withdrawn_choice=before.next_restore,
        withdrawn_restore=None if restore is None else restore.pointer,
    )


def _starts_with(operator: OperatorRecord, run: str) -> bool:
    return is_same_run(run, operator.first_run) or is_earlier_run(run, operator.first_run)


def _carry_out(tx: JobTransaction, operator: OperatorRecord, plan: RewoundOperator) -> None:
    if plan.fenced is not None:
        transitions.close_abandoned(tx, plan.fenced)
    ids = [checkpoint.checkpoint_id for checkpoint in plan.taken_back]
    if plan.stands_at is not None:
        transitions.roll_back_runs(tx, operator, plan.taken_back)
    elif plan.taken_back:
        # Checkpoints of an earlier generation are deleted once a newer one completes.
        tx.save_operator(replace(operator, generation=operator.generation + 1))
    log.info("Job %s operator %s: rewound, rolled back checkpoints %s", tx.job.name, operator.uid, ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class ForkPoint:
    """A checkpoint or savepoint that a run may fork from."""

    checkpoint: CheckpointRecord
    dag_id: str
    """Dag of the newest attempt of the operator, of which a run is started."""
    task_id: str
    run_id: str | None
    """Run of this Dag that took the checkpoint; ``None`` if it is unknown."""


def fork_point(view: JobView, checkpoint: CheckpointRecord) -> ForkPoint | None:
    """Return how to fork a job at a checkpoint; ``None`` if no run can."""
    attempts = view.attempts_of(checkpoint.operator_id)
    task = attempts[-1].owner.task if attempts else None
    if task is None or _obstacle(view, checkpoint, attempts) is not None:
        return None
    taken_by = next((a.owner for a in reversed(attempts) if _has_taken(a.owner, a.epoch, checkpoint)), None)
    return ForkPoint(
        checkpoint=checkpoint,
        dag_id=task.dag_id,
        task_id=task.task_id,
        run_id=None if taken_by is None else _run_of(taken_by, task.dag_id),
    )


def require_fork_point(view: JobView, wanted: UserAction) -> tuple[OperatorRecord, ForkPoint]:
    """
    Return the checkpoint at which an action forks a job, with its operator.

    :raises CheckpointNotFoundError: if the job does not retain it, or it belongs to no stage.
    :raises NoRestorableCheckpointError: if no run can fork from it.
    """
    operator, checkpoint = chosen_of(view, wanted)
    point = fork_point(view, checkpoint)
    if point is None:
        obstacle = _obstacle(view, checkpoint, view.attempts_of(checkpoint.operator_id))
        raise NoRestorableCheckpointError(
            f"Expected checkpoint {checkpoint.checkpoint_id} of job {view.job.name!r} to be one that a run can fork "
            f"from, found {obstacle}.",
            checkpoint_ids=(checkpoint.checkpoint_id,),
        )
    return operator, point


def dag_of_fork(view: JobView, action: ActionRecord) -> str | None:
    """Return the Dag of the run that a fork has started; ``None`` for other actions, or if its attempt was removed."""
    if action.action is not JobAction.FORK:
        return None
    # The attempt that was the newest one at the request, as in ``fork_point``.
    known = (a for a in reversed(view.attempts) if a.operator_id == action.operator_id)
    return next((a.owner.dag_id for a in known if a.registered_at <= action.requested_at), None)


def _obstacle(view: JobView, checkpoint: CheckpointRecord, attempts: Sequence[AttemptRecord]) -> str | None:
    if checkpoint.status is not CheckpointStatus.COMPLETED:
        return f"one that is {checkpoint.status.value}; choose a retained checkpoint"
    if checkpoint.unusable_reason is not None:
        return f"one that could not be read: {checkpoint.unusable_reason}; choose another checkpoint"
    if checkpoint.is_of_job:
        return "one of all stages together; choose a checkpoint of a stage"
    if not attempts or attempts[-1].owner.task is None:
        return "that no Airflow task works on the operator; use from_checkpoint in the script"
    if is_named_after_run(view.job.name, attempts[-1].owner):
        return "a job that ends with its run and so has no state for another run; give the task a job="
    return None


def _has_taken(owner: AttemptOwner, epoch: int, checkpoint: CheckpointRecord) -> bool:
    # The row of an earlier try may be removed; the last one of its run is retained.
    return epoch == checkpoint.epoch or (bool(checkpoint.run_key) and owner.run_key == checkpoint.run_key)


def _run_of(owner: AttemptOwner, dag_id: str) -> str | None:
    return owner.task.run_id if owner.task is not None and owner.task.dag_id == dag_id else None
