"""
Offline change of a stage's maximum parallelism.

The key group of every key is computed anew. All other state is copied as it is, so the savepoint needs nothing of its source.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from airflow_provider_statecheck.checkpoint.layout import METADATA_FILE
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.states.assignment import intersection_of
from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupsStateHandle,
    OperatorState,
    OperatorSubtaskState,
    StreamStateHandle,
    with_streams,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import (
    KeyGroupRange,
    key_group_range_of,
    key_group_ranges,
    require_parallelism,
)
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.arrow.blocks import BlockCache
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, merge_tables
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    KEY_PREFIX,
    NAMESPACE as LAYOUT_NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    single,
)
from airflow_provider_statecheck.state.arrow.part_files import Part, PartBytes, Parts, PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID
from airflow_provider_statecheck.state.arrow.runs import FileRun
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.snapshot_metadata import SnapshotMeta, StateFiles, decode_meta, encode_meta
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot, FullSnapshotReader
from airflow_provider_statecheck.state.backends.restored_state import NAMESPACE, RestoredRows, StateRows, blocks_of
from airflow_provider_statecheck.state.keys.key_columns import key_groups, normalized_column
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, encode_metadata
from airflow_provider_statecheck.storage.savepoints import StateCopies, WrittenSavepoint
from airflow_provider_statecheck.storage.views.state_files import discard_state, open_input_stream, read_state
from airflow_provider_statecheck.storage.views.state_streams import (
    CheckpointStateOutputStream,
    CheckpointStreamFactory,
    FsCheckpointStateOutputStream,
    StateWriting,
)


class FullSnapshotRescaling:
    """
    Reads the full snapshots of all subtasks into memory and writes them with new key groups.

    :param storage: From which they are read.
    :param streams: Where they are written.
    :param old: The number of key groups with which they were written.
    :param new: The number of key groups that they get.
    """

    def __init__(self, storage: CheckpointStorage, streams: CheckpointStreamFactory, *, old: int, new: int) -> None:
        self._storage = storage
        self._streams = streams
        self._old = old
        self._new = new

    def rescaled(
        self, handles: Sequence[KeyGroupsStateHandle], ranges: Sequence[KeyGroupRange]
    ) -> Iterator[KeyedStateHandle | None]:
        """
        Write the state of handles anew and return a handle for each range, ``None`` where there is no state.

        :raises CorruptStateError: if the bytes were changed.
        :raises IncompatibleCheckpointError: if they are of a newer version, or the subtasks have different keys.
        :raises StorageError: if the storage fails.
        """
        keys, states = self._read(handles)
        regrouped = [self._regrouped(rows) for rows in states]
        for key_group_range in ranges:
            parts = [
                part for rows, groups, batch in regrouped for part in _within(rows, groups, batch, key_group_range)
            ]
            yield self._write(keys, key_group_range, parts)

    def _read(self, handles: Sequence[KeyGroupsStateHandle]) -> tuple[SerializerSnapshot | None, list[StateRows]]:
        reader = FullSnapshotReader(
            lambda stream: open_input_stream(self._storage, stream), self._old, KeyGroupRange(0, self._old - 1)
        )
        found = [read for read in map(reader.read, handles) if read is not None]
        keys = {repr(header.schemas.key): header.schemas.key for header, _ in found}
        if len(keys) > 1:
            raise IncompatibleCheckpointError(f"Expected equal keys in all subtasks, found {' and '.join(keys)}.")
        return next(iter(keys.values()), None), [rows for _, states in found for rows in states if rows.blocks]

    def _regrouped(self, rows: StateRows) -> tuple[StateRows, Any, Any]:
        import numpy as np
        import pyarrow as pa

        batch = pa.concat_batches([each for _, each in rows.blocks])
        of_key = rows.arrow_schema.get_field_index(NAMESPACE)
        columns = [
            normalized_column(field.name, field.type, batch[field.name]) for field in list(batch.schema)[:of_key]
        ]
        groups = key_groups(columns, self._new)
        order = np.argsort(groups, kind="stable")
        return rows, groups[order], batch.take(pa.array(order))

    def _write(
        self, keys: SerializerSnapshot | None, key_group_range: KeyGroupRange, parts: list[StateRows]
    ) -> KeyedStateHandle | None:
        if keys is None:
            return None
        snapshot = FullSnapshot(
            key=keys,
            number_of_key_groups=self._new,
            key_group_range=key_group_range,
            states=[RestoredRows(part) for part in parts],
            open_stream=lambda: self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE),
            discard=lambda handle: discard_state(self._storage, handle),
        )
        return snapshot.run().handle


def _within(rows: StateRows, groups: Any, batch: Any, owned: KeyGroupRange) -> Iterator[StateRows]:
    import numpy as np
    import pyarrow as pa

    start, end = np.searchsorted(groups, [owned.start, owned.end + 1])
    if start < end:
        blocks = tuple(blocks_of(pa.array(groups[start:end]), batch.slice(start, end - start)))
        yield StateRows(rows.schema, rows.arrow_schema, blocks)


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
        runs = [kept for kept in (_rescaling_runs_within(parts, owned) for parts in files.runs) if kept]
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
        has_namespaces = any(LAYOUT_NAMESPACE in table.schema.names for table in tables)
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


def _rescaling_runs_within(parts: Parts, owned: KeyGroupRange) -> Parts:
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
