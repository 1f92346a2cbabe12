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
    pinned = needed_though_ended(rows, generation, attempt)
    return OpenEffects(
        discards=tuple(c for c in rows if c.awaits_discard and c.checkpoint_id not in pinned),
        retained=tuple(c for c in rows if c.status is CheckpointStatus.COMPLETED or _is_pinned(c, pinned)),
        savepoints=tuple(r for r in requests if r.properties.is_savepoint and r.status is RequestStatus.QUEUED),
        commits=tuple(c.checkpoint_id for c in rows if c.awaits_commit),
    )


def needed_though_ended(
    checkpoints: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None
) -> frozenset[int]:
    """
    Return the checkpoints of an operator whose bytes must stay even if they are not restored any more.

    :param checkpoints: All of the operator.
    :param generation: That of the operator.
    :param attempt: The newest attempt.
    """
    return frozenset(_pinned(attempt) | _taken_back(checkpoints, generation, attempt))


def _pinned(attempt: AttemptRecord | None) -> set[int]:
    if attempt is None or attempt.status is not AttemptStatus.RUNNING or attempt.restored_from is None:
        return set()
    return {attempt.restored_from}


def _taken_back(rows: Iterable[CheckpointRecord], generation: int, attempt: AttemptRecord | None) -> set[int]:
    # A run that begins again may find that it cannot; until it has something newer, its state of before is the only one.
    mine = [c for c in rows if c.generation == generation]
    newest = max((c.checkpoint_id for c in mine if c.is_restorable), default=None)
    if newest is None or attempt is None:
        return set()
    subsumed = (c for c in mine if c.status is CheckpointStatus.SUBSUMED and c.discarded_at is None)
    given_up = (c for c in subsumed if c.checkpoint_id > newest)
    return {c.checkpoint_id for c in given_up if not _has_worked_since(attempt, c)}


def _has_worked_since(attempt: AttemptRecord, taken_back: CheckpointRecord) -> bool:
    # A job may be rewound after its last attempt; that one's end is not the end of work that replaces it.
    is_later = taken_back.ended_at is None or attempt.registered_at >= taken_back.ended_at
    return attempt.status is AttemptStatus.FINISHED and is_later


def _is_pinned(checkpoint: CheckpointRecord, pinned: frozenset[int]) -> bool:
    return checkpoint.checkpoint_id in pinned and checkpoint.metadata_uri is not None
