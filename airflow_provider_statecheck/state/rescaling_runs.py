"""Keyed state in sorted runs, for another number of key groups; the memory taken does not grow with the state."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    IncrementalKeyedStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import CorruptStateError, IncompatibleCheckpointError, UnsupportedStateError
from airflow_provider_statecheck.state.arrow.block_cache import BlockCache
from airflow_provider_statecheck.state.arrow.file_run import FileRun
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    KEY_PREFIX,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    single,
)
from airflow_provider_statecheck.state.arrow.merging import merge_runs, merge_tables
from airflow_provider_statecheck.state.arrow.meta import SnapshotMeta, StateFiles, decode_meta, encode_meta
from airflow_provider_statecheck.state.arrow.part import Part, Parts
from airflow_provider_statecheck.state.arrow.part_bytes import PartBytes
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.keys.key_columns import key_groups, normalized_column
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import read_state
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream
from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory

_BYTES_AT_ONCE = 256 << 20


class RunsRescaling:
    """
    Reads the runs of all subtasks once and writes runs with new key groups.

    :param storage: From which they are read.
    :param streams: Where they are written.
    :param new: The number of key groups that they get.
    :param checkpoint_id: Of the snapshot that is written.
    :param bytes_at_once: About how many bytes of rows are in memory before they are written.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        streams: CheckpointStreamFactory,
        *,
        new: int,
        checkpoint_id: int,
        bytes_at_once: int = _BYTES_AT_ONCE,
    ) -> None:
        self._storage = storage
        self._streams = streams
        self._new = new
        self._checkpoint_id = checkpoint_id
        self._bytes_at_once = bytes_at_once

    def rescaled(
        self, handles: Sequence[IncrementalKeyedStateHandle], ranges: Sequence[KeyGroupRange]
    ) -> list[IncrementalKeyedStateHandle | None]:
        """
        Write the state of handles anew and return a handle for each range, ``None`` where there is no state.

        :raises CorruptStateError: if the bytes were changed.
        :raises IncompatibleCheckpointError: if they are of a newer version, or the subtasks have different keys.
        :raises UnsupportedStateError: if rows of one state were written with different types.
        :raises StorageError: if the storage fails.
        """
        metas = [self._meta(handle) for handle in handles]
        keys = _single_key([meta.key for meta in metas])
        written = [_Written(key_group_range) for key_group_range in ranges]
        for name in dict.fromkeys(files.state.name for meta in metas for files in meta.states):
            self._rescale_state(name, zip(handles, metas, strict=True), written)
        return [self._handle(keys, each) for each in written]

    def _rescale_state(
        self, name: str, sources: Iterator[tuple[IncrementalKeyedStateHandle, SnapshotMeta]], written: list[_Written]
    ) -> None:
        found = [
            (files, handle.key_group_range)
            for handle, meta in sources
            for files in meta.states
            if files.state.name == name
        ]
        state = _single_state(name, [files for files, _ in found])
        waiting, size = [], 0
        for files, owned in found:
            for table in self._rows(files, owned):
                waiting.append(self._regrouped(table))
                size += table.nbytes
                if size >= self._bytes_at_once:
                    self._write_rows(state, waiting, written)
                    waiting, size = [], 0
        self._write_rows(state, waiting, written)

    def _meta(self, handle: IncrementalKeyedStateHandle) -> SnapshotMeta:
        if handle.backend_id != BACKEND_ID:
            raise IncompatibleCheckpointError(
                f"Expected state that the state backend {BACKEND_ID} wrote, found that of {handle.backend_id}; only the backend "
                f"that wrote it can read it."
            )
        where = f"checkpoint {handle.checkpoint_id}"
        if handle.meta is None:
            raise CorruptStateError(f"Expected the description of state files in {where}, found none.")
        return decode_meta(read_state(self._storage, handle.meta), dict((*handle.shared, *handle.private)), where)

    def _rows(self, files: StateFiles, owned: KeyGroupRange) -> Iterator[Any]:
        runs = [kept for kept in (_within(parts, owned) for parts in files.runs) if kept]
        if not runs:
            return
        layout = _layout_of(runs[0][0].schema)
        content = PartBytes(self._storage)
        try:
            form = _AsWritten(layout)
            opened = [FileRun(parts, content, BlockCache(0), form) for parts in runs]
            yield from merge_runs(layout, opened, keep_deletions=False)
        finally:
            content.close()

    def _regrouped(self, table: Any) -> Any:
        import pyarrow as pa

        of_key = [field for field in table.schema if field.name.startswith(KEY_PREFIX)]
        columns = [normalized_column(field.name, field.type, single(table.column(field.name))) for field in of_key]
        index = table.schema.get_field_index(KEY_GROUP)
        return table.set_column(index, table.schema.field(index), pa.array(key_groups(columns, self._new)))

    def _write_rows(self, state: StateSchema, tables: list[Any], written: list[_Written]) -> None:
        if not tables:
            return
        layout = _layout_of(tables[0].schema)
        has_namespaces = any(NAMESPACE in table.schema.names for table in tables)
        rows = merge_tables([layout.conform(table, namespace=has_namespaces, deleted=False) for table in tables])
        groups = single(rows.column(KEY_GROUP)).to_numpy()
        for each in written:
            start, end = groups.searchsorted([each.owned.start, each.owned.end + 1])
            if start < end:
                schema = layout.schema(namespace=has_namespaces, deleted=False)
                writer = PartWriter(schema, state, self._open_shared, ArrowStateSettings())
                each.runs[state.name].append(writer.write_all([rows.slice(start, end - start)]))
                each.states[state.name] = state

    def _handle(self, keys: SerializerSnapshot | None, written: _Written) -> IncrementalKeyedStateHandle | None:
        if keys is None or not written.runs:
            return None
        states = tuple(StateFiles(written.states[name], tuple(runs)) for name, runs in written.runs.items())
        parts = [part for files in states for run in files.runs for part in run]
        return IncrementalKeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=written.owned,
            checkpoint_id=self._checkpoint_id,
            shared=tuple((part.path, part.handle) for part in parts),
            meta=self._write_meta(SnapshotMeta(keys, self._new, states)),
        )

    def _write_meta(self, meta: SnapshotMeta) -> StreamStateHandle | None:
        stream = self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        try:
            stream.write(encode_meta(meta))
            return stream.close_and_get_handle()
        finally:
            stream.close()

    def _open_shared(self) -> CheckpointStateOutputStream:
        return self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)


@dataclass(slots=True)
class _Written:
    """What one new subtask has by now."""

    owned: KeyGroupRange
    runs: defaultdict[str, list[Parts]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, StateSchema] = field(default_factory=dict)


class _AsWritten:
    """Leaves rows in the form in which they were written."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return rows with the columns that all rows of their run have."""
        return self._layout.conform(table, namespace=namespace, deleted=part.has_deletions)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block."""
        return part.firsts

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone."""
        return part.deletions

    def is_current(self, part: Part) -> bool:
        """Tell that rows stay as they were written."""
        return True


def _within(parts: Parts, owned: KeyGroupRange) -> Parts:
    return tuple(kept for kept in (part.within(owned) for part in parts) if kept is not None)


def _layout_of(schema: Any) -> StateLayout:
    user_key = schema.field(USER_KEY).type if USER_KEY in schema.names else None
    fields = tuple((each.name, each.type) for each in schema if each.name.startswith(KEY_PREFIX))
    return StateLayout(fields, schema.field(VALUE).type, user_key)


def _single_key(keys: list[SerializerSnapshot]) -> SerializerSnapshot | None:
    if any(key != keys[0] for key in keys):
        raise IncompatibleCheckpointError("Expected equal keys in all subtasks, found different ones.")
    return keys[0] if keys else None


def _single_state(name: str, files: list[StateFiles]) -> StateSchema:
    wanted = files[0].state
    found = [part.state for each in files for parts in each.runs for part in parts]
    if any(other != wanted for other in (*(each.state for each in files), *found)):
        raise UnsupportedStateError(
            f"Expected state {name!r} to be written with one type, found several, which only the code of the stage can bring "
            f"together; rescale a checkpoint from before its type was changed, or one after all of the state was rewritten."
        )
    return wanted
