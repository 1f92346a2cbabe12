"""State that a checkpoint names although it lies in the directory of an earlier one."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from airflow_provider_statecheck.checkpoint.coordination.completed_checkpoint import CompletedCheckpoint
from airflow_provider_statecheck.checkpoint.coordination.discard_plan import (
    StateDiscarder,
    location_of,
    private_states,
)
from airflow_provider_statecheck.checkpoint.coordination.shared_registry import SharedStateKey, SharedStateRegistry
from airflow_provider_statecheck.checkpoint.ids import OperatorId
from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    SegmentFileStateHandle,
    StreamStateHandle,
)

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
