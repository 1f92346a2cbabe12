"""
Retention: which checkpoints are kept, whose files may be deleted, and who owns them.

A completed checkpoint subsumes those beyond the number to retain. The files of a subsumed checkpoint may be deleted
once no running attempt was restored from it, and something newer has replaced it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby, islice
from typing import Protocol, TypeVar

from airflow_provider_statecheck.checkpoint.codec import require
from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobView


class Retained(Protocol):
    """Completed checkpoint, as a row or as an object."""

    @property
    def properties(self) -> CheckpointProperties:
        """The properties, which determine the owner."""


Checkpoint = TypeVar("Checkpoint", bound=Retained)


def beyond_retention(checkpoints: Sequence[Checkpoint], num_retained: int) -> list[Checkpoint]:
    """
    Return the checkpoints beyond retention, oldest first.

    The newest checkpoint is always retained, and so is the newest one that is not a savepoint: the user may delete a
    savepoint, and a restore needs a checkpoint that only the job can delete. No such checkpoint is needed after a
    savepoint that stops the job.

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

    - Unusable checkpoints do not count, which leaves `num_retained` usable ones as fallbacks. They are subsumed when
      all retained checkpoints are newer.
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


def ends_of_runs(checkpoints: Sequence[CheckpointRecord]) -> Iterator[CheckpointRecord]:
    """
    Yield the newest checkpoint of each run.

    :param checkpoints: Checkpoints of one generation, newest first.
    """
    return (next(group) for _, group in groupby(checkpoints, lambda checkpoint: checkpoint.run_key))


def open_effects(
    checkpoints: Iterable[CheckpointRecord],
    generation: int,
    attempt: AttemptRecord | None,
    requests: Iterable[CheckpointRequest] = (),
) -> OpenEffects:
    """
    Return the checkpoints to delete and to retain, the savepoints to take and the commits to make for an operator.

    :param checkpoints: Checkpoints of the operator that are not discarded, oldest first.
    :param attempt: Newest attempt, which pins its restored checkpoint while it runs.
    :param requests: Open requests to the operator.
    """
    # The caller displays no figures of these checkpoints, and each reply would repeat them.
    rows = [replace(checkpoint, summary=None) for checkpoint in checkpoints]
    protected = protected_checkpoints(rows, generation, attempt)
    return OpenEffects(
        discards=tuple(c for c in rows if c.awaits_discard and c.checkpoint_id not in protected),
        retained=tuple(c for c in rows if c.status is CheckpointStatus.COMPLETED or _has_protected_files(c, protected)),
        savepoints=tuple(r for r in requests if r.properties.is_savepoint and r.status is RequestStatus.QUEUED),
        commits=tuple(c.checkpoint_id for c in rows if c.awaits_commit and c.generation == generation),
    )


def protected_checkpoints(
    checkpoints: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None
) -> frozenset[int]:
    """Return the ids of checkpoints whose files must not be deleted, even if their rows have ended."""
    return frozenset(_pinned(attempt) | _rolled_back(checkpoints, generation, attempt))


def _pinned(attempt: AttemptRecord | None) -> set[int]:
    if attempt is None or not attempt.is_running or attempt.restored_from is None:
        return set()
    return {attempt.restored_from}


def _rolled_back(rows: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None) -> set[int]:
    # A restarted run can fail. Until it completes a checkpoint, the rolled-back ones hold the only copy of its results.
    current = [c for c in rows if c.generation == generation]
    newest = max((c.checkpoint_id for c in current if c.is_restorable), default=None)
    if newest is None or attempt is None:
        return set()
    subsumed = (c for c in current if c.status is CheckpointStatus.SUBSUMED and c.discarded_at is None)
    rolled_back = [c for c in subsumed if c.checkpoint_id > newest]
    last_epoch = max((c.epoch for c in rolled_back), default=0)
    return {c.checkpoint_id for c in rolled_back if not _has_finished_since(attempt, c, last_epoch)}


def _has_finished_since(attempt: AttemptRecord, rolled_back: CheckpointRecord, last_epoch: int) -> bool:
    # A rewind may follow the last attempt, which then does not replace the results of the rolled-back checkpoints.
    # Within the resolution of the clock, only epochs tell a rewind from a restart.
    begun = (attempt.registered_at, attempt.epoch)
    is_later = rolled_back.ended_at is None or begun > (rolled_back.ended_at, last_epoch)
    return attempt.status is AttemptStatus.FINISHED and is_later


def _has_protected_files(checkpoint: CheckpointRecord, protected: frozenset[int]) -> bool:
    return checkpoint.checkpoint_id in protected and checkpoint.metadata_uri is not None


class Owner(StrEnum):
    """Owner of a checkpoint or a savepoint, who deletes it."""

    JOB = "job"
    """The job, which deletes it after it was subsumed."""
    USER = "user"
    """The user who requested the savepoint."""
    OTHER = "other"
    """The previous owner of what was restored without a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """Owner of a checkpoint or a savepoint, and whether its directory may be deleted by hand."""

    owner: Owner
    is_safe_to_delete: bool
    """Whether no job can need the directory; never true for a savepoint, which any job may restore."""
    because: str
    """Reason, for display."""


def custody_of(view: JobView, checkpoint: CheckpointRecord) -> Custody:
    """
    Return the owner of a checkpoint or a savepoint, and whether its directory may be deleted by hand.

    The rows of a job do not contain claims of other jobs; only ``dispose`` checks them.
    """
    owner = _owner_of(checkpoint)
    reason = _reason_to_keep_files(view, checkpoint, owner)
    if reason is not None:
        return Custody(owner=owner, is_safe_to_delete=False, because=reason)
    is_deleted = checkpoint.discarded_at is not None
    because = "its files are deleted" if is_deleted else "it is no longer needed; gc deletes it"
    return Custody(owner=owner, is_safe_to_delete=True, because=because)


def _owner_of(checkpoint: CheckpointRecord) -> Owner:
    if checkpoint.properties.unclaimed:
        return Owner.OTHER
    return Owner.USER if checkpoint.properties.is_savepoint else Owner.JOB


def _reason_to_keep_files(view: JobView, checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    if owner is Owner.OTHER:
        return "it belongs to another owner, and only the owner may delete it"
    if checkpoint.discarded_at is not None:
        return None
    if checkpoint.is_in_progress:
        return "it is being written"
    if _is_pinned(view, checkpoint):
        return "a running attempt was restored from it"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return _reason_if_retained(owner)
    if _is_protected(view, checkpoint):
        return "it was rolled back, and nothing newer has replaced it yet"
    return _reason_if_shared(checkpoint, owner)


def _reason_if_retained(owner: Owner) -> str:
    if owner is Owner.USER:
        return "a job may be restored from it; dispose deletes it, unless another job claimed it"
    return "the job may be restored from it"


def _reason_if_shared(checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    own = f"/{checkpoint.job_id}/chk-{checkpoint.checkpoint_id}"
    # The attempt continues after an aborted checkpoint with the state that its tasks have written. Others are claimed
    # savepoints.
    is_shared = checkpoint.status is CheckpointStatus.ABORTED or not checkpoint.location.endswith(own)
    because = "later checkpoints may reference its files; gc deletes it when none does"
    return because if is_shared and owner is Owner.JOB else None


def _is_pinned(view: JobView, checkpoint: CheckpointRecord) -> bool:
    running = (a for a in view.attempts if a.is_running)
    return any((a.operator_id, a.restored_from) == (checkpoint.operator_id, checkpoint.checkpoint_id) for a in running)


def _is_protected(view: JobView, checkpoint: CheckpointRecord) -> bool:
    operator = view.operator(checkpoint.operator_id)
    if operator is None:
        return False
    rows = view.of_operator(operator.operator_id)
    protected = protected_checkpoints(rows, operator.generation, view.current_attempt(operator))
    return checkpoint.checkpoint_id in protected
