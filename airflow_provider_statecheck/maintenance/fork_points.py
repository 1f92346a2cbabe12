"""Checkpoints at which a run can fork a job, and the record of the run that a user has requested."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptOwner,
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.retention import is_named_after_run
from airflow_provider_statecheck.checkpoint.store import JobTransaction, JobView
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError
from airflow_provider_statecheck.maintenance.action_targets import UserAction, chosen_of


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
    attempts = _attempts(view, checkpoint)
    if _obstacle(view, checkpoint, attempts) is not None:
        return None
    task = dict(attempts[-1].owner.airflow)
    dag_id = task.get("dag_id", "")
    taken_by = next((a.owner for a in reversed(attempts) if _has_taken(a.owner, a.epoch, checkpoint)), None)
    return ForkPoint(
        checkpoint=checkpoint,
        dag_id=dag_id,
        task_id=task.get("task_id", ""),
        run_id=None if taken_by is None else _run_of(taken_by, dag_id),
    )


def require_fork_point(view: JobView, wanted: UserAction) -> tuple[OperatorRecord, ForkPoint]:
    """
    Return the checkpoint at which an action forks a job, with its operator.

    :raises CheckpointNotFoundError: The job does not retain it, or it belongs to no stage.
    :raises NoRestorableCheckpointError: No run can fork from it.
    """
    operator, checkpoint = chosen_of(view, wanted)
    point = fork_point(view, checkpoint)
    if point is None:
        obstacle = _obstacle(view, checkpoint, _attempts(view, checkpoint))
        raise NoRestorableCheckpointError(
            f"Expected checkpoint {checkpoint.checkpoint_id} of job {view.job.name!r} to be one that a run can fork from, found "
            f"{obstacle}.",
            checkpoint_ids=(checkpoint.checkpoint_id,),
        )
    return operator, point


def fork_in(tx: JobTransaction, wanted: UserAction, start: Callable[[ForkPoint], str]) -> ActionRecord:
    """
    Start a run that forks the job, and record it; a repeated key returns the first request.

    :param start: Starts the run in the transaction of the rows, and returns its id.
    :raises CheckpointNotFoundError: The job does not retain the checkpoint, or it belongs to no stage.
    :raises NoRestorableCheckpointError: No run can fork from it.
    """
    known = tx.action(wanted.request_key)
    if known is not None:
        return known
    operator, point = require_fork_point(tx.view(), wanted)
    action = ActionRecord(
        job_id=wanted.job_id,
        request_key=wanted.request_key,
        action=wanted.action,
        operator_id=operator.operator_id,
        checkpoint_id=wanted.checkpoint_id,
        requested_by=wanted.requested_by,
        requested_at=tx.now,
    )
    run_id = start(point)
    message = f"run {run_id} of Dag {point.dag_id} started"
    done = replace(action, run_key=run_id, status=RequestStatus.COMPLETED, ended_at=tx.now, message=message)
    tx.save_action(done)
    return done


def dag_of_fork(view: JobView, action: ActionRecord) -> str | None:
    """Return the Dag of the run that a fork has started; ``None`` for other actions, or if its attempt was removed."""
    if action.action is not JobAction.FORK:
        return None
    # The attempt that was the newest one at the request, as in ``fork_point``.
    known = (a for a in reversed(view.attempts) if a.operator_id == action.operator_id)
    return next((dict(a.owner.airflow).get("dag_id") for a in known if a.registered_at <= action.requested_at), None)


def _attempts(view: JobView, checkpoint: CheckpointRecord) -> list[AttemptRecord]:
    return [a for a in view.attempts if a.operator_id == checkpoint.operator_id]


def _obstacle(view: JobView, checkpoint: CheckpointRecord, attempts: list[AttemptRecord]) -> str | None:
    if checkpoint.status is not CheckpointStatus.COMPLETED:
        return f"one that is {checkpoint.status.value}; choose a retained checkpoint"
    if checkpoint.unusable_reason is not None:
        return f"one that could not be read: {checkpoint.unusable_reason}; choose another checkpoint"
    if checkpoint.operator_id == ALIGNED_OPERATOR_ID:
        return "one of all stages together; choose a checkpoint of a stage"
    if not attempts or not attempts[-1].owner.airflow:
        return "that no Airflow task works on the operator; use from_checkpoint in the script"
    if is_named_after_run(view.job.name, attempts[-1].owner):
        return "a job that ends with its run and so has no state for another run; give the task a job="
    return None


def _has_taken(owner: AttemptOwner, epoch: int, checkpoint: CheckpointRecord) -> bool:
    # The row of an earlier try may be removed; the last one of its run is retained.
    return epoch == checkpoint.epoch or (bool(checkpoint.run_key) and owner.run_key == checkpoint.run_key)


def _run_of(owner: AttemptOwner, dag_id: str) -> str | None:
    task = dict(owner.airflow)
    return task.get("run_id") if task.get("dag_id") == dag_id else None
