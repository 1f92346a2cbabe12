"""The completed store, the registry and the rows, brought to the same state before something is decided by them."""

from __future__ import annotations

import logging
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.checkpoint_type import CheckpointType
from airflow_provider_statecheck.checkpoint.coordination import aligned_rows
from airflow_provider_statecheck.checkpoint.coordination.carried_state import register_carried
from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.leadership import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.coordination.parts import CoordinatorParts
from airflow_provider_statecheck.checkpoint.coordination.snapshot_contents import contents, merged
from airflow_provider_statecheck.checkpoint.job_status import JobStatus
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import StateCheckError

log = logging.getLogger(__name__)


def refresh(parts: CoordinatorParts) -> dict[str, int]:
    """
    Learn what other processes completed and acknowledged, so that nothing of it is deleted here.

    :return: Which checkpoint lies where.
    :raises StateCheckError: if that cannot be learnt; then nothing may be dropped.
    """
    with parts.transition() as tx:
        rows = [c for c in aligned_rows.in_progress(tx) if not c.properties.is_savepoint]
        pending = [(c, tx.acknowledgements(c.checkpoint_id)) for c in rows]
        directories = {c.location: c.checkpoint_id for c in tx.open_checkpoints(ALIGNED_OPERATOR_ID)}
    parts.completed_store.recover()
    for checkpoint in parts.completed_store.get_all_checkpoints():
        directories[checkpoint.external_pointer] = checkpoint.checkpoint_id
        register_carried(parts.registry, checkpoint, directories)
    for record, acknowledged in pending:
        content = merged(contents(parts.storage, acknowledged))
        parts.registry.register_all(content.operator_states, record.checkpoint_id)
    return directories


def must_be_full(parts: CoordinatorParts) -> bool:
    """
    Tell whether the next checkpoint may name no file of an earlier one, because the job began from somebody else's.

    :raises StateCheckError: if the store cannot be read.
    """
    parts.completed_store.recover()
    kept = parts.completed_store.get_all_checkpoints()
    foreign = max((c.checkpoint_id for c in kept if c.properties.unclaimed), default=0)
    full = (c.checkpoint_id for c in kept if c.properties.snapshot_type is CheckpointType.FULL_CHECKPOINT)
    return foreign > max(full, default=0)


def latest(parts: CoordinatorParts) -> CompletedCheckpoint | None:
    """
    Return the newest completed checkpoint, whichever process completed it.

    :raises StateCheckError: if the store cannot be read.
    """
    parts.completed_store.recover()
    return parts.completed_store.get_latest_checkpoint()


def latest_id(parts: CoordinatorParts) -> int:
    """Return the id of the newest completed checkpoint as far as it is known here, -1 for none."""
    return parts.completed_store.get_latest_checkpoint_id() or -1


def mark_subsumed(parts: CoordinatorParts) -> list[CheckpointRecord]:
    """
    Say in the rows which completed checkpoints the store has dropped.

    :return: Those that were marked now.
    :raises StateCheckError: if the store or the rows cannot be read.
    """
    with parts.transition() as tx:
        # The store is looked at after the rows: what is completed in a row was added to it before.
        completed = [c for c in aligned_rows.of_status(tx, CheckpointStatus.COMPLETED) if c.is_restorable]
    parts.completed_store.recover()
    kept = {c.checkpoint_id for c in parts.completed_store.get_all_checkpoints()}
    oldest = min(kept, default=0)
    marked = []
    with parts.transition() as tx:
        for record in completed:
            found = tx.checkpoint(record.checkpoint_id)
            if found is None or found.status is not CheckpointStatus.COMPLETED:
                continue
            # What the store does not have has made room for a newer one, or is about to be added, or outlived its job.
            if record.checkpoint_id in kept or record.checkpoint_id > oldest:
                continue
            subsumed = replace(found, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
            tx.update_checkpoint(subsumed, expected=CheckpointStatus.COMPLETED)
            marked.append(subsumed)
    for record in marked:
        # It may have been deleted before its row said that it is to be.
        if not parts.storage.exists(record.location):
            confirm_discarded(parts, record.checkpoint_id)
    return marked


def end_with_job(parts: CoordinatorParts, status: JobStatus) -> None:
    """
    End the completed store with the job: the rows say first which checkpoints go.

    Those that stay are nobody's to delete from then on but their user's.

    :raises StateCheckError: if rows or store do not answer; it may be repeated.
    """
    if status.is_globally_terminal:
        with parts.transition() as tx:
            for record in aligned_rows.of_status(tx, CheckpointStatus.COMPLETED):
                if record.is_restorable:
                    tx.update_checkpoint(_ended_with(record, status, tx), expected=CheckpointStatus.COMPLETED)
    parts.completed_store.shutdown(status, parts.cleaner)


def _ended_with(record: CheckpointRecord, status: JobStatus, tx: JobTransaction) -> CheckpointRecord:
    if record.properties.discard_on(status):
        return replace(record, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
    return replace(record, properties=replace(record.properties, discard_on_subsumed=False))


def confirm_discarded(parts: CoordinatorParts, checkpoint_id: int) -> None:
    """Say in the row of a checkpoint that its bytes are gone; what fails here is found out by maintenance."""
    try:
        with parts.transition() as tx:
            found = tx.checkpoint(checkpoint_id)
            if found is not None and found.awaits_discard:
                tx.update_checkpoint(replace(found, discarded_at=tx.now), expected=found.status)
    except StateCheckError as error:
        log.warning("The bytes of checkpoint %s are gone, but its row does not say so: %s", checkpoint_id, error)
