"""Going on with what an earlier coordinator left."""

from __future__ import annotations

import logging

from airflow_provider_statecheck.checkpoint.coordination import aligned_rows
from airflow_provider_statecheck.checkpoint.coordination.aborting import Aborting
from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.finalization import Finalization
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.coordination.retained import confirm_discarded, mark_subsumed, refresh
from airflow_provider_statecheck.checkpoint.coordination.snapshot_contents import (
    completed_of,
    contents,
    merged,
    metadata_of,
)
from airflow_provider_statecheck.checkpoint.coordination.snapshot_storage import SnapshotContent
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, CoordinatorError, CorruptStateError

log = logging.getLogger(__name__)


def resume(parts: CoordinatorParts, aborting: Aborting, finalization: Finalization) -> None:
    """
    Go on with the checkpoints of earlier leaders that can still become complete, and end the others.

    :raises StateCheckError: if rows or storage do not answer; nothing is lost then, and it may be tried again.
    """
    for record, reason in _lost(parts):
        error = CheckpointException(CheckpointFailureReason.JOB_FAILURE, CoordinatorError(reason))
        aborting.abort_one(record.checkpoint_id, error)
    refresh(parts)
    finalization.take_over()
    mark_subsumed(parts)
    _clean(parts, aborting)


def _lost(parts: CoordinatorParts) -> list[tuple[CheckpointRecord, str]]:
    with parts.transition() as tx:
        rows = aligned_rows.of_status(tx, CheckpointStatus.PENDING)
        earlier = [c for c in rows if c.epoch < parts.leader.epoch]
        facts = [
            (c, aligned_rows.is_triggered(tx, c.checkpoint_id), tx.acknowledgements(c.checkpoint_id)) for c in earlier
        ]
    lost = []
    for record, is_triggered, acknowledged in facts:
        if not is_triggered:
            lost.append((record, "the coordinator ended before it had told all tasks"))
            continue
        try:
            merged(contents(parts.storage, acknowledged))
        except (CheckpointNotFoundError, CorruptStateError) as error:
            lost.append((record, f"what was acknowledged is gone: {error}"))
    return lost


def _clean(parts: CoordinatorParts, aborting: Aborting) -> None:
    """Delete what was to be deleted when nobody was there; what is subsumed waits until no file of it is used."""
    with parts.transition() as tx:
        rows = [c for c in tx.open_checkpoints(ALIGNED_OPERATOR_ID) if c.awaits_discard]
        facts = [(c, tx.acknowledgements(c.checkpoint_id)) for c in rows]
    for record, acknowledged in facts:
        if not parts.storage.exists(record.location):
            confirm_discarded(parts, record.checkpoint_id)
        elif record.status is CheckpointStatus.SUBSUMED:
            parts.cleaner.add_subsumed(_subsumed(parts, record))
        else:
            aborting.clean(record, acknowledged)


def _subsumed(parts: CoordinatorParts, record: CheckpointRecord) -> CompletedCheckpoint:
    metadata = metadata_of(record)
    try:
        return completed_of(record, parts.storage.read(metadata), metadata)
    except (CheckpointNotFoundError, CorruptStateError):
        # Half of it was deleted before; the rest goes with the directory.
        return completed_of(record, SnapshotContent(), metadata)
