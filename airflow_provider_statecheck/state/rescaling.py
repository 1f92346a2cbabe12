"""
Offline rescaling of a checkpoint to another maximum parallelism.

The key group of every key is recomputed. All other state is copied, so the new savepoint does not reference files of
its source.
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
    InvalidConfigurationError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.state.arrow.blocks import BlockCache
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, merge_tables
from airflow_provider_statecheck.state.arrow.layout import (
    KEY_GROUP,
    KEY_PREFIX,
    NAMESPACE,
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
from airflow_provider_statecheck.state.backends.restored_state import RestoredRows, StateRows, blocks_of
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


def rescale_max_parallelism(
    storage: CheckpointStorage, source: CheckpointDocument, *, directory: str, max_parallelism: int
) -> WrittenSavepoint:
    """
    Write a checkpoint as a savepoint with another maximum parallelism. The source is not changed.

    The metadata is written last, and a failed savepoint is deleted.

    :param storage: Storage of the checkpoint and the savepoint.
    :param source: Checkpoint or savepoint to rescale.
    :param directory: Directory of the new savepoint, without other writers.
    :param max_parallelism: New number of key groups.
    :raises InvalidConfigurationError: if the maximum parallelism is above the limit or below the parallelism of an
        operator, or for a savepoint of the whole job.
    :raises UnsupportedStateError: if only the code of the stage can interpret keys or types of the state.
    :raises CorruptStateError: if the state does not match its checksum.
    :raises CheckpointNotFoundError: if a file of the source is missing.
    :raises IncompatibleCheckpointError: if a newer version wrote the state.
    :raises StorageError: if the storage fails.
    """
    _require_one_stage(source)
    for state in source.operator_states:
        _require_rescalable(state, max_parallelism)
    rescaling = _Rescaling(storage, directory, source, max_parallelism)
    try:
        return rescaling.write()
    except BaseException:
        # Without metadata the directory is not a savepoint, so files that cannot be deleted are orphans.
        with contextlib.suppress(StorageError):
            storage.delete_directory(directory)
        raise


def _require_one_stage(source: CheckpointDocument) -> None:
    if source.is_of_several:
        uids = ", ".join(repr(state.uid) for state in source.operator_states)
        raise InvalidConfigurationError(
            f"Expected a checkpoint of one stage to rescale, found checkpoint {source.checkpoint_id} of job "
            f"{source.job_name!r}, which covers the stages {uids}; take a savepoint of the stage and rescale that."
        )


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
        """Write the savepoint."""
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
        unkeyed = {i: replace(subtask, managed_keyed=()) for i, subtask in state.subtask_states.items()}
        copied = with_streams(replace(state, max_parallelism=self._new, subtask_states=unkeyed), self._copies.of_stream)
        subtasks = {
            index: replace(copied.subtask_states.get(index, OperatorSubtaskState()), managed_keyed=handles)
            for index, handles in enumerate(self._rescaled_keyed(state))
        }
        return replace(copied, subtask_states={index: each for index, each in subtasks.items() if each.has_state})

    def _rescaled_keyed(self, state: OperatorState) -> Iterator[tuple[KeyedStateHandle, ...]]:
        handles = list(_owned_handles(state))
        ranges = key_group_ranges(state.parallelism, self._new)
        full_rescaling = FullSnapshotRescaling(self._storage, self._streams, old=state.max_parallelism, new=self._new)
        runs_rescaling = RunsRescaling(
            self._storage, self._streams, new=self._new, checkpoint_id=self._source.checkpoint_id
        )
        full = full_rescaling.rescaled([each for each in handles if isinstance(each, KeyGroupsStateHandle)], ranges)
        runs = runs_rescaling.rescaled(
            [each for each in handles if isinstance(each, IncrementalKeyedStateHandle)], ranges
        )
        for pair in zip(full, runs, strict=True):
            yield tuple(handle for handle in pair if handle is not None)


@dataclass(frozen=True, slots=True)
class _SavepointStreams:
    storage: CheckpointStorage
    directory: str
    writing: StateWriting

    def create_checkpoint_state_output_stream(self, scope: CheckpointedStateScope) -> FsCheckpointStateOutputStream:
        """Open a stream to an exclusive file, because a savepoint shares no files."""
        return FsCheckpointStateOutputStream.open(self.storage, self.directory, self.writing)


def _require_rescalable(state: OperatorState, max_parallelism: int) -> None:
    require_parallelism(state.parallelism, max_parallelism)
    if any(subtask.raw_keyed for subtask in state.subtask_states.values()):
        raise UnsupportedStateError(
            f"Expected keyed state written by a state backend, found raw keyed state of operator {state.uid!r}, which only its "
            f"own code can read; change max_parallelism there and write the state again."
        )


def _keyed_handles(state: OperatorState) -> list[KeyedStateHandle]:
    return [handle for _, subtask in sorted(state.subtask_states.items()) for handle in subtask.managed_keyed]


def _owned_handles(state: OperatorState) -> Iterator[KeyedStateHandle]:
    for index, subtask in sorted(state.subtask_states.items()):
        own = key_group_range_of(index, state.parallelism, state.max_parallelism)
        for handle in subtask.managed_keyed:
            owned = intersection_of(handle, own)
            # After a change of parallelism, a handle may also name key groups that another subtask has updated since.
            if isinstance(owned, IncrementalKeyedStateHandle):
                yield replace(owned, key_group_range=owned.key_group_range.intersection(own))
            elif owned is not None:
                yield owned


class FullSnapshotRescaling:
    """
    Rescaling of full snapshots. The snapshots of all subtasks are read into memory.

    :param storage: Storage of the source.
    :param streams: Factory of the streams of the new savepoint.
    :param old: Old number of key groups.
    :param new: New number of key groups.
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
        Write the state of the handles with new key groups.

        :return: One handle for each range; ``None`` for a range without state.
        :raises CorruptStateError: if the state does not match its checksum.
        :raises IncompatibleCheckpointError: if a newer version wrote the state, or the subtasks have different key
            types.
        :raises StorageError: if the storage fails.
        """
        keys, states = self._read(handles)
        regrouped = [self._regrouped(rows) for rows in states]
        for key_group_range in ranges:
            states_of_range = [
                part for rows, groups, batch in regrouped for part in _rows_within(rows, groups, batch, key_group_range)
            ]
            yield self._write(keys, key_group_range, states_of_range)

    def _read(self, handles: Sequence[KeyGroupsStateHandle]) -> tuple[SerializerSnapshot | None, list[StateRows]]:
        reader = FullSnapshotReader(
            lambda stream: open_input_stream(self._storage, stream), self._old, KeyGroupRange(0, self._old - 1)
        )
        found = [read for read in map(reader.read, handles) if read is not None]
        keys = {repr(header.schemas.key): header.schemas.key for header, _ in found}
        if len(keys) > 1:
            raise IncompatibleCheckpointError(
                f"Expected the same key type in all subtasks, found {' and '.join(keys)}; rescale a checkpoint taken by the "
                f"current stage."
            )
        return next(iter(keys.values()), None), [rows for _, states in found for rows in states if rows.blocks]

    def _regrouped(self, rows: StateRows) -> tuple[StateRows, Any, Any]:
        import numpy as np
        import pyarrow as pa

        batch = pa.concat_batches([each for _, each in rows.blocks])
        key_count = rows.arrow_schema.get_field_index(NAMESPACE)
        columns = [
            normalized_column(field.name, field.type, batch[field.name]) for field in list(batch.schema)[:key_count]
        ]
        groups = key_groups(columns, self._new)
        order = np.argsort(groups, kind="stable")
        return rows, groups[order], batch.take(pa.array(order))

    def _write(
        self, keys: SerializerSnapshot | None, key_group_range: KeyGroupRange, states: list[StateRows]
    ) -> KeyedStateHandle | None:
        if keys is None:
            return None
        snapshot = FullSnapshot(
            key=keys,
            number_of_key_groups=self._new,
            key_group_range=key_group_range,
            states=[RestoredRows(state) for state in states],
            open_stream=lambda: self._streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE),
            discard=lambda handle: discard_state(self._storage, handle),
        )
        return snapshot.run().handle


def _rows_within(rows: StateRows, groups: Any, batch: Any, owned: KeyGroupRange) -> Iterator[StateRows]:
    import numpy as np
    import pyarrow as pa

    start, end = np.searchsorted(groups, [owned.start, owned.end + 1])
    if start < end:
        blocks = tuple(blocks_of(pa.array(groups[start:end]), batch.slice(start, end - start)))
        yield StateRows(rows.schema, rows.arrow_schema, blocks)


_DEFAULT_BYTES_AT_ONCE = 256 << 20


class RunsRescaling:
    """
    Rescaling of sorted runs. Each run is read once.

    :param storage: Storage of the source.
    :param streams: Factory of the streams of the new savepoint.
    :param new: New number of key groups.
    :param checkpoint_id: Checkpoint id in the new handles.
    :param bytes_at_once: Approximate size of the rows in memory before they are written, in bytes.
    """

    def __init__(
        self,
        storage: CheckpointStorage,
        streams: CheckpointStreamFactory,
        *,
        new: int,
        checkpoint_id: int,
        bytes_at_once: int = _DEFAULT_BYTES_AT_ONCE,
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
        Write the state of the handles with new key groups.

        :return: One handle for each range; ``None`` for a range without state.
        :raises CorruptStateError: if the state does not match its checksum.
        :raises IncompatibleCheckpointError: if a newer version wrote the state, or the subtasks have different key
            types.
        :raises UnsupportedStateError: if the rows of one state have different types.
        :raises StorageError: if the storage fails.
        """
        metas = [self._read_meta(handle) for handle in handles]
        keys = _require_single_key([meta.key for meta in metas])
        written = [_SubtaskRuns(key_group_range) for key_group_range in ranges]
        for name in dict.fromkeys(files.state.name for meta in metas for files in meta.states):
            self._rescale_state(name, zip(handles, metas, strict=True), written)
        return [self._handle(keys, each) for each in written]

    def _rescale_state(
        self,
        name: str,
        sources: Iterator[tuple[IncrementalKeyedStateHandle, SnapshotMeta]],
        written: list[_SubtaskRuns],
    ) -> None:
        files_of_state = [
            (files, handle.key_group_range)
            for handle, meta in sources
            for files in meta.states
            if files.state.name == name
        ]
        state = _require_single_schema(name, [files for files, _ in files_of_state])
        pending, size = [], 0
        for files, owned in files_of_state:
            for table in self._rows(files, owned):
                pending.append(self._regrouped(table))
                size += table.nbytes
                if size >= self._bytes_at_once:
                    self._write_rows(state, pending, written)
                    pending, size = [], 0
        self._write_rows(state, pending, written)

    def _read_meta(self, handle: IncrementalKeyedStateHandle) -> SnapshotMeta:
        if handle.backend_id != BACKEND_ID:
            raise IncompatibleCheckpointError(
                f"Expected state written by the state backend {BACKEND_ID}, found state of {handle.backend_id}; restore it "
                f"with that backend instead."
            )
        source = f"checkpoint {handle.checkpoint_id}"
        if handle.meta is None:
            raise CorruptStateError(f"Expected snapshot metadata in {source}, found none; rescale another checkpoint.")
        return decode_meta(read_state(self._storage, handle.meta), dict((*handle.shared, *handle.private)), source)

    def _rows(self, files: StateFiles, owned: KeyGroupRange) -> Iterator[Any]:
        runs = [parts for parts in (_parts_within(run, owned) for run in files.runs) if parts]
        if not runs:
            return
        layout = _layout_of(runs[0][0].schema)
        part_bytes = PartBytes(self._storage)
        try:
            form = _WrittenForm(layout)
            file_runs = [FileRun(parts, part_bytes, BlockCache(0), form) for parts in runs]
            yield from merge_runs(layout, file_runs, keep_deletions=False)
        finally:
            part_bytes.close()

    def _regrouped(self, table: Any) -> Any:
        import pyarrow as pa

        key_fields = [field for field in table.schema if field.name.startswith(KEY_PREFIX)]
        columns = [normalized_column(field.name, field.type, single(table.column(field.name))) for field in key_fields]
        index = table.schema.get_field_index(KEY_GROUP)
        return table.set_column(index, table.schema.field(index), pa.array(key_groups(columns, self._new)))

    def _write_rows(self, state: StateSchema, tables: list[Any], written: list[_SubtaskRuns]) -> None:
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

    def _handle(self, keys: SerializerSnapshot | None, written: _SubtaskRuns) -> IncrementalKeyedStateHandle | None:
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
class _SubtaskRuns:
    """Runs written for one new subtask."""

    owned: KeyGroupRange
    runs: defaultdict[str, list[Parts]] = field(default_factory=lambda: defaultdict(list))
    states: dict[str, StateSchema] = field(default_factory=dict)


class _WrittenForm:
    """Row form that leaves rows in the types in which they were written."""

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return the rows with the columns shared by all rows of the run."""
        return self._layout.conform(table, namespace=namespace, deleted=part.has_deletions)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block."""
        return part.firsts

    def deletions(self, part: Part) -> int:
        """Return the number of deletion marks."""
        return part.deletions

    def is_current(self, part: Part) -> bool:
        """Return ``True``: rows are never migrated."""
        return True


def _parts_within(parts: Parts, owned: KeyGroupRange) -> Parts:
    return tuple(found for found in (part.within(owned) for part in parts) if found is not None)


def _layout_of(schema: Any) -> StateLayout:
    user_key = schema.field(USER_KEY).type if USER_KEY in schema.names else None
    fields = tuple((each.name, each.type) for each in schema if each.name.startswith(KEY_PREFIX))
    return StateLayout(fields, schema.field(VALUE).type, user_key)


def _require_single_key(keys: list[SerializerSnapshot]) -> SerializerSnapshot | None:
    if any(key != keys[0] for key in keys):
        raise IncompatibleCheckpointError(
            "Expected the same key type in all subtasks, found different types; rescale a checkpoint taken by the current stage."
        )
    return keys[0] if keys else None


def _require_single_schema(name: str, files: list[StateFiles]) -> StateSchema:
    schema = files[0].state
    schemas = [part.state for each in files for parts in each.runs for part in parts]
    if any(other != schema for other in (*(each.state for each in files), *schemas)):
        raise UnsupportedStateError(
            f"Expected state {name!r} to be written with one type, found several, which only the code of the stage can "
            f"migrate; rescale a checkpoint taken before the type was changed, or after all of the state was rewritten."
        )
    return schema
