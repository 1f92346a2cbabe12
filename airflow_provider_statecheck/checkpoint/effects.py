"""Effects are derived from rows each time, so a lost reply or a crashed caller loses none of them."""

from __future__ import annotations

from collections.abc import Iterable

from airflow_provider_statecheck.checkpoint.messages import OpenEffects
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
)
from airflow_provider_statecheck.checkpoint.requests import RequestStatus, SnapshotRequest


def open_effects(
    checkpoints: Iterable[CheckpointRecord], attempt: AttemptRecord | None, requests: Iterable[SnapshotRequest] = ()
) -> OpenEffects:
    """
    Say what of an operator's bytes is to be deleted, what must stay, and what its sink has to commit.

    :param checkpoints: The operator's checkpoints that are not yet discarded, oldest first.
    :param attempt: The newest attempt; while it runs, what it restored from is pinned.
    :param requests: What is asked of the operator and has not ended.
    """
    rows = list(checkpoints)
    pinned = _pinned(attempt)
    return OpenEffects(
        discards=tuple(c for c in rows if c.awaits_discard and c.checkpoint_id != pinned),
        retained=tuple(c for c in rows if c.status is CheckpointStatus.COMPLETED or _is_pinned(c, pinned)),
        savepoints=tuple(r for r in requests if r.properties.is_savepoint and r.status is RequestStatus.QUEUED),
        commits=tuple(c.checkpoint_id for c in rows if c.awaits_commit),
    )


def _pinned(attempt: AttemptRecord | None) -> int | None:
    is_running = attempt is not None and attempt.status is AttemptStatus.RUNNING
    return attempt.restored_from if attempt is not None and is_running else None


def _is_pinned(checkpoint: CheckpointRecord, pinned: int | None) -> bool:
    return checkpoint.checkpoint_id == pinned and checkpoint.metadata_uri is not None
