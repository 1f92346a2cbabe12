"""Whose a snapshot is, and whether its bytes may be deleted: told from the rows of its job."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from airflow_provider_statecheck.checkpoint.job_view import JobView
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, CheckpointStatus


class Owner(StrEnum):
    """Who deletes a snapshot."""

    JOB = "job"
    """The job itself, when it needs it no more."""
    USER = "user"
    """Whoever asked for it."""
    OTHER = "other"
    """Whose it was before this job was restored from it without a claim."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Custody:
    """Whose a snapshot is and what follows from that."""

    owner: Owner
    is_safe_to_delete: bool
    """Whether nothing can need its directory any more; a savepoint is never that, for any job may begin from it."""
    because: str


def custody_of(view: JobView, checkpoint: CheckpointRecord) -> Custody:
    """
    Tell whose a snapshot is, and whether its directory may be deleted by hand.

    A claim of another job is not among the rows of this one, so that only ``dispose`` can tell it.

    :param view: The job's rows.
    :param checkpoint: One of them.
    """
    owner = _owner(checkpoint)
    needed = _needed_because(view, checkpoint, owner)
    if needed is not None:
        return Custody(owner=owner, is_safe_to_delete=False, because=needed)
    is_gone = checkpoint.discarded_at is not None
    because = "its bytes are gone" if is_gone else "nothing needs it any more; gc deletes it"
    return Custody(owner=owner, is_safe_to_delete=True, because=because)


def _owner(checkpoint: CheckpointRecord) -> Owner:
    if checkpoint.properties.unclaimed:
        return Owner.OTHER
    return Owner.USER if checkpoint.properties.is_savepoint else Owner.JOB


def _needed_because(view: JobView, checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    if owner is Owner.OTHER:
        return "it belongs to somebody else, who alone may delete it"
    if checkpoint.discarded_at is not None:
        return _kept_because(checkpoint)
    if checkpoint.status in (CheckpointStatus.PENDING, CheckpointStatus.FINALIZING):
        return "it is being written"
    if _is_pinned(view, checkpoint):
        return "an attempt that runs was restored from it"
    if checkpoint.status is CheckpointStatus.COMPLETED:
        return _retained_because(owner)
    return _shared_because(checkpoint, owner)


def _retained_because(owner: Owner) -> str:
    if owner is Owner.USER:
        return "a job may begin from it; dispose deletes it, unless another job claimed it"
    return "a restore may start from it"


def _kept_because(checkpoint: CheckpointRecord) -> str | None:
    # An aligned one whose end is in doubt is taken from garbage collection by the very transition that aborts it.
    is_in_doubt = checkpoint.status is CheckpointStatus.ABORTED and checkpoint.discarded_at == checkpoint.ended_at
    return "it may have been completed; its bytes were left on purpose" if is_in_doubt else None


def _shared_because(checkpoint: CheckpointRecord, owner: Owner) -> str | None:
    own = f"/{checkpoint.job_id}/chk-{checkpoint.checkpoint_id}"
    is_claimed = owner is Owner.JOB and not checkpoint.location.endswith(own)
    return "later checkpoints may name files of it; gc deletes it when none does" if is_claimed else None


def _is_pinned(view: JobView, checkpoint: CheckpointRecord) -> bool:
    running = (a for a in view.attempts if a.status is AttemptStatus.RUNNING)
    return any((a.operator_id, a.restored_from) == (checkpoint.operator_id, checkpoint.checkpoint_id) for a in running)
