"""
Snapshot of the Arrow backend.

An incremental snapshot writes the changes since the last completed checkpoint and references the existing files of earlier
ones. A full snapshot writes all state to files of its own.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupRange,
    StreamStateHandle,
)
from airflow_provider_statecheck.exceptions import SnapshotCancelledError, StateCheckError, StorageError
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, runs_to_merge
from airflow_provider_statecheck.state.arrow.layout import VALUE, BlockCache, single
from airflow_provider_statecheck.state.arrow.part_files import Part, Parts, SnapshotMeta, StateFiles, encode_meta
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import BACKEND_ID, RowForm
from airflow_provider_statecheck.state.arrow.runs import FileRun, SortedRun
from airflow_provider_statecheck.state.arrow.state_runs import Captured, Reading, StateRuns, schema_of
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import unexpired
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.serializers.serializer import SerializerSnapshot
from airflow_provider_statecheck.state.snapshots import SnapshotResult, StateSize
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream, CheckpointStreamFactory

_COPIED_AT_ONCE = 8 << 20


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
    """Restored states without a descriptor, which are written as they are."""
    is_incremental: bool
    """Whether files of earlier snapshots are referenced."""
    exclusive: frozenset[StreamStateHandle]
    """Restored files that are deleted with their checkpoint, so that no other one may reference them."""
    streams: CheckpointStreamFactory
    reading: Reading
    now_ms: int
    """Time of the snapshot in milliseconds; expired values need not be written."""
    discard: Callable[[StreamStateHandle], None]
    """Deletes a file."""


class ArrowSnapshot:
    """
    Writer of captured runs. It may be cancelled from another thread.

    :param plan: Input of the snapshot.
    """

    def __init__(self, plan: SnapshotPlan) -> None:
        self.plan = plan
        self._lock = threading.Lock()
        self._is_cancelled = False
        self._is_done = False
        self._written: list[StreamStateHandle] = []
        self.files: tuple[StateFiles, ...] = ()
        """Files of each captured state, set when the snapshot is complete."""
        self.carried: tuple[StateFiles, ...] = ()
        """Files of each state without a descriptor, set when the snapshot is complete."""

    def run(self) -> SnapshotResult[KeyedStateHandle]:
        """
        Write the state. Called once, possibly in another thread.

        :raises StorageError: if the storage fails; written files are deleted.
        :raises SnapshotCancelledError: if the snapshot was cancelled.
        """
        with self._deleting_on_failure():
            self._require_running()
            files = tuple(self._write_state(state) for state in self.plan.states)
            carried = tuple(self._carried(state) for state in self.plan.carried)
            named = [state for state in (*files, *carried) if state.runs]
            handle = self._handle(named) if named else None
            self._finish()
        self.files, self.carried = files, carried
        new_bytes = sum(written.state_size for written in self._written)
        return SnapshotResult(handle, new_bytes, tuple(map(_size_of, named)))

    def cancel(self) -> None:
        """Stop the write and delete its files. Has no effect after the end of the write."""
        with self._lock:
            self._is_cancelled = not self._is_done

    def _write_state(self, state: CapturedRuns) -> StateFiles:
        fresh, base = state.captured.fresh, state.captured.base
        rewritten = max(_runs_to_migrate(base), self._runs_to_move(base))
        if not fresh and not rewritten:
            return StateFiles(state.runs.schema, tuple(run.parts for run in base))
        merged = runs_to_merge(sum(run.raw_bytes for run in fresh), sum(run.deletions for run in fresh), base)
        count = max(rewritten, merged)
        parts = self._write_run(state, (*fresh, *base[:count]), keep_deletions=count < len(base))
        unmerged = tuple(run.parts for run in base[count:])
        return StateFiles(state.runs.schema, (parts, *unmerged) if parts else unmerged)

    def _runs_to_move(self, base: Sequence[FileRun]) -> int:
        """Return the number of newest runs to rewrite so that no run needs a file that may not stay."""
        moving = (number for number, run in enumerate(base, 1) if not all(map(self._may_stay, run.parts)))
        return max(moving, default=0)

    def _may_stay(self, part: Part) -> bool:
        """Return whether the snapshot may reference a file, which also keeps the unused bytes of a merged file alive."""
        plan = self.plan
        is_shared = plan.is_incremental and part.handle not in plan.exclusive
        return is_shared and plan.streams.could_reuse_state_handle(part.handle)

    def _carried(self, files: StateFiles) -> StateFiles:
        return StateFiles(files.state, tuple(tuple(self._stayed_or_copied(parts)) for parts in files.runs))

    def _stayed_or_copied(self, parts: Parts) -> Iterator[Part]:
        for part in parts:
            yield from (part,) if self._may_stay(part) else self._copied(part)

    def _copied(self, part: Part) -> Parts:
        reading = self.plan.reading
        run = FileRun((part,), reading.files, BlockCache(0), RowForm())
        tables = (table for blocks in _read_together(part) for table in run.tables(blocks))
        return self._written_by(PartWriter(part.schema, part.state, self._open, reading.settings), tables)

    def _write_run(self, state: CapturedRuns, merged: tuple[SortedRun, ...], *, keep_deletions: bool) -> Parts:
        runs = state.runs
        schema = schema_of(runs.layout, merged, keep_deletions=keep_deletions)
        writer = PartWriter(schema, runs.schema, self._open, self.plan.reading.settings)
        tables = merge_runs(runs.layout, merged, keep_deletions=keep_deletions)
        # An expired row is kept while an older run may hold a value that it shadows.
        kept = tables if keep_deletions else (self._unexpired(state.state, table) for table in tables)
        return self._written_by(writer, kept)

    def _written_by(self, writer: PartWriter, tables: Iterable[Any]) -> Parts:
        try:
            return writer.write_all(self._while_running(tables))
        finally:
            self._written += [part.handle for part in writer.parts]

    def _while_running(self, tables: Iterable[Any]) -> Iterator[Any]:
        for table in tables:
            self._require_running()
            yield table

    def _unexpired(self, state: RegisteredState, table: Any) -> Any:
        if state.ttl is None:
            return table
        cells, live = unexpired(state, single(table.column(VALUE)), self.plan.now_ms)
        return table.set_column(table.schema.get_field_index(VALUE), VALUE, cells).filter(live)

    def _open(self) -> CheckpointStateOutputStream:
        self._require_running()
        scope = CheckpointedStateScope.SHARED if self.plan.is_incremental else CheckpointedStateScope.EXCLUSIVE
        return self.plan.streams.create_checkpoint_state_output_stream(scope)

    def _handle(self, files: Sequence[StateFiles]) -> KeyedStateHandle:
        plan = self.plan
        named = tuple((part.path, part.handle) for state in files for parts in state.runs for part in parts)
        return KeyedStateHandle(
            backend_id=BACKEND_ID,
            key_group_range=plan.key_group_range,
            checkpoint_id=plan.checkpoint_id,
            shared=named if plan.is_incremental else (),
            private=() if plan.is_incremental else named,
            meta=self._write_meta(encode_meta(SnapshotMeta(plan.key, plan.number_of_key_groups, tuple(files)))),
        )

    def _write_meta(self, data: bytes) -> StreamStateHandle:
        stream = self.plan.streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
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
        self._written.append(handle)
        return handle

    @contextlib.contextmanager
    def _deleting_on_failure(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            for handle in self._written:
                # No metadata references the files, so those that cannot be deleted are orphans.
                with contextlib.suppress(StateCheckError):
                    self.plan.discard(handle)
            if self._is_cancelled and isinstance(error, StateCheckError):
                raise _cancelled_error() from error
            raise

    def _finish(self) -> None:
        with self._lock:
            self._require_running()
            self._is_done = True

    def _require_running(self) -> None:
        if self._is_cancelled:
            raise _cancelled_error()


def _read_together(part: Part) -> Iterator[list[int]]:
    """Return the numbers of the blocks of a part, in lists of about ``_COPIED_AT_ONCE`` bytes."""
    import numpy as np

    ends = np.cumsum(part.lengths) // _COPIED_AT_ONCE
    for _, blocks in groupby(range(len(ends)), key=lambda block: int(ends[block])):
        yield list(blocks)


def _cancelled_error() -> SnapshotCancelledError:
    return SnapshotCancelledError(
        "Expected a running snapshot, found a cancelled one; its files are deleted, and the next checkpoint writes the state."
    )


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
