"""
Synchronization of the completed store and the shared state registry with the rows.

Other processes may complete checkpoints at any time. :func:`refresh` therefore runs before anything is dropped.
"""

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
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import StateCheckError

log = logging.getLogger(__name__)

_CARRIED = "carried"
_ORIGIN = re.compile(r"/chk-(\d+)/")


def refresh(components: CoordinatorComponents) -> dict[str, int]:
    """
    Register the state of checkpoints that other processes completed or acknowledged, which protects it from deletion.

    :return: The checkpoint ids by directory.
    :raises StateCheckError: if a read fails; the caller must not drop checkpoints.
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
    Return whether the next checkpoint must be full, because the job was restored from a snapshot without a claim.

    :raises StateCheckError: if the store cannot be read.
    """
    components.completed_store.recover()
    retained = components.completed_store.get_all_checkpoints()
    foreign = max((c.checkpoint_id for c in retained if c.properties.unclaimed), default=0)
    full = (c.checkpoint_id for c in retained if c.properties.snapshot_type is CheckpointType.FULL_CHECKPOINT)
    return foreign > max(full, default=0)


def latest(components: CoordinatorComponents) -> CompletedCheckpoint | None:
    """
    Return the newest completed checkpoint of all processes.

    :raises StateCheckError: if the store cannot be read.
    """
    components.completed_store.recover()
    return components.completed_store.get_latest_checkpoint()


def latest_id(components: CoordinatorComponents) -> int:
    """Return the id of the newest completed checkpoint known to this process, -1 for none."""
    return components.completed_store.get_latest_checkpoint_id() or -1


def confirm_discarded(components: CoordinatorComponents, checkpoint_id: int) -> None:
    """Record in the row of a checkpoint that its files were deleted; garbage collection repeats this after an error."""
    try:
        with components.transition() as tx:
            found = tx.checkpoint(checkpoint_id)
            if found is not None and found.awaits_discard:
                tx.update_checkpoint(replace(found, discarded_at=tx.now), expected=found.status)
    except StateCheckError as error:
        log.warning("The files of checkpoint %s were deleted, but its row was not updated: %s", checkpoint_id, error)


def register_carried(
    registry: SharedStateRegistry, checkpoint: CompletedCheckpoint, directories: Mapping[str, int]
) -> None:
    """
    Protect earlier checkpoints whose private files a checkpoint refers to.

    :param directories: The checkpoint ids by directory, including restored savepoints in other directories.
    :raises CoordinatorError: if the registry was closed.
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


class GuardedDiscarder:
    """
    Deletes only files that the registry does not track; the registry deletes tracked files after their last use.

    :param discarder: The deleter of files.
    :param registry: The registry of shared state.
    """

    def __init__(self, discarder: StateDiscarder, registry: SharedStateRegistry) -> None:
        self._discarder = discarder
        self._registry = registry

    def discard_metadata(self, uri: str) -> None:
        """
        Delete the metadata of a checkpoint.

        :raises StorageError: if the file may still exist.
        """
        self._discarder.discard_metadata(uri)

    def discard_state(self, handle: StreamStateHandle) -> None:
        """
        Delete the state of a handle, unless it is in use.

        :raises StorageError: if the state may still exist.
        """
        used = {location_of(entry.handle) for entry in self._registry.entries.values()}
        if location_of(handle) not in used:
            self._discarder.discard_state(handle)

    def discard_location(self, uri: str) -> None:
        """
        Delete the directory of a checkpoint.

        :raises StorageError: if a file of it may still exist.
        """
        self._discarder.discard_location(uri)
