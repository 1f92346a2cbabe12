"""The keyed state of an operator without one of its states, which another takes the place of."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace

from airflow_provider_statecheck.checkpoint.states.handles import (
    ByteStreamStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.checkpoint.states.operator_state import OperatorState, OperatorSubtaskState
from airflow_provider_statecheck.checkpoint.states.streams import with_streams
from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.arrow.meta import SnapshotMeta, decode_meta, encode_meta
from airflow_provider_statecheck.state.backends.full_snapshot_reader import FullSnapshotReader
from airflow_provider_statecheck.state.writing.new_handles import NewHandles
from airflow_provider_statecheck.storage.savepoints import StateCopies
from airflow_provider_statecheck.storage.views.state_files import open_input_stream, read_state


@dataclass(frozen=True, slots=True)
class StateDropping:
    """
    Copies an operator into a savepoint and leaves one state out.

    :param new: Writes what has to be written anew.
    :param copies: Copies what stays as it is.
    :param name: The state that is left out.
    """

    new: NewHandles
    copies: StateCopies
    name: str

    def copied(self, operator: OperatorState) -> OperatorState:
        """
        Return the operator as it is in the savepoint.

        :raises CorruptStateError: if state was changed.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises StorageError: if the storage fails.
        """
        subtasks = {index: self._with_runs(each) for index, each in operator.subtask_states.items()}
        kept = with_streams(replace(operator, subtask_states=subtasks), self.copies.of_stream)
        for index, subtask in operator.subtask_states.items():
            own = key_group_range_of(index, operator.parallelism, operator.max_parallelism)
            written = self._snapshots(subtask, operator.max_parallelism, own)
            found = kept.subtask_states[index]
            kept = kept.put_state(index, replace(found, managed_keyed=(*found.managed_keyed, *written)))
        return kept

    def _with_runs(self, subtask: OperatorSubtaskState) -> OperatorSubtaskState:
        runs = [each for each in subtask.managed_keyed if isinstance(each, IncrementalKeyedStateHandle)]
        kept = (self._without(each) for each in runs)
        return replace(subtask, managed_keyed=tuple(each for each in kept if each is not None))

    def _without(self, handle: IncrementalKeyedStateHandle) -> IncrementalKeyedStateHandle | None:
        if handle.meta is None:
            raise CorruptStateError(
                f"Expected the description of state files in checkpoint {handle.checkpoint_id}, found none."
            )
        files = dict((*handle.shared, *handle.private))
        meta = decode_meta(read_state(self.new.storage, handle.meta), files, f"checkpoint {handle.checkpoint_id}")
        states = tuple(state for state in meta.states if state.state.name != self.name)
        if len(states) == len(meta.states):
            return handle
        paths = {part.path for state in states for parts in state.runs for part in parts}
        data = encode_meta(SnapshotMeta(meta.key, meta.number_of_key_groups, states))
        kept = replace(
            handle,
            shared=tuple(each for each in handle.shared if each[0] in paths),
            private=tuple(each for each in handle.private if each[0] in paths),
            meta=ByteStreamStateHandle(uuid.uuid4().hex, data),
        )
        return kept if states else None

    def _snapshots(
        self, subtask: OperatorSubtaskState, max_parallelism: int, own: KeyGroupRange
    ) -> tuple[KeyedStateHandle, ...]:
        reader = FullSnapshotReader(lambda stream: open_input_stream(self.new.storage, stream), max_parallelism, own)
        written = []
        for handle in subtask.managed_keyed:
            found = reader.read(handle) if isinstance(handle, KeyGroupsStateHandle) else None
            if found is not None:
                states = [state for state in found[1] if state.schema.name != self.name]
                written.append(self.new.write_full(found[0].schemas.key, max_parallelism, own, states))
        return tuple(each for each in written if each is not None)
