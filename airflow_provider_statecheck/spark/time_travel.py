"""Restore points chosen by time or from another job: time travel and forks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Protocol

from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.run_order import stood_before
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import find_source
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


_OF_RUN, _BEFORE_RUN = "run:", "before:"
_ID = re.compile(r"[0-9]+")


def fork_name(job: str, fork: str) -> str:
    """Return the name of the job that a fork works in."""
    return f"{job}@{fork}"


def find_fork_source(
    gateway: CheckpointCoordinatorGateway,
    storage: CheckpointStorage,
    job: str,
    wanted: str,
    *,
    uid: str,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
) -> RestoreSource | None:
    """
    Find the checkpoint that a fork begins at.

    One that is gone is an error only where the fork has no checkpoint of its own yet, so that its retries need it no more.

    :param gateway: The way to the coordinator.
    :param storage: Where the checkpoints are.
    :param job: The name of the job that is forked.
    :param wanted: A checkpoint id, ``run:<run>``, ``before:<run>``, or a pointer.
    :param uid: The operator that is to be restored.
    :param renamed_uids: For operators that changed their uid: the old one and the new one.
    :param allow_non_restored_state: Whether to start with nothing where the checkpoint is another operator's.
    :return: ``None`` where nothing of it is to be restored.
    :raises InvalidConfigurationError: for what is none of these.
    :raises IncompatibleCheckpointError: if it is another operator's.
    """
    try:
        pointer = _pointer(gateway, job, wanted, {uid, *(old for old, new in renamed_uids.items() if new == uid)})
    except CheckpointNotFoundError as error:
        return RestoreSource(pointer=wanted, metadata_uri="", metadata_size=0, metadata_sha256="", problem=str(error))
    return find_source(
        storage,
        pointer,
        uid=uid,
        mode=RestoreMode.NO_CLAIM,
        renamed_uids=renamed_uids,
        allow_non_restored_state=allow_non_restored_state,
    )


def _pointer(gateway: CheckpointCoordinatorGateway, job: str, wanted: str, uids: set[str]) -> str:
    is_of_job = wanted.startswith((_OF_RUN, _BEFORE_RUN)) or _ID.fullmatch(wanted) is not None
    if not is_of_job and "/" not in wanted:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint to be a checkpoint id, {_OF_RUN}<run>, {_BEFORE_RUN}<run> or a pointer, found "
            f"{wanted!r}."
        )
    if not is_of_job:
        return wanted
    view = gateway.describe(job_id_of(job))
    taken = _fork_point_retained(view, uids)
    found = next(iter(_meant(view, taken, wanted)), None)
    if found is None:
        raise _fork_point_none_left(job, wanted, taken)
    return found.location


def _fork_point_retained(view: JobView, uids: set[str]) -> list[CheckpointRecord]:
    operators = {o.operator_id for o in view.operators if o.uid in uids}
    completed = [c for c in view.checkpoints if c.operator_id in operators and c.status is CheckpointStatus.COMPLETED]
    return [c for c in reversed(completed) if c.unusable_reason is None]


def _meant(view: JobView, taken: Sequence[CheckpointRecord], wanted: str) -> Sequence[CheckpointRecord]:
    if wanted.startswith(_OF_RUN):
        return [c for c in taken if c.run_key == wanted.removeprefix(_OF_RUN)]
    if wanted.startswith(_BEFORE_RUN):
        current = {(o.operator_id, o.generation) for o in view.operators}
        line = [c for c in taken if c.is_restorable and (c.operator_id, c.generation) in current]
        return stood_before(line, wanted.removeprefix(_BEFORE_RUN))
    return [c for c in taken if c.checkpoint_id == int(wanted)]


def _fork_point_none_left(job: str, wanted: str, taken: Sequence[CheckpointRecord]) -> CheckpointNotFoundError:
    there = ", ".join(f"{c.checkpoint_id} of run {c.run_key!r}" for c in taken) or "none"
    return CheckpointNotFoundError(
        f"Expected a retained checkpoint {wanted} of job {job!r} to begin a fork at, found {there}; name one of these, keep "
        f"those of more runs with retained_runs, or begin from a savepoint."
    )
