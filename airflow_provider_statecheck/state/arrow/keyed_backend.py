"""
Keyed state of the Arrow backend, in sorted files, and its snapshots.

An incremental snapshot writes the changes since the last completed checkpoint and references the existing files of
earlier ones. A full snapshot writes all state to files of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import SnapshotCancelledError, StateCheckError
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.layout import (
    USER_KEY,
    ArrowStateSettings,
    BlockCache,
    StateLayout,
    count_owners,
)
from airflow_provider_statecheck.state.arrow.merging import merge_runs
from airflow_provider_statecheck.state.arrow.restore import (
    BACKEND_ID,
    PositionForm,
    RowForm,
    StateRowForm,
    restored_files,
)
from airflow_provider_statecheck.state.arrow.run_files import (
    RunBytes,
    RunFile,
    RunFiles,
    SnapshotMeta,
    StateFiles,
    encode_meta,
)
from airflow_provider_statecheck.state.arrow.run_writer import RunWriter, handle_of
from airflow_provider_statecheck.state.arrow.runs import FileRun, Reading, SortedRun
from airflow_provider_statecheck.state.arrow.state_runs import CapturedRuns, LocalSpill, StateRuns, unexpired
from airflow_provider_statecheck.state.arrow.tables import ArrowMapTable, ArrowValueTable
from airflow_provider_statecheck.state.descriptors import StateDescriptor, StateKind
from airflow_provider_statecheck.state.keyed.abstract_backend import (
    AbstractKeyedStateBackend,
    SnapshotResult,
    StateEnvironment,
    StateSize,
    StateSnapshot,
)
from airflow_provider_statecheck.state.keyed.queryable_names import TaskKvStateRegistry
from airflow_provider_statecheck.state.keyed.registered_state import MapTable, RegisteredState, StateTable
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.state_files import discard_state
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory


class ArrowKeyedStateBackend(AbstractKeyedStateBackend):
    """
    Keyed state as sorted Arrow files on the checkpoint storage, with later changes in memory and local files.

    An incremental snapshot references the files of an earlier one only after :meth:`notify_checkpoint_complete`, or if
    the backend was restored from them. Reads and later snapshots need these files: those of a checkpoint may be deleted
    only after the backend was notified of a later one, and no snapshot captured before is still being written.

    :param restored: Handles to restore. Only the metadata of their files is read; raises also as ``restored_files``.
    :param settings: Sizes and compression; the defaults if ``None``.
    :param incremental: Whether snapshots reference the files of earlier ones.
    :param streams: Streams of the state in snapshots; those of the checkpoint if ``None``.
    :param kv_registry: Registry of the queryable names of states.
    :raises InvalidConfigurationError: if the range exceeds the number of key groups.
    """

    def __init__(
        self,
        environment: StateEnvironment,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        restored: Sequence[KeyedStateHandle] = (),
        *,
        settings: ArrowStateSettings | None = None,
        incremental: bool = True,
        streams: CheckpointStreamFactory | None = None,
        kv_registry: TaskKvStateRegistry | None = None,
    ) -> None:
        super().__init__(environment, key_serializer, number_of_key_groups, key_group_range, kv_registry)
        self._storage = environment.storage
        self._settings = settings or ArrowStateSettings()
        self._spill = LocalSpill()
        files = RunBytes(self._storage.allowing_own(self._spill.uri))
        self._reading = Reading(files, BlockCache(self._settings.cache_bytes), self._settings)
        self._snapshots: WeakSet[ArrowSnapshot] = WeakSet()
        self._unconfirmed: dict[int, ArrowSnapshot] = {}
        # This subtask writes a state without files in the format of the others, because one may later restore the files
        # of all.
        known = () if environment.schemas is None else environment.schemas.keyed
        found = restored_files(restored, self._storage, key_serializer, number_of_key_groups, key_group_range)
        self._carried = {state.name: StateFiles(state, ()) for state in known} | found
        self._exclusive = frozenset(stream for handle in restored for _, stream in handle.private)
        self._incremental = incremental
        self._streams = streams

    def advance_to(self, key_group: int) -> None:
        for table in self._tables.values():
            table.advance_to(key_group)

    def prefetch(self, keys: KeyBatch) -> None:
        key_list = self.key_serializer.from_columns(keys.columns)
        for table in self._tables.values():
            table.prefetch(keys, key_list)

    def num_entries(self) -> int:
        carried = (count_owners(self._positions_of(files)) for files in self._carried.values())
        own: Iterator[int] = (table.num_entries() for table in self._tables.values())
        return sum(own) + sum(carried)

    @override
    def scan(self, descriptor: StateDescriptor[Any]) -> Iterator[tuple[KeyBatch, Any]]:
        self.batch_state(descriptor)
        table = self._tables[descriptor.name]
        # The values of a state with a time to live are read one by one, because some have expired.
        yield from super().scan(descriptor) if table.runs.state.ttl else table.batches()

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> ArrowSnapshot:
        for table in self._tables.values():
            table.seal()
        snapshot = ArrowSnapshot(
            checkpoint_id=checkpoint_id,
            key=self.key_serializer.snapshot(),
            number_of_key_groups=self.number_of_key_groups,
            key_group_range=self.key_group_range,
            states=[table.runs.capture() for table in self._tables.values()],
            carried=tuple(self._carried.values()),
            is_incremental=self._incremental,
            exclusive=self._exclusive,
            streams=self._streams or streams,
            storage=self._storage,
            reading=self._reading,
            now_ms=self._now_ms(),
        )
        self._snapshots.add(snapshot)
        self._unconfirmed[checkpoint_id] = snapshot
        return snapshot

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Use the files of a completed checkpoint as the base of later snapshots."""
        snapshot = self._unconfirmed.get(checkpoint_id)
        self._unconfirmed = {n: s for n, s in self._unconfirmed.items() if n > checkpoint_id}
        if snapshot is not None:
            for captured, files in zip(snapshot.states, snapshot.files, strict=False):
                captured.state.confirm(captured, files.runs)
            for before, after in zip(snapshot.carried, snapshot.carried_files, strict=False):
                name = before.state.name
                if self._carried.get(name) is before:
                    self._carried[name] = after
                elif name in self._tables:
                    self._tables[name].runs.move(before.runs, after.runs)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Forget the files of an aborted checkpoint; later snapshots write their rows again."""
        self._unconfirmed.pop(checkpoint_id, None)

    def dispose(self) -> None:
        for snapshot in list(self._snapshots):
            snapshot.cancel()
        self._unconfirmed.clear()
        self._carried.clear()
        self._reading.cache.clear()
        self._reading.files.close()
        self._spill.close()
        super().dispose()

    def _unclaimed(self) -> dict[str, StateSchema]:
        return {name: files.state for name, files in self._carried.items()}

    def _create_table(self, state: RegisteredState) -> StateTable | MapTable:
        user_keys = None if state.key_serializer is None else state.key_serializer.arrow_type
        layout = StateLayout.of(self.key_serializer, state.cell_type, user_keys, state.combination)
        restored = self._carried.get(state.name) or StateFiles(state.schema(), ())
        form = StateRowForm(state, restored.state, layout, self._now_ms())
        for run_file in chain.from_iterable(restored.runs):
            form.migration(run_file.state)
        runs = StateRuns(form, self._reading, restored.runs)
        runs.require_order()
        self._carried.pop(state.name, None)
        table = ArrowMapTable if state.is_map else ArrowValueTable
        return table(self.key_serializer, runs, self._memory_budget, self._spill_if_full)

    def _positions_of(self, files: StateFiles) -> Iterator[Any]:
        """Return the rows of a state without values, in the types in which they were written."""
        run_files = [run_file for run in files.runs for run_file in run]
        user_keys = run_files[0].schema.field(USER_KEY).type if run_files and files.state.key is not None else None
        form = PositionForm(self.key_serializer, user_keys)
        runs = [FileRun(run, self._reading, form) for run in files.runs]
        return merge_runs(form.layout, runs, keep_deletions=False)

    def _memory_budget(self) -> int:
        return self._settings.memtable_bytes // (2 * max(1, len(self._tables)))

    def _spill_if_full(self) -> None:
        sizes = {table.runs: table.runs.memory_bytes for table in self._tables.values()}
        if sum(sizes.values()) > self._settings.memtable_bytes // 2:
            max(sizes, key=sizes.__getitem__).spill(self._spill.open_stream)


@dataclass(kw_only=True, eq=False)
class ArrowSnapshot(StateSnapshot[KeyedStateHandle]):
    """Writer of captured runs. It may be cancelled from another thread."""

    checkpoint_id: int
    key: SerializerSnapshot
    number_of_key_groups: int
    key_group_range: KeyGroupRange
    states: Sequence[CapturedRuns]
    carried: Sequence[StateFiles]
    """Restored states without a descriptor, which are written as they are."""
    is_incremental: bool
    """Whether files of earlier snapshots are referenced."""
    exclusive: frozenset[StreamStateHandle]
    """Restored files that are deleted with their checkpoint, so that no other one may reference them."""
    streams: CheckpointStreamFactory
    storage: CheckpointStorage
    reading: Reading
    now_ms: int
    """Time of the snapshot in milliseconds; expired values need not be written."""
    files: tuple[StateFiles, ...] = ()
    """Files of each captured state, set when the snapshot is complete."""
    carried_files: tuple[StateFiles, ...] = ()
    """Files of each state without a descriptor, set when the snapshot is complete."""
    _written: list[StreamStateHandle] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _is_cancelled: bool = False
    _is_done: bool = False

    @override
    def run(self) -> SnapshotResult[KeyedStateHandle]:
        with self._deleting_on_failure():
            self._require_running()
            files = tuple(self._write_state(state) for state in self.states)
            carried = tuple(map(self._stayed_or_copied, self.carried))
            named = [state for state in (*files, *carried) if state.runs]
            handle = self._handle(named) if named else None
            with self._lock:
                self._require_running()
                self._is_done = True
        self.files, self.carried_files = files, carried
        new_bytes = sum(written.state_size for written in self._written)
        return SnapshotResult(handle, new_bytes, tuple(map(_size_of, named)))

    @override
    def cancel(self) -> None:
        with self._lock:
            self._is_cancelled = not self._is_done

    def _write_state(self, captured: CapturedRuns) -> StateFiles:
        state, fresh, base = captured.state, captured.fresh, captured.base
        count = max(self._runs_to_rewrite(base), captured.count_to_merge)
        if not fresh and not count:
            return StateFiles(state.schema, tuple(run.run_files for run in base))
        run_files = self._write_run(state, (*fresh, *base[:count]), keep_deletions=count < len(base))
        unmerged = tuple(run.run_files for run in base[count:])
        return StateFiles(state.schema, (run_files, *unmerged) if run_files else unmerged)

    def _runs_to_rewrite(self, base: Sequence[FileRun]) -> int:
        """Return the number of newest runs to rewrite so that all rows are current, and all files may stay."""
        # The next release migrates only from the types of this one, and an added or removed time to live applies once.
        stay = (run.is_current and all(map(self._may_stay, run.run_files)) for run in base)
        return max((number for number, stays in enumerate(stay, 1) if not stays), default=0)

    def _may_stay(self, run_file: RunFile) -> bool:
        """
        Return whether the snapshot may reference a file, which also keeps the unused bytes of a merged file alive.
        """
        is_shared = self.is_incremental and run_file.handle not in self.exclusive
        return is_shared and self.streams.could_reuse_state_handle(run_file.handle)

    def _stayed_or_copied(self, files: StateFiles) -> StateFiles:
        runs = (
            [(run_file,) if self._may_stay(run_file) else self._copied(run_file) for run_file in run_files]
            for run_files in files.runs
        )
        return StateFiles(files.state, tuple(tuple(chain.from_iterable(run_files)) for run_files in runs))

    def _copied(self, run_file: RunFile) -> RunFiles:
        run = FileRun((run_file,), Reading(self.reading.files), RowForm())
        writer = RunWriter(run_file.schema, run_file.state, self._open, self.reading.settings)
        return self._written_by(writer, run.all_tables())

    def _write_run(self, state: StateRuns, merged: tuple[SortedRun, ...], *, keep_deletions: bool) -> RunFiles:
        writer = state.writer(merged, self._open, keep_deletions=keep_deletions)
        tables = merge_runs(state.layout, merged, keep_deletions=keep_deletions)
        # An expired row is kept while an older run may hold a value that it shadows.
        kept = tables if keep_deletions else (unexpired(state.state, table, self.now_ms) for table in tables)
        return self._written_by(writer, kept)

    def _written_by(self, writer: RunWriter, tables: Iterable[Any]) -> RunFiles:
        try:
            return writer.write_all(self._while_running(tables))
        finally:
            self._written += [run_file.handle for run_file in writer.run_files]

    def _while_running(self, tables: Iterable[Any]) -> Iterator[Any]:
        for table in tables:
            self._require_running()
            yield table

    def _open(self) -> CheckpointStateOutputStream:
        self._require_running()
        scope = CheckpointedStateScope.SHARED if self.is_incremental else CheckpointedStateScope.EXCLUSIVE
        return self.streams.create_checkpoint_state_output_stream(scope)

    def _handle(self, files: Sequence[StateFiles]) -> KeyedStateHandle:
        named = tuple(
            (run_file.path, run_file.handle) for state in files for run_files in state.runs for run_file in run_files
        )
        return KeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=self.key_group_range,
            checkpoint_id=self.checkpoint_id,
            shared=named if self.is_incremental else (),
            private=() if self.is_incremental else named,
            meta=self._write_meta(encode_meta(SnapshotMeta(self.key, self.number_of_key_groups, tuple(files)))),
        )

    def _write_meta(self, data: bytes) -> StreamStateHandle:
        scope = CheckpointedStateScope.EXCLUSIVE
        with contextlib.closing(self.streams.create_checkpoint_state_output_stream(scope)) as stream:
            stream.write(data)
            self._written.append(handle_of(stream))
        return self._written[-1]

    @contextlib.contextmanager
    def _deleting_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for handle in self._written:
                # No metadata references the files, so those that cannot be deleted are orphans.
                with contextlib.suppress(StateCheckError):
                    discard_state(self.storage, handle)
            if self._is_cancelled and isinstance(error, StateCheckError):
                raise _cancelled_error() from error
            raise

    def _require_running(self) -> None:
        if self._is_cancelled:
            raise _cancelled_error()


def _cancelled_error() -> SnapshotCancelledError:
    return SnapshotCancelledError(
        "Expected a running snapshot, found a cancelled one; its files are deleted, and the next checkpoint writes "
        "the state."
    )


def _size_of(files: StateFiles) -> StateSize:
    run_files = [run_file for run in files.runs for run_file in run]
    # Several runs may have a row of the same key, and a map has a row for each of its entries.
    is_countable = len(files.runs) == 1 and files.state.kind is not StateKind.MAP
    return StateSize(
        files.state.name,
        sum(int(run_file.blocks["rows"].sum()) - run_file.deletions for run_file in run_files)
        if is_countable
        else None,
        sum(run_file.handle.state_size for run_file in run_files),
    )
