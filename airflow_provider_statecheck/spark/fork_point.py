"""Where a fork of a job begins: at a checkpoint that the job has taken, whose files stay the job's own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from airflow_provider_statecheck.checkpoint.claims import RestoreMode
from airflow_provider_statecheck.checkpoint.gateway import CheckpointCoordinatorGateway
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.messages import RestoreSource
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.run_order import stood_before
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.restore_sources import find_source

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
    taken = _retained(view, uids)
    found = next(iter(_meant(view, taken, wanted)), None)
    if found is None:
        raise _none_left(job, wanted, taken)
    return found.location


def _retained(view: JobView, uids: set[str]) -> list[CheckpointRecord]:
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


def _none_left(job: str, wanted: str, taken: Sequence[CheckpointRecord]) -> CheckpointNotFoundError:
    there = ", ".join(f"{c.checkpoint_id} of run {c.run_key!r}" for c in taken) or "none"
    return CheckpointNotFoundError(
        f"Expected a retained checkpoint {wanted} of job {job!r} to begin a fork at, found {there}; name one of these, keep "
        f"those of more runs with retained_runs, or begin from a savepoint."
    )
