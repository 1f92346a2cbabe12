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
    checkpoints: Iterable[CheckpointRecord],
    generation: int,
    attempt: AttemptRecord | None,
    requests: Iterable[SnapshotRequest] = (),
) -> OpenEffects:
    """
    Say what of an operator's bytes is to be deleted, what must stay, and what its sink has to commit.

    :param checkpoints: The operator's checkpoints that are not yet discarded, oldest first.
    :param generation: That of the operator.
    :param attempt: The newest attempt; while it runs, what it restored from is pinned.
    :param requests: What is asked of the operator and has not ended.
    """
    rows = list(checkpoints)
    pinned = _pinned(attempt) | _taken_back(rows, generation, attempt)
    return OpenEffects(
        discards=tuple(c for c in rows if c.awaits_discard and c.checkpoint_id not in pinned),
        retained=tuple(c for c in rows if c.status is CheckpointStatus.COMPLETED or _is_pinned(c, pinned)),
        savepoints=tuple(r for r in requests if r.properties.is_savepoint and r.status is RequestStatus.QUEUED),
        commits=tuple(c.checkpoint_id for c in rows if c.awaits_commit),
    )


def _pinned(attempt: AttemptRecord | None) -> set[int]:
    if attempt is None or attempt.status is not AttemptStatus.RUNNING or attempt.restored_from is None:
        return set()
    return {attempt.restored_from}


def _taken_back(rows: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None) -> set[int]:
    # A run that begins again may find that it cannot; until it has something newer, its state of before is the only one.
    mine = [c for c in rows if c.generation == generation]
    newest = max((c.checkpoint_id for c in mine if c.is_restorable), default=None)
    if newest is None or attempt is None or attempt.status is AttemptStatus.FINISHED:
        return set()
    return {c.checkpoint_id for c in mine if c.checkpoint_id > newest and c.status is CheckpointStatus.SUBSUMED}


def _is_pinned(checkpoint: CheckpointRecord, pinned: set[int]) -> bool:
    return checkpoint.checkpoint_id in pinned and checkpoint.metadata_uri is not None
