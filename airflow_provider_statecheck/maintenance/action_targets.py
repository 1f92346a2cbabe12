"""What an action of a user concerns: the operator, the checkpoint or the savepoint that it names."""

from __future__ import annotations

from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus, JobAction, OperatorRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionSubject:
    """What an action of a user concerns within its job. Each action uses one of the identifiers."""

    operator_id: OperatorId | None = None
    """
    Operator of a savepoint, a stop or a withdrawal. For a rewind, ``None`` means all operators; for a withdrawal, the
    request to remove the job.
    """
    checkpoint_id: int | None = None
    """Checkpoint to restore or to fork from, or savepoint to dispose of."""
    run_key: str = ""
    """Run before which the job is rewound: its logical date, or its run id if it has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UserAction(ActionSubject):
    """An action that a user wants to preview or to request."""

    job_id: JobId
    action: JobAction
    request_key: str = ""
    """Idempotency key of the page, 32 hexadecimal digits; not used by a preview."""
    requested_by: str = ""
    """Name of the user."""


def operator_of(view: JobView, wanted: UserAction) -> OperatorRecord:
    """
    Return the operator of an action.

    :raises CheckpointNotFoundError: if the job has no such stage.
    """
    # The coordinator of aligned checkpoints takes its savepoints and restores in its own program.
    found = view.operator(wanted.operator_id)
    if found is None or found not in view.stages:
        raise CheckpointNotFoundError(
            f"Expected an operator of job {view.job.name!r}, found {wanted.operator_id!r}; name one of its stages."
        )
    return found


def checkpoint_of(view: JobView, wanted: UserAction) -> CheckpointRecord:
    """
    Return the checkpoint of an action.

    :raises CheckpointNotFoundError: if the job does not retain it.
    """
    found = view.checkpoint(wanted.checkpoint_id)
    if found is None:
        raise CheckpointNotFoundError(
            f"Expected a retained checkpoint of job {view.job.name!r}, found {wanted.checkpoint_id!r}; name a retained "
            "one.",
            checkpoint_id=wanted.checkpoint_id,
        )
    return found


def chosen_of(view: JobView, wanted: UserAction) -> tuple[OperatorRecord, CheckpointRecord]:
    """
    Return the checkpoint of an action with its operator.

    :raises CheckpointNotFoundError: if the job does not retain it, or it belongs to no stage.
    """
    checkpoint = checkpoint_of(view, wanted)
    return operator_of(view, replace(wanted, operator_id=checkpoint.operator_id)), checkpoint


def savepoint_of(view: JobView, wanted: UserAction) -> CheckpointRecord:
    """
    Return the savepoint of an action.

    :raises CheckpointNotFoundError: if the checkpoint is no savepoint of the job, or not complete.
    """
    checkpoint = checkpoint_of(view, wanted)
    if not checkpoint.is_of_user or checkpoint.status is not CheckpointStatus.COMPLETED:
        raise CheckpointNotFoundError(
            f"Expected checkpoint {checkpoint.checkpoint_id} of job {view.job.name!r} to be a completed savepoint, "
            f"found {checkpoint.properties.snapshot_type.value} that is {checkpoint.status.value}; name a savepoint.",
            checkpoint_id=checkpoint.checkpoint_id,
        )
    return checkpoint


def nothing_chosen(operator: OperatorRecord) -> CheckpointNotFoundError:
    """Return the error of a withdrawal without a choice."""
    return CheckpointNotFoundError(
        f"Expected a checkpoint that was chosen for the next attempt of operator {operator.uid!r}, found none; an "
        "attempt has restored it, or the choice was withdrawn.",
        uid=operator.uid,
    )


def uid_of(view: JobView, operator_id: OperatorId | None) -> str | None:
    """Return the uid of an operator, ``None`` for all operators."""
    operator = view.operator(operator_id)
    return None if operator is None else operator.uid
