"""From a moment of a job to the checkpoint that holds its state as it was then."""

from __future__ import annotations

from datetime import datetime
from typing import Protocol

from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.storage.uris import redact


class Jobs(Protocol):
    """What tells of jobs: any gateway to the coordinator."""

    def describe(self, job_id: JobId) -> JobView:
        """Return all that is kept of a job."""
        ...


def find_checkpoint(
    job: str,
    uid: str,
    *,
    metadata: str | Jobs,
    checkpoint_id: int | None = None,
    run: str | None = None,
    at: datetime | None = None,
) -> str:
    """
    Return the pointer of a retained checkpoint or savepoint of a job: the newest, or the one that is asked for.

    A checkpoint may be deleted as soon as newer ones take its place; what is to be read later, or for long, should be a
    savepoint.

    :param job: The job's name.
    :param uid: Of the stage.
    :param metadata: SQLAlchemy URL of the database with the rows, or a gateway, such as ``StatecheckHook().get_conn()``.
    :param checkpoint_id: The checkpoint of this id.
    :param run: The newest that this run took; its logical date or its id.
    :param at: The newest that was complete at this time.
    :raises CheckpointNotFoundError: if there is none, naming those that there are.
    :raises InvalidConfigurationError: for more than one condition, or a time without a zone.
    """
    _require_one(checkpoint_id, run, at)
    jobs = open_gateway(metadata) if isinstance(metadata, str) else metadata
    view = jobs.describe(job_id_of(job))
    operator = _operator(view, uid)
    retained = _retained(view, operator)
    found = [each for each in retained if _is_wanted(view, each, checkpoint_id, run, at)]
    if not found:
        raise _none_left(view, uid, retained, _wanted(checkpoint_id, run, at))
    return found[-1].location


def _require_one(checkpoint_id: int | None, run: str | None, at: datetime | None) -> None:
    if sum(each is not None for each in (checkpoint_id, run, at)) > 1:
        raise InvalidConfigurationError(
            "Expected one of checkpoint_id, run and at, found several; leave the others out."
        )
    if at is not None and at.tzinfo is None:
        raise InvalidConfigurationError(f"Expected a time with a zone, found {at.isoformat()}; give it a tzinfo.")


def _operator(view: JobView, uid: str) -> OperatorRecord:
    found = next((each for each in view.operators if each.uid == uid), None)
    if found is None:
        uids = ", ".join(repr(each.uid) for each in view.operators) or "none"
        raise CheckpointNotFoundError(f"Expected a stage {uid!r} in job {view.job.name!r}, found {uids}.")
    return found


def _retained(view: JobView, operator: OperatorRecord) -> list[CheckpointRecord]:
    own = view.of_operator(operator.operator_id)
    found = [each for each in own if each.status is CheckpointStatus.COMPLETED and each.unusable_reason is None]
    return sorted(found, key=lambda each: each.checkpoint_id)


def _is_wanted(
    view: JobView, checkpoint: CheckpointRecord, checkpoint_id: int | None, run: str | None, at: datetime | None
) -> bool:
    if checkpoint_id is not None:
        return checkpoint.checkpoint_id == checkpoint_id
    if run is not None:
        attempt = _attempt(view, checkpoint)
        return run == checkpoint.run_key or (attempt is not None and run == attempt.owner.run_id)
    return at is None or (checkpoint.completed_at is not None and checkpoint.completed_at <= at)


def _attempt(view: JobView, checkpoint: CheckpointRecord) -> AttemptRecord | None:
    of_checkpoint = (checkpoint.operator_id, checkpoint.epoch)
    return next((each for each in view.attempts if (each.operator_id, each.epoch) == of_checkpoint), None)


def _wanted(checkpoint_id: int | None, run: str | None, at: datetime | None) -> str:
    if checkpoint_id is not None:
        return f" of id {checkpoint_id}"
    if run is not None:
        return f" of run {run!r}"
    return "" if at is None else f" that was complete at {at.isoformat()}"


def _none_left(view: JobView, uid: str, retained: list[CheckpointRecord], wanted: str) -> CheckpointNotFoundError:
    shown = ", ".join(f"{each.checkpoint_id} ({redact(each.location)})" for each in retained) or "none"
    return CheckpointNotFoundError(
        f"Expected a retained checkpoint{wanted} of {uid!r} in job {view.job.name!r}, found {shown}; keep more by "
        f"num_retained, or take savepoints."
    )
