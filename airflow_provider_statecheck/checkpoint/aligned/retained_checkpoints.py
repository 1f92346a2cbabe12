"""Retained checkpoints: store, registry and rows brought to the same state."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from airflow_provider_statecheck.checkpoint.aligned import transitions
from airflow_provider_statecheck.checkpoint.aligned.completed_checkpoint import (
    CompletedCheckpoint,
    StateDiscarder,
    location_of,
    private_states,
)
from airflow_provider_statecheck.checkpoint.aligned.components import CoordinatorComponents
from airflow_provider_statecheck.checkpoint.aligned.shared_state_registry import SharedStateKey, SharedStateRegistry
from airflow_provider_statecheck.checkpoint.aligned.snapshot_contents import contents, merged
from airflow_provider_statecheck.checkpoint.fencing import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, JobStatus
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.store import JobTransaction
from airflow_provider_statecheck.exceptions import StateCheckError

_CARRIED = "carried"
_ORIGIN = re.compile(r"/chk-(\d+)/")


class GuardedDiscarder:
    """
    Deletes nothing that the registry knows somebody to use; the registry deletes that when its time has come.

    :param discarder: Who deletes.
    :param registry: Who knows what is used.
    """

    def __init__(self, discarder: StateDiscarder, registry: SharedStateRegistry) -> None:
        self._discarder = discarder
        self._registry = registry

    def discard_metadata(self, uri: str) -> None:
        """
        Delete the metadata of a checkpoint.

        :raises StorageError: if it may still be there.
        """
        self._discarder.discard_metadata(uri)

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the state that a handle leads to, unless it is used.

        :raises StorageError: if it may still be there.
        """
        used = {location_of(entry.handle) for entry in self._registry.entries.values()}
        if location_of(handle) not in used:
            self._discarder.discard_state(handle)

    def discard_location(self, uri: str) -> None:
        """
        Delete the directory of a checkpoint.

        :raises StorageError: if part of it may still be there.
        """
        self._discarder.discard_location(uri)


def register_carried(
    registry: SharedStateRegistry, checkpoint: CompletedCheckpoint, directories: Mapping[str, int]
) -> None:
    """
    Keep the checkpoints that hold state which this one only refers to.

    :param directories: Which checkpoint lies where, for a restored savepoint does not lie where checkpoints do.
    :raises CoordinatorError: after the registry was closed.
    """
    for operator_id, handle, origin in _carried(checkpoint, directories):
        key = SharedStateKey(operator_id, _CARRIED, "/".join(location_of(handle)))
        registry.register(key, handle, origin, prevents_discard=True)
        registry.register(key, handle, checkpoint.checkpoint_id)


def _carried(
    checkpoint: CompletedCheckpoint, directories: Mapping[str, int]
) -> Iterator[tuple[OperatorId, FileStateHandle | SegmentFileStateHandle, int]]:
    for operator_id, state in checkpoint.operator_states.items():
        for stream in private_states([state]):
            if not isinstance(stream, FileStateHandle | SegmentFileStateHandle):
                continue
            origin = _origin(stream.uri, directories)
            if origin is not None and origin != checkpoint.checkpoint_id:
                yield operator_id, stream, origin


def _origin(uri: str, directories: Mapping[str, int]) -> int | None:
    known = directories.get(uri.rpartition("/")[0])
    if known is not None:
        return known
    found = _ORIGIN.search(uri)
    return None if found is None else int(found.group(1))


log = logging.getLogger(__name__)


def refresh(components: CoordinatorComponents) -> dict[str, int]:
    """
    Learn what other processes completed and acknowledged, so that nothing of it is deleted here.

    :return: Which checkpoint lies where.
    :raises StateCheckError: if that cannot be learnt; then nothing may be dropped.
    """
    with components.transition() as tx:
        rows = [c for c in transitions.in_progress(tx) if not c.properties.is_savepoint]
        pending = [(c, tx.acknowledgements(c.checkpoint_id)) for c in rows]
        directories = {c.location: c.checkpoint_id for c in tx.open_checkpoints(ALIGNED_OPERATOR_ID)}
    components.completed_store.recover()
    for checkpoint in components.completed_store.get_all_checkpoints():
        directories[checkpoint.external_pointer] = checkpoint.checkpoint_id
        register_carried(components.registry, checkpoint, directories)
    for record, acknowledged in pending:
        content = merged(contents(components.storage, acknowledged))
        components.registry.register_all(content.operator_states, record.checkpoint_id)
    return directories


def must_be_full(components: CoordinatorComponents) -> bool:
    """
    Tell whether the next checkpoint may name no file of an earlier one, because the job began from somebody else's.

    :raises StateCheckError: if the store cannot be read.
    """
    components.completed_store.recover()
    kept = components.completed_store.get_all_checkpoints()
    foreign = max((c.checkpoint_id for c in kept if c.properties.unclaimed), default=0)
    full = (c.checkpoint_id for c in kept if c.properties.snapshot_type is CheckpointType.FULL_CHECKPOINT)
    return foreign > max(full, default=0)


def latest(components: CoordinatorComponents) -> CompletedCheckpoint | None:
    """
    Return the newest completed checkpoint, whichever process completed it.

    :raises StateCheckError: if the store cannot be read.
    """
    components.completed_store.recover()
    return components.completed_store.get_latest_checkpoint()


def latest_id(components: CoordinatorComponents) -> int:
    """Return the id of the newest completed checkpoint as far as it is known here, -1 for none."""
    return components.completed_store.get_latest_checkpoint_id() or -1


def mark_subsumed(components: CoordinatorComponents) -> list[CheckpointRecord]:
    """
    Say in the rows which completed checkpoints the store has dropped.

    :return: Those that were marked now.
    :raises StateCheckError: if the store or the rows cannot be read.
    """
    with components.transition() as tx:
        # The store is looked at after the rows: what is completed in a row was added to it before.
        completed = [c for c in transitions.of_status(tx, CheckpointStatus.COMPLETED) if c.is_restorable]
    components.completed_store.recover()
    kept = {c.checkpoint_id for c in components.completed_store.get_all_checkpoints()}
    oldest = min(kept, default=0)
    marked = []
    with components.transition() as tx:
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
        if not components.storage.exists(record.location):
            confirm_discarded(components, record.checkpoint_id)
    return marked


def end_with_job(components: CoordinatorComponents, status: JobStatus) -> None:
    """
    End the completed store with the job: the rows say first which checkpoints go.

    Those that stay are nobody's to delete from then on but their user's.

    :raises StateCheckError: if rows or store do not answer; it may be repeated.
    """
    if status.is_globally_terminal:
        with components.transition() as tx:
            for record in transitions.of_status(tx, CheckpointStatus.COMPLETED):
                if record.is_restorable:
                    tx.update_checkpoint(_ended_with(record, status, tx), expected=CheckpointStatus.COMPLETED)
    components.completed_store.shutdown(status, components.cleaner)


def _ended_with(record: CheckpointRecord, status: JobStatus, tx: JobTransaction) -> CheckpointRecord:
    if record.properties.discard_on(status):
        return replace(record, status=CheckpointStatus.SUBSUMED, ended_at=tx.now)
    return replace(record, properties=replace(record.properties, discard_on_subsumed=False))


def confirm_discarded(components: CoordinatorComponents, checkpoint_id: int) -> None:
    """Say in the row of a checkpoint that its bytes are gone; what fails here is found out by maintenance."""
    try:
        with components.transition() as tx:
            found = tx.checkpoint(checkpoint_id)
            if found is not None and found.awaits_discard:
                tx.update_checkpoint(replace(found, discarded_at=tx.now), expected=found.status)
    except StateCheckError as error:
        log.warning("The bytes of checkpoint %s are gone, but its row does not say so: %s", checkpoint_id, error)
