"""The rows of one state out of the files of any backend, a part of them at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from functools import cached_property
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import IncrementalKeyedStateHandle, KeyGroupsStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.block_cache import BlockCache
from airflow_provider_statecheck.state.arrow.file_run import FileRun
from airflow_provider_statecheck.state.arrow.layout import KEY_GROUP, NAMESPACE, USER_KEY, VALUE
from airflow_provider_statecheck.state.arrow.meta import StateFiles
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.arrow.part_bytes import PartBytes
from airflow_provider_statecheck.state.arrow.restore import restored_files
from airflow_provider_statecheck.state.arrow.row_form import StateRowForm
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.state_runs import Reading, StateRuns
from airflow_provider_statecheck.state.backends.full_snapshot_reader import FullSnapshotReader
from airflow_provider_statecheck.state.backends.state_rows import StateRows, repeated
from airflow_provider_statecheck.state.keyed.cell_migration import CellMigration, MigratedCells
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.columns import StateColumns
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import open_input_stream

_BYTES_AT_ONCE = 32 << 20
"""Of a full snapshot, of which whole key groups are in memory."""
_BLOCKS_AT_ONCE = 64


class StateRowsReader:
    """
    Gives rows in the columns of a backend.

    :param storage: Where the files are.
    :param content: The state, and where it is.
    :param columns: What its rows are.
    """

    def __init__(self, storage: CheckpointStorage, content: StateContent, columns: StateColumns) -> None:
        self._storage = storage
        self._content = content
        self._columns = columns

    def tables(self, owned: KeyGroupRange) -> Iterator[Any]:
        """
        Return the rows of some key groups; of several versions of a row the newest, and none of what was removed.

        :raises CorruptStateError: if bytes were changed.
        :raises CheckpointNotFoundError: if a file is missing.
        :raises StorageError: if the storage fails.
        """
        handles = self._content.within(owned).handles
        snapshots = [each for each in handles if isinstance(each, KeyGroupsStateHandle)]
        yield from self._of_snapshots(snapshots, owned) if snapshots else ()
        yield from self.merged(self.files(owned).runs)

    def files(self, owned: KeyGroupRange) -> StateFiles:
        """
        Return the files of the Arrow backend that have rows of some key groups.

        :raises CorruptStateError: if a description was changed.
        """
        handles = [each for each in self._content.within(owned).handles if _is_incremental(each)]
        found = restored_files(handles, self._storage, self._columns.keys, self._content.max_parallelism, owned)
        return found.get(self._content.schema.name, StateFiles(self._content.schema, ()))

    def merged(self, runs: tuple[Parts, ...]) -> Iterator[Any]:
        """Return the newest rows of runs, the newest of which comes first."""
        if not runs:
            return
        with closing(PartBytes(self._storage)) as files:
            reading = Reading(files, BlockCache(0), ArrowStateSettings())
            schema, layout = self._content.schema, self._columns.layout
            yield from StateRuns(schema, layout, self._form, reading, runs).rows()

    def written(self, parts: Parts) -> Iterator[Any]:
        """Return all rows of parts, those too that say that something older is gone."""
        with closing(PartBytes(self._storage)) as files:
            run = FileRun(parts, files, BlockCache(0), self._form)
            count = len(run.block_rows)
            for start in range(0, count, _BLOCKS_AT_ONCE):
                yield from run.tables(range(start, min(count, start + _BLOCKS_AT_ONCE)))

    def firsts(self, part: Part) -> Any:
        """Return the first position of each block of a part, with a column of namespaces."""
        return self._form.firsts(part, namespace=True)

    @cached_property
    def _form(self) -> StateRowForm:
        columns, schema = self._columns, self._content.schema
        return StateRowForm(columns.state, schema, columns.layout, self._content.taken_at_ms)

    def _of_snapshots(self, handles: list[KeyGroupsStateHandle], owned: KeyGroupRange) -> Iterator[Any]:
        for some in self._content.windows(owned, _BYTES_AT_ONCE):
            reader = FullSnapshotReader(self._open, self._content.max_parallelism, some)
            for handle in handles:
                found = reader.read(handle)
                for rows in () if found is None else found[1]:
                    if rows.schema.name == self._content.schema.name and rows.blocks:
                        yield self._in_layout(rows)

    def _open(self, stream: Any) -> Any:
        return open_input_stream(self._storage, stream)

    def _in_layout(self, rows: StateRows) -> Any:
        import pyarrow as pa

        batch = pa.concat_batches([each for _, each in rows.blocks])
        counts = [each.num_rows for _, each in rows.blocks]
        changed = self._migrated(rows, batch)
        layout = self._columns.layout
        have = {name: batch.column(i) for i, name in enumerate(layout.key_names)}
        have[KEY_GROUP] = repeated([group for group, _ in rows.blocks], counts, pa.int32())
        have[NAMESPACE] = batch.column(NAMESPACE)
        found = {name: changed.living(column) for name, column in have.items()}
        found[VALUE] = changed.living(changed.cells)
        if changed.user_keys is not None:
            found[USER_KEY] = changed.living(changed.user_keys)
        schema = layout.schema(namespace=True, deleted=False)
        return pa.table([found[name] for name in schema.names], schema=schema)

    def _migrated(self, rows: StateRows, batch: Any) -> MigratedCells:
        state = self._columns.state
        cells, user_keys = batch.column(VALUE), batch.column(USER_KEY) if state.is_map else None
        migration = CellMigration.of(rows.schema, state, self._content.taken_at_ms)
        return MigratedCells(user_keys, cells) if migration is None else migration.migrated(cells, user_keys)


def _is_incremental(handle: Any) -> bool:
    return isinstance(handle, IncrementalKeyedStateHandle)
