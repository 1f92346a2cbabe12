"""State of a backend in memory, which the Arrow backend continues as changes in local files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange, KeyGroupsStateHandle
from airflow_provider_statecheck.state.arrow.layout import StateLayout
from airflow_provider_statecheck.state.arrow.part_files import Parts, StateFiles
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import StateRowForm, merge_subtasks, require_fitting_keys
from airflow_provider_statecheck.state.arrow.runs import FileRun
from airflow_provider_statecheck.state.arrow.state_runs import OpenStream, Reading, StateRuns
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent, written_schemas
from airflow_provider_statecheck.state.reading.state_reader import StateRowsReader, StateView, columns_of, registered
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


@dataclass(frozen=True, slots=True)
class ForeignState:
    """State in the types in which it was written. Snapshots write it, whether a descriptor claims it or not."""

    state: RegisteredState
    runs: StateRuns

    @property
    def local(self) -> tuple[FileRun, ...]:
        """Return the runs that no completed snapshot has written yet."""
        return tuple(run for run in self.runs.fresh if isinstance(run, FileRun))


class ForeignStates:
    """
    Reader of full snapshots of keyed state.

    :param storage: Storage of the snapshots.
    :param keys: Keys of the operator.
    :param number_of_key_groups: Maximum parallelism of the operator.
    :param owned: Key groups of the subtask.
    :param reading: Shared resources for reading the local files.
    :param open_stream: Opens a local file.
    :param now_ms: Time of the restore in milliseconds.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        keys: KeySerializer,
        number_of_key_groups: int,
        owned: KeyGroupRange,
        *,
        reading: Reading,
        open_stream: OpenStream,
        now_ms: int,
    ) -> None:
        self._storage = storage
        self._keys = keys
        self._number_of_key_groups = number_of_key_groups
        self._owned = owned
        self._reading = reading
        self._open_stream = open_stream
        self._now_ms = now_ms

    def read(self, handles: Sequence[KeyGroupsStateHandle]) -> dict[str, ForeignState]:
        """
        Write the rows of snapshots to local files, and return the states by name.

        :raises CorruptStateError: if a snapshot is corrupt.
        :raises IncompatibleCheckpointError: if a newer version wrote a snapshot, or with another number of key groups.
        :raises StateMigrationError: if the keys have another type.
        :raises StorageError: if the storage fails, or the local disk is full.
        """
        found: dict[str, list[StateFiles]] = {}
        for handle in handles:
            for files in self._files_of(handle):
                found.setdefault(files.state.name, []).append(files)
        return {name: self._state(merge_subtasks(files)) for name, files in found.items()}

    def _files_of(self, handle: KeyGroupsStateHandle) -> Iterator[StateFiles]:
        schemas = written_schemas(self._storage, [handle])
        if schemas.key is None:
            return
        require_fitting_keys(self._keys, schemas.key)
        for schema in schemas.keyed:
            content = StateContent(
                uid="",
                schema=schema,
                key=schemas.key,
                max_parallelism=self._number_of_key_groups,
                handles=(handle,),
                taken_at_ms=self._now_ms,
            )
            parts = self._written(content)
            if parts:
                yield StateFiles(schema, (parts,))

    def _written(self, content: StateContent) -> Parts:
        columns = columns_of(content, StateView())
        schema = columns.layout.schema(namespace=True, deleted=False)
        writer = PartWriter(schema, content.schema, self._open_stream, self._reading.settings)
        return writer.write_all(StateRowsReader(self._storage, content, columns).tables(self._owned))

    def _state(self, files: StateFiles) -> ForeignState:
        state, schema = registered(files.state), files.state
        user_keys = None if state.key_serializer is None else state.key_serializer.arrow_type
        layout = StateLayout.of(self._keys, state.cell_serializer.arrow_type, user_keys)
        form = StateRowForm(state, schema, layout, self._now_ms)
        return ForeignState(state, StateRuns(schema, layout, form, self._reading, changes=files.runs))
