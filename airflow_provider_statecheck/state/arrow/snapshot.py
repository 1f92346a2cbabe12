"""
Incremental snapshot of the Arrow backend.

It writes the changes since the last completed checkpoint and references the existing files of earlier ones.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import StateCheckError, StorageError
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, runs_to_merge
from airflow_provider_statecheck.state.arrow.layout import VALUE, ArrowStateSettings, single
from airflow_provider_statecheck.state.arrow.part_files import Part, Parts, SnapshotMeta, StateFiles, encode_meta
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID
from airflow_provider_statecheck.state.arrow.runs import FileRun, SortedRun
from airflow_provider_statecheck.state.arrow.state_runs import Captured, StateRuns, schema_of
from airflow_provider_statecheck.state.backends.full_snapshot import cancelled_error
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import unexpired
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.snapshots import SnapshotResult, StateSize
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory


@dataclass(frozen=True, slots=True)
class CapturedRuns:
    """Runs of one state at the start of a snapshot."""

    state: RegisteredState
    runs: StateRuns
    captured: Captured


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotPlan:
    """Input of a snapshot."""

    checkpoint_id: int
    key: SerializerSnapshot
    number_of_key_groups: int
    key_group_range: KeyGroupRange
    states: Sequence[CapturedRuns]
    carried: Sequence[StateFiles]
    """Restored states without a descriptor; their files are referenced unchanged."""
    streams: CheckpointStreamFactory
    settings: ArrowStateSettings
    now_ms: int
    """Time of the snapshot in milliseconds; expired values need not be written."""
    discard: Callable[[StreamStateHandle], None]
    """Deletes a file."""


@dataclass(slots=True)
class _WrittenFiles:
    handles: list[StreamStateHandle] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(handle.state_size for handle in self.handles)


class ArrowSnapshot:
    """
    Writer of captured runs. It may be cancelled from another thread.

    :param plan: Input of the snapshot.
    """

    def __init__(self, plan: SnapshotPlan) -> None:
        self._plan = plan
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._is_done = False
        self._written = _WrittenFiles()
        self.files: tuple[StateFiles, ...] = ()
        """Files of each captured state, set when the snapshot is complete."""

    @property
    def plan(self) -> SnapshotPlan:
        """Return the input of the snapshot."""
        return self._plan

    def run(self) -> SnapshotResult[KeyedStateHandle]:
        """
        Write the state. Called once, possibly in another thread.

        :raises StorageError: if the storage fails; written files are deleted.
        :raises SnapshotCancelledError: if the snapshot was cancelled.
        """
        with self._deleting_on_failure():
            self._require_running()
            files = tuple(self._write_state(state) for state in self._plan.states)
            named = [state for state in (*files, *self._plan.carried) if state.runs]
            handle = self._handle(named) if named else None
            self._finish()
        self.files = files
        return SnapshotResult(handle, self._written.size, tuple(map(_size_of, named)))

    def cancel(self) -> None:
        """Stop the write and delete its files. Has no effect after the end of the write."""
        with self._lock:
            self._is_cancelled = not self._is_done

    def _write_state(self, state: CapturedRuns) -> StateFiles:
        fresh, base = state.captured.fresh, state.captured.base
        rewritten = max(_runs_to_migrate(base), self._runs_to_move(base))
        if not fresh and not rewritten:
            return StateFiles(state.runs.schema, tuple(run.parts for run in base))
        merged = runs_to_merge(
            sum(run.raw_bytes for run in fresh), sum(run.deletions for run in fresh), [_RunSize(run) for run in base]
        )
        count = max(rewritten, merged)
        parts = self._write_run(state, (*fresh, *base[:count]), keep_deletions=count < len(base))
        unmerged = tuple(run.parts for run in base[count:])
        return StateFiles(state.runs.schema, (parts, *unmerged) if parts else unmerged)

    def _runs_to_move(self, base: Sequence[FileRun]) -> int:
        """Return the number of newest runs to rewrite so that no run keeps the wasted bytes of a merged file alive."""
        may_stay = self._plan.streams.could_reuse_state_handle
        wasteful = (
            number for number, run in enumerate(base, 1) if not all(may_stay(part.handle) for part in run.parts)
        )
        return max(wasteful, default=0)

    def _write_run(self, state: CapturedRuns, merged: tuple[SortedRun, ...], *, keep_deletions: bool) -> Parts:
        runs = state.runs
        schema = schema_of(runs.layout, merged, keep_deletions=keep_deletions)
        writer = PartWriter(schema, runs.schema, self._open_shared, self._plan.settings)
        try:
            for table in merge_runs(runs.layout, merged, keep_deletions=keep_deletions):
                self._require_running()
                # An expired row is kept while an older run may hold a value that it shadows.
                writer.write(table if keep_deletions else self._unexpired(state.state, table))
            return writer.finish()
        except BaseException:
            writer.abort()
            raise
        finally:
            self._written.handles += [part.handle for part in writer.parts]

    def _unexpired(self, state: RegisteredState, table: Any) -> Any:
        if state.ttl is None:
            return table
        cells, live = unexpired(state, single(table.column(VALUE)), self._plan.now_ms)
        return table.set_column(table.schema.get_field_index(VALUE), VALUE, cells).filter(live)

    def _open_shared(self) -> CheckpointStateOutputStream:
        self._require_running()
        return self._plan.streams.create_checkpoint_state_output_stream(CheckpointedStateScope.SHARED)

    def _handle(self, files: Sequence[StateFiles]) -> IncrementalKeyedStateHandle:
        plan = self._plan
        parts: list[Part] = [part for state in files for parts in state.runs for part in parts]
        return IncrementalKeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=plan.key_group_range,
            checkpoint_id=plan.checkpoint_id,
            shared=tuple((part.path, part.handle) for part in parts),
            meta=self._write_meta(encode_meta(SnapshotMeta(plan.key, plan.number_of_key_groups, tuple(files)))),
        )

    def _write_meta(self, data: bytes) -> StreamStateHandle:
        stream = self._plan.streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
        try:
            stream.write(data)
            handle = stream.close_and_get_handle()
        except BaseException:
            stream.close()
            raise
        if handle is None:
            raise StorageError(
                "Expected a handle of the snapshot metadata, found none; the stream of the storage returned no file."
            )
        self._written.handles.append(handle)
        return handle

    @contextlib.contextmanager
    def _deleting_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for handle in self._written.handles:
                # No metadata references the files, so those that cannot be deleted are orphans.
                with contextlib.suppress(StateCheckError):
                    self._plan.discard(handle)
            if self._is_cancelled and isinstance(error, StateCheckError):
                raise cancelled_error() from error
            raise

    def _finish(self) -> None:
        with self._lock:
            self._require_running()
            self._is_done = True

    def _require_running(self) -> None:
        if self._is_cancelled:
            raise cancelled_error()


def _size_of(files: StateFiles) -> StateSize:
    parts = [part for run in files.runs for part in run]
    # Several runs may have a row of the same key, and a map has a row for each of its entries.
    is_countable = len(files.runs) == 1 and files.state.kind is not StateKind.MAP
    return StateSize(
        files.state.name,
        sum(int(part.rows.sum()) - part.deletions for part in parts) if is_countable else None,
        sum(part.handle.state_size for part in parts),
    )


def _runs_to_migrate(base: Sequence[FileRun]) -> int:
    """
    Return the number of newest runs to rewrite so that all rows have the current types and time to live.

    The next release migrates only from the types of this one, and an added or removed time to live applies once.
    """
    return max((number for number, run in enumerate(base, 1) if not run.is_current), default=0)


@dataclass(frozen=True, slots=True)
class _RunSize:
    run: FileRun

    @property
    def raw_bytes(self) -> int:
        return self.run.raw_bytes

    @property
    def deletions(self) -> int:
        return self.run.deletions

    @property
    def num_rows(self) -> int:
        return int(self.run.block_rows.sum())
