"""Lookup of retained checkpoints by id, run, pointer or time, for time travel and forks."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.codec import plain_integer, require
from airflow_provider_statecheck.checkpoint.fencing import checkpoints_before_run, is_same_run
from airflow_provider_statecheck.checkpoint.ids import (
    ALIGNED_UID,
    OperatorId,
    canonical_uri,
    job_id_of,
    restorable_uids,
)
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    CheckpointRecord,
    CheckpointStatus,
    OperatorRecord,
)
from airflow_provider_statecheck.checkpoint.store import JobReads, JobView
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.gateway.verbs import StageGateway
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import find_source
from airflow_provider_statecheck.storage.uris import normalise_pointer, redact


def find_checkpoint(
    job: str,
    uid: str,
    *,
    metadata: str | JobReads,
    checkpoint_id: int | None = None,
    run: str | None = None,
    at: datetime | None = None,
) -> str:
    """
    Return the pointer of a retained checkpoint or savepoint of a job, by default of the newest.

    A checkpoint may be deleted as soon as newer ones subsume it; use a savepoint for long reads.

    :param job: Name of the job.
    :param uid: Uid of the stage.
    :param metadata: SQLAlchemy URL of the metadata database, or a gateway, such as ``StatecheckHook().get_conn()``.
    :param checkpoint_id: Id of the checkpoint.
    :param run: Logical date or id of the run whose newest checkpoint is returned.
    :param at: Time at which the returned checkpoint was the newest completed one.
    :raises CheckpointNotFoundError: if there is none; the message lists the retained checkpoints.
    :raises InvalidConfigurationError: for more than one condition, an id below 1, or a time without a time zone.
    """
    wanted = AsOf(checkpoint_id=checkpoint_id, at=at)
    if run is not None and not wanted.is_latest:
        raise InvalidConfigurationError("Expected one of checkpoint_id, run and at, found several; pass only one.")
    jobs = open_gateway(metadata) if isinstance(metadata, str) else metadata
    view = jobs.describe(job_id_of(job))
    retained = _retained(view, {_operator(view, uid).operator_id})
    found = [each for each in retained if (wanted.matches(each) if run is None else _is_of_run(view, each, run))]
    if not found:
        named = str(wanted) if run is None else f"a retained checkpoint of run {run!r}"
        raise _checkpoint_not_found(f"{named} of {uid!r} in job {view.job.name!r}", retained)
    return found[-1].location


def checkpoints_as_of(view: JobView, as_of: AsOf) -> tuple[CheckpointRecord, ...]:
    """
    Return the newest retained checkpoint or savepoint of each operator of a job that a reader asks for.

    A savepoint of the whole job is returned only for its id or pointer, as the checkpoint of its coordinator. An
    operator that had made a fresh start by a time, and had not completed a checkpoint since, has none as of that time.

    :return: One checkpoint of each operator that has one, in the order of the operators.
    :raises CheckpointNotFoundError: if there is none; the message lists the retained checkpoints.
    :raises InvalidConfigurationError: for an invalid pointer.
    """
    wanted = as_of if as_of.pointer is None else replace(as_of, pointer=normalise_pointer(as_of.pointer))
    retained = _retained(view, {operator.operator_id for operator in view.operators})
    is_named = wanted.checkpoint_id is not None or wanted.pointer is not None
    found = (each for each in retained if wanted.matches(each) and (is_named or not is_of_whole_job(each)))
    at = wanted.at
    newest = {each.operator_id: each for each in found if at is None or not _was_abandoned(view, each, at)}
    if not newest:
        raise _checkpoint_not_found(f"{wanted} of job {view.job.name!r}", retained)
    return tuple(newest[o.operator_id] for o in view.operators if o.operator_id in newest)


def is_of_whole_job(checkpoint: CheckpointRecord) -> bool:
    """Return whether a checkpoint is a savepoint of the whole job, with a member for each stage."""
    return checkpoint.is_of_job and checkpoint.properties.is_savepoint


@dataclass(frozen=True, slots=True, kw_only=True)
class AsOf:
    """
    The checkpoint to read, by default the latest completed one.

    :raises InvalidConfigurationError: for more than one condition, and for what is no id from 1 on or no time with a
        time zone.
    """

    checkpoint_id: int | None = None
    pointer: str | None = None
    """Pointer of a retained checkpoint or savepoint of the job."""
    at: datetime | None = None
    """Time at which the checkpoint was the latest completed one."""

    def __post_init__(self) -> None:
        if sum(each is not None for each in (self.checkpoint_id, self.pointer, self.at)) > 1:
            raise InvalidConfigurationError(
                "Expected one of checkpoint_id, pointer and at, found several; pass only one."
            )
        require("checkpoint_id", self.checkpoint_id, _is_id_or_none, "a checkpoint id, 1 or more")
        require("at", self.at, _is_zoned_or_none, "a datetime with a time zone")

    @property
    def is_latest(self) -> bool:
        """Whether the latest completed checkpoint is read."""
        return self.checkpoint_id is None and self.pointer is None and self.at is None

    def matches(self, checkpoint: CheckpointRecord) -> bool:
        """Return whether a retained checkpoint meets the condition."""
        if self.checkpoint_id is not None:
            return checkpoint.checkpoint_id == self.checkpoint_id
        if self.pointer is not None:
            return canonical_uri(checkpoint.location) == canonical_uri(self.pointer)
        return self.at is None or (checkpoint.completed_at is not None and checkpoint.completed_at <= self.at)

    def __str__(self) -> str:
        if self.checkpoint_id is not None:
            return f"a retained checkpoint of id {self.checkpoint_id}"
        if self.pointer is not None:
            return f"a retained checkpoint at {self.pointer}"
        return "a retained checkpoint" + ("" if self.at is None else f" that was complete at {self.at.isoformat()}")


def _is_id_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, int) and value >= 1)


def _is_zoned_or_none(value: Any) -> bool:
    return value is None or (isinstance(value, datetime) and value.tzinfo is not None)


LATEST: Final = AsOf()


def _is_of_run(view: JobView, checkpoint: CheckpointRecord, run: str) -> bool:
    attempt = _attempt(view, checkpoint)
    return is_same_run(run, checkpoint.run_key) or (attempt is not None and run == attempt.owner.run_id)


def _operator(view: JobView, uid: str) -> OperatorRecord:
    found = next((each for each in view.operators if each.uid == uid), None)
    if found is None:
        uids = ", ".join(repr(each.uid) for each in view.operators) or "none"
        raise CheckpointNotFoundError(
            f"Expected a stage {uid!r} in job {view.job.name!r}, found {uids}; pass the uid of one of the job's stages."
        )
    return found


def _retained(view: JobView, operator_ids: AbstractSet[OperatorId]) -> list[CheckpointRecord]:
    """Return the usable checkpoints and savepoints of operators, oldest first."""
    found = (each for each in view.checkpoints if each.operator_id in operator_ids)
    usable = [each for each in found if each.status is CheckpointStatus.COMPLETED and each.unusable_reason is None]
    return sorted(usable, key=lambda each: each.checkpoint_id)


def _attempt(view: JobView, checkpoint: CheckpointRecord) -> AttemptRecord | None:
    key = (checkpoint.operator_id, checkpoint.epoch)
    return next((each for each in view.attempts if (each.operator_id, each.epoch) == key), None)


def _was_abandoned(view: JobView, checkpoint: CheckpointRecord, at: datetime) -> bool:
    """Return whether the operator of a checkpoint had made a fresh start before a time."""
    return any(
        each.operator_id == checkpoint.operator_id
        and each.generation > checkpoint.generation
        and each.registered_at <= at
        for each in view.attempts
    )


def _checkpoint_not_found(wanted: str, retained: list[CheckpointRecord]) -> CheckpointNotFoundError:
    found = ", ".join(f"{each.checkpoint_id} ({redact(each.location)})" for each in retained) or "none"
    return CheckpointNotFoundError(
        f"Expected {wanted}, found {found}; retain more with num_retained, or take savepoints."
    )


_OF_RUN, _BEFORE_RUN = "run:", "before:"
_ID = re.compile(r"[0-9]+")


def fork_name(job: str, fork: str) -> str:
    """Return the job name of a fork."""
    return f"{job}@{fork}"


def find_fork_source(
    gateway: StageGateway,
    storage: CheckpointStorage,
    job: str,
    wanted: str | int,
    *,
    uid: str,
    renamed_uids: Mapping[str, str],
    allow_non_restored_state: bool,
) -> RestoreSource | None:
    """
    Find the checkpoint that a fork starts from.

    A deleted checkpoint is reported as a problem of the source: it fails only a fork without checkpoints, because
    retries of a fork restore the fork's own checkpoints.

    :param wanted: A checkpoint id, ``run:<run>``, ``before:<run>``, or a pointer.
    :param renamed_uids: Former uid to current uid of renamed operators.
    :param allow_non_restored_state: Whether to start without state if the checkpoint is of another operator.
    :return: ``None`` if the operator starts without state.
    :raises InvalidConfigurationError: if ``wanted`` has none of these forms.
    :raises IncompatibleCheckpointError: if the checkpoint is of another operator.
    """
    # A template may give the id as a number.
    wanted = wanted if isinstance(wanted, str) else str(plain_integer(wanted))
    try:
        pointer = _fork_pointer(gateway, job, wanted, {uid, *restorable_uids(uid, renamed_uids)})
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


def _fork_pointer(gateway: StageGateway, job: str, wanted: str, uids: set[str]) -> str:
    is_of_job = wanted.startswith((_OF_RUN, _BEFORE_RUN)) or _ID.fullmatch(wanted) is not None
    if not is_of_job and "/" not in wanted:
        raise InvalidConfigurationError(
            f"Expected from_checkpoint to be a checkpoint id, {_OF_RUN}<run>, {_BEFORE_RUN}<run> or a pointer, found "
            f"{wanted!r}; pass one of these forms."
        )
    if not is_of_job:
        return wanted
    try:
        view = gateway.describe(job_id_of(job))
    except CheckpointNotFoundError as error:
        raise CheckpointNotFoundError(
            f"There is no job {job!r} with a checkpoint {wanted!r} to start a fork from; correct the name, or run the "
            "job first."
        ) from error
    # The id of a savepoint of the whole job names the members of all stages.
    named = {*uids, ALIGNED_UID} if _ID.fullmatch(wanted) else uids
    newest_first = _retained(view, {o.operator_id for o in view.operators if o.uid in named})[::-1]
    found = next(iter(_fork_candidates(view, newest_first, wanted)), None)
    if found is None:
        raise _fork_source_not_found(job, wanted, newest_first)
    return found.location


def _fork_candidates(
    view: JobView, newest_first: Sequence[CheckpointRecord], wanted: str
) -> Sequence[CheckpointRecord]:
    if wanted.startswith(_OF_RUN):
        return [c for c in newest_first if _is_of_run(view, c, wanted.removeprefix(_OF_RUN))]
    if wanted.startswith(_BEFORE_RUN):
        current = {(o.operator_id, o.generation) for o in view.operators}
        restorable = [c for c in newest_first if c.is_restorable and (c.operator_id, c.generation) in current]
        return checkpoints_before_run(restorable, wanted.removeprefix(_BEFORE_RUN))
    return [c for c in newest_first if c.checkpoint_id == int(wanted)]


def _fork_source_not_found(job: str, wanted: str, retained: Sequence[CheckpointRecord]) -> CheckpointNotFoundError:
    found = ", ".join(f"{c.checkpoint_id} of run {c.run_key!r}" for c in retained) or "none"
    return CheckpointNotFoundError(
        f"Expected a retained checkpoint {wanted} of job {job!r} to start a fork from, found {found}; name one of "
        "these, retain those of more runs with retained_runs, or start from a savepoint."
    )
