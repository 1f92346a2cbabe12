"""
Changing the maximum parallelism of a stage that has state, which no restore may do: offline, into a new savepoint.

The key group of every key is computed anew. All other state is copied as it is, so the savepoint needs nothing of its source.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import (
    key_group_range_of,
    key_group_ranges,
    require_parallelism,
)
from airflow_provider_statecheck.checkpoint.states.keyed_redistribution import intersection_of
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.streams import with_streams
from airflow_provider_statecheck.exceptions import StorageError, UnsupportedStateError
from airflow_provider_statecheck.state.rescaling_full import FullSnapshotRescaling
from airflow_provider_statecheck.state.rescaling_runs import RunsRescaling
from airflow_provider_statecheck.storage.document import CheckpointDocument
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import encode_metadata
from airflow_provider_statecheck.storage.savepoints import StateCopies, WrittenSavepoint
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream, StateWriting


def rescale_max_parallelism(
    storage: CheckpointStorage, source: CheckpointDocument, *, directory: str, max_parallelism: int
) -> WrittenSavepoint:
    """
    Write a checkpoint anew as a savepoint of another maximum parallelism, its metadata last; the source stays as it is.

    :param storage: Reads the checkpoint and writes the savepoint.
    :param source: The checkpoint or savepoint.
    :param directory: The new savepoint's directory, which nobody else writes to.
    :param max_parallelism: The new number of key groups.
    :raises InvalidConfigurationError: if that is less than an operator's parallelism, or more than there can be.
    :raises UnsupportedStateError: for state whose keys or types only the code that wrote it knows.
    :raises CorruptStateError: if state was changed.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises IncompatibleCheckpointError: if a newer version wrote the state.
    :raises StorageError: if the storage fails.
    """
    for state in source.operator_states:
        _require_possible(state, max_parallelism)
    rescaling = _Rescaling(storage, directory, source, max_parallelism)
    try:
        return rescaling.write()
    except BaseException:
        # Without metadata nobody can use it. What cannot be deleted either is nobody's savepoint.
        with contextlib.suppress(StorageError):
            storage.delete_directory(directory)
        raise


class _Rescaling:
    def __init__(
        self, storage: CheckpointStorage, directory: str, source: CheckpointDocument, max_parallelism: int
    ) -> None:
        self._storage = storage
        self._directory = directory
        self._source = source
        self._new = max_parallelism
        self._copies = StateCopies(storage, directory, source.epoch)
        self._streams = _SavepointStreams(storage, directory, StateWriting(epoch=source.epoch))

    def write(self) -> WrittenSavepoint:
        """Write all of the savepoint."""
        source, copies = self._source, self._copies
        document = replace(
            source,
            properties=CheckpointProperties.for_savepoint(),
            snapshots=tuple(copies.of_snapshot(handle) for handle in source.snapshots),
            state=copies.of_file(source.state) if isinstance(source.state, FileStateHandle) else source.state,
            operator_states=tuple(self._rescaled(state) for state in source.operator_states),
        )
        uri = f"{self._directory}/{METADATA_FILE}"
        data = encode_metadata(document, uri=uri)
        self._storage.write_bytes(uri, data)
        rescaled = sum(handle.state_size for state in document.operator_states for handle in _keyed_handles(state))
        return WrittenSavepoint(
            metadata_uri=uri,
            metadata_size=len(data),
            metadata_sha256=hashlib.sha256(data).hexdigest(),
            state_size_bytes=copies.size_bytes + rescaled,
        )

    def _rescaled(self, state: OperatorState) -> OperatorState:
        others = {i: replace(subtask, managed_keyed=()) for i, subtask in state.subtask_states.items()}
        copied = with_streams(replace(state, max_parallelism=self._new, subtask_states=others), self._copies.of_stream)
        subtasks = {
            index: replace(copied.subtask_states.get(index, OperatorSubtaskState()), managed_keyed=handles)
            for index, handles in enumerate(self._rescaled_keyed(state))
        }
        return replace(copied, subtask_states={index: each for index, each in subtasks.items() if each.has_state})

    def _rescaled_keyed(self, state: OperatorState) -> Iterator[tuple[KeyedStateHandle, ...]]:
        handles = list(_owned_handles(state))
        ranges = key_group_ranges(state.parallelism, self._new)
        of_full = FullSnapshotRescaling(self._storage, self._streams, old=state.max_parallelism, new=self._new)
        of_runs = RunsRescaling(self._storage, self._streams, new=self._new, checkpoint_id=self._source.checkpoint_id)
        full = of_full.rescaled([each for each in handles if isinstance(each, KeyGroupsStateHandle)], ranges)
        runs = of_runs.rescaled([each for each in handles if isinstance(each, IncrementalKeyedStateHandle)], ranges)
        for pair in zip(full, runs, strict=True):
            yield tuple(handle for handle in pair if handle is not None)


@dataclass(frozen=True, slots=True)
class _SavepointStreams:
    storage: CheckpointStorage
    directory: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream; all files of a savepoint are its own, whatever their scope."""
        return FsCheckpointStateOutputStream.open(self.storage, self.directory, self.writing)


def _require_possible(state: OperatorState, max_parallelism: int) -> None:
    require_parallelism(state.parallelism, max_parallelism)
    if any(subtask.raw_keyed for subtask in state.subtask_states.values()):
        raise UnsupportedStateError(
            f"Expected keyed state that a state backend wrote, found raw keyed state of operator {state.uid!r}, whose keys only "
            f"its own code can find; write it again with another max_parallelism there."
        )


def _keyed_handles(state: OperatorState) -> list[KeyedStateHandle]:
    return [handle for _, subtask in sorted(state.subtask_states.items()) for handle in subtask.managed_keyed]


def _owned_handles(state: OperatorState) -> Iterator[KeyedStateHandle]:
    for index, subtask in sorted(state.subtask_states.items()):
        own = key_group_range_of(index, state.parallelism, state.max_parallelism)
        for handle in subtask.managed_keyed:
            owned = intersection_of(handle, own)
            # A subtask that was lent files of others reads only its own key groups of them; the rest may be old.
            if isinstance(owned, IncrementalKeyedStateHandle):
                yield replace(owned, key_group_range=owned.key_group_range.intersection(own))
            elif owned is not None:
                yield owned
