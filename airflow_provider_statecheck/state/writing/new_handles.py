"""Rows of state in order as handles that a state backend restores."""

from __future__ import annotations

from contextlib import closing
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, NAMESPACE, USER_KEY, VALUE, single
from airflow_provider_statecheck.state.arrow.meta import SnapshotMeta, StateFiles, encode_meta
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot
from airflow_provider_statecheck.state.backends.restored_rows import RestoredRows
from airflow_provider_statecheck.state.backends.state_rows import StateRows, arrow_schema_of, blocks_of
from airflow_provider_statecheck.state.writing.new_rows import NewRows
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_state_stream import FsCheckpointStateOutputStream, StateWriting
from airflow_provider_statecheck.storage.views.state_files import discard_state


@dataclass(frozen=True, slots=True)
class NewHandles:
    """
    Writes rows into the directory of a savepoint.

    :param storage: Where it is.
    :param directory: The savepoint's directory.
    :param epoch: In the names of files.
    :param is_full: Whether as full snapshots, which the backends restore that keep state in memory.
    """

    storage: CheckpointStorage
    directory: str
    epoch: int
    is_full: bool

    def write(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle | None:
        """
        Write the rows of one subtask, ``None`` if there are none.

        :param rows: As :class:`NewRows` gives them.
        :param owned: The key groups of the subtask.
        :raises StorageError: if the storage fails.
        """
        if rows.num_rows == 0:
            return None
        return self._full(new, rows, owned) if self.is_full else self._runs(new, rows, owned)

    def open_stream(self) -> FsCheckpointStateOutputStream:
        """Open a file of the savepoint."""
        return FsCheckpointStateOutputStream.open(self.storage, self.directory, StateWriting(epoch=self.epoch))

    def write_full(
        self, keys: Any, max_parallelism: int, owned: KeyGroupRange, states: list[StateRows]
    ) -> KeyedStateHandle | None:
        """
        Write states as one full snapshot, ``None`` if there is nothing in them.

        :param keys: The snapshot of the keys' serializer.
        :raises StorageError: if the storage fails.
        """
        snapshot = FullSnapshot(
            key=keys,
            number_of_key_groups=max_parallelism,
            key_group_range=owned,
            states=[RestoredRows(state) for state in states],
            open_stream=self.open_stream,
            discard=lambda handle: discard_state(self.storage, handle),
        )
        return snapshot.run().handle

    def _full(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle | None:
        import pyarrow as pa

        names = rows.schema.names
        found = [single(rows.column(name)) for name in new.layout.key_names]
        nothing = pa.repeat(pa.scalar("", pa.string()), rows.num_rows)
        found.append(single(rows.column(NAMESPACE)) if NAMESPACE in names else nothing)
        found += [single(rows.column(USER_KEY))] if USER_KEY in names else []
        schema = arrow_schema_of(new.state, new.keys)
        batch = pa.RecordBatch.from_arrays([*found, single(rows.column(VALUE))], schema=schema)
        blocks = tuple(blocks_of(single(rows.column(KEY_GROUP)), batch))
        return self.write_full(
            new.keys.snapshot(), new.max_parallelism, owned, [StateRows(new.state.schema(), schema, blocks)]
        )

    def _runs(self, new: NewRows, rows: Any, owned: KeyGroupRange) -> KeyedStateHandle:
        schema = new.state.schema()
        parts = PartWriter(rows.schema, schema, self.open_stream, ArrowStateSettings()).write_all([rows])
        meta = SnapshotMeta(new.keys.snapshot(), new.max_parallelism, (StateFiles(schema, (parts,)),))
        return IncrementalKeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=owned,
            checkpoint_id=1,
            shared=tuple((part.path, part.handle) for part in parts),
            meta=self._written(encode_meta(meta)),
        )

    def _written(self, data: bytes) -> Any:
        with closing(self.open_stream()) as stream:
            stream.write(data)
            return stream.close_and_get_handle()
