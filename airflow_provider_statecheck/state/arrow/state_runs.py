"""Runs of one state, in memory and spilled to disk, and the policy by which they are merged."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    PARTIAL,
    VALUE,
    order_codes,
    position_columns,
    position_names,
    single,
)
from airflow_provider_statecheck.state.arrow.merging import merge_runs
from airflow_provider_statecheck.state.arrow.restore import StateRowForm
from airflow_provider_statecheck.state.arrow.row_versions import merge_tables
from airflow_provider_statecheck.state.arrow.run_files import RunFiles
from airflow_provider_statecheck.state.arrow.run_writer import RunWriter
from airflow_provider_statecheck.state.arrow.runs import FileRun, MatchedRows, MemoryRun, Reading, SortedRun, find_rows
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE, RegisteredState, lists_with
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.storage.failures import local_failures
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

OpenStream = Callable[[], CheckpointStateOutputStream]
_KEY_INDEX = "of_key"
_SIZE_RATIO = 1.0
MOST_PARTIAL_RUNS = 8
"""Number of runs with partial rows of a key group, above which snapshots merge some of them."""
_MAX_SPACE_AMPLIFICATION = 2.0


@dataclass(frozen=True, slots=True)
class CapturedRuns:
    """Runs of a state at the start of a snapshot."""

    state: StateRuns
    fresh: tuple[SortedRun, ...]
    base: tuple[FileRun, ...]
    until: int
    """Number of runs of changes added up to that moment."""

    @property
    def count_to_merge(self) -> int:
        """The number of newest runs of the base that a snapshot merges with the changes."""
        new_bytes = sum(run.raw_bytes for run in self.fresh)
        if any(run.partials for run in (*self.fresh, *self.base)):
            return partial_runs_to_merge(new_bytes, self.base)
        return runs_to_merge(new_bytes, sum(run.deletions for run in self.fresh), self.base) if self.fresh else 0


class StateRuns:
    """
    Runs of a state, newest first. Runs are immutable and only replaced.

    :param form: Types of new rows, and conversion of restored ones to them.
    """

    def __init__(self, form: StateRowForm, reading: Reading, base: tuple[RunFiles, ...] = ()) -> None:
        self.state = form.state
        self.schema = form.schema
        self.layout = form.layout
        self._form = form
        self._reading = reading
        self.base = tuple(self.file_run(run_files) for run_files in base)
        self.fresh: tuple[SortedRun, ...] = ()
        self._sealed = 0
        self._confirmed = 0

    @property
    def all(self) -> tuple[SortedRun, ...]:
        """All runs, newest first."""
        return (*self.fresh, *self.base)

    @property
    def memory_bytes(self) -> int:
        """The size of the changes in memory, in bytes."""
        return sum(run.raw_bytes for run in self.fresh if isinstance(run, MemoryRun))

    def file_run(self, run_files: RunFiles) -> FileRun:
        """Return a run in files."""
        return FileRun(run_files, self._reading, self._form)

    def rows(self) -> Iterator[Any]:
        """Return the current rows as sorted tables. Later changes are not visible."""
        return map(self._complete, merge_runs(self.layout, self.all, keep_deletions=False))

    def _complete(self, table: Any) -> Any:
        return self.layout.conform(table, namespace=NAMESPACE in table.schema.names, deleted=False, partial=False)

    def require_order(self) -> None:
        """
        Require the rows of the base to be in order. Reads the runs whose user keys are migrated.

        :raises StateMigrationError: if migrated user keys are equal or in another order.
        """
        for run in self.base:
            if any(map(self._form.migrates_keys, run.run_files)) and not _is_ascending(run.all_tables()):
                raise StateMigrationError(
                    f"Expected the migrated keys of the map state {self.state.name} to be distinct and in their old "
                    "order, found another order; use another name for the new state, and copy the entries in the "
                    "function."
                )

    def add(self, table: Any) -> None:
        """Add sorted rows, which are newer than all existing ones."""
        if table.num_rows == 0:
            return
        newest = self.fresh[0] if len(self.fresh) > self._sealed else None
        if isinstance(newest, MemoryRun) and _follows(newest, table.column(KEY_GROUP)[0].as_py()):
            self.fresh = (self._memory_run([*newest.tables_in_order, table]), *self.fresh[1:])
            return
        self.fresh = (MemoryRun([table]), *self.fresh)
        self._merge_small()

    def capture(self) -> CapturedRuns:
        """Capture the runs for a snapshot. Later rows are added to other runs."""
        self._sealed = len(self.fresh)
        return CapturedRuns(self, self.fresh, self.base, self._confirmed + len(self.fresh))

    def confirm(self, captured: CapturedRuns, runs: tuple[RunFiles, ...]) -> None:
        """Replace the base and the captured changes by the runs of a completed snapshot."""
        count = captured.until - self._confirmed
        if count < 0:
            return
        self.base = tuple(self.file_run(run_files) for run_files in runs)
        self.fresh = self.fresh[: len(self.fresh) - count]
        self._confirmed += count
        self._sealed = max(0, self._sealed - count)

    def move(self, before: tuple[RunFiles, ...], after: tuple[RunFiles, ...]) -> None:
        """Replace restored runs, if they are still the base, by copies with the same rows."""
        if len(before) == len(self.base) and all(
            run.run_files is run_files for run, run_files in zip(self.base, before, strict=True)
        ):
            self.base = tuple(self.file_run(run_files) for run_files in after)

    def spill(self, open_stream: OpenStream) -> None:
        """
        Move changes from memory to local files.

        :raises StorageError: if the local disk is full or read-only.
        """
        unsealed = self.fresh[: len(self.fresh) - self._sealed]
        count = next((i for i, run in enumerate(unsealed) if not isinstance(run, MemoryRun)), len(unsealed))
        if count:
            spilled, older = self._spill_run(self.fresh[:count], open_stream), self.fresh[count : len(unsealed)]
            if older and isinstance(older[0], FileRun) and _follows(older[0], int(spilled.block_key_groups[0])):
                spilled, count = self.file_run((*older[0].run_files, *spilled.run_files)), count + 1
            self.fresh = (spilled, *self.fresh[count:])
        # Captured runs are not merged, because snapshots count them.
        spilled_runs = (
            self._spill_run((run,), open_stream) if isinstance(run, MemoryRun) else run for run in self.fresh
        )
        self.fresh = tuple(spilled_runs)

    def _memory_run(self, tables: Sequence[Any]) -> MemoryRun:
        # Sort keys of a run are comparable only if all or none have a namespace.
        namespace = any(NAMESPACE in table.schema.names for table in tables)
        conform = self.layout.conform
        return MemoryRun([conform(t, namespace=namespace, deleted=DELETED in t.schema.names) for t in tables])

    def _merge_small(self) -> None:
        """Merge the newest runs in memory while their sizes are similar, which keeps their number small."""
        while len(self.fresh) - self._sealed >= 2:
            newest, older = self.fresh[:2]
            if not isinstance(older, MemoryRun) or older.raw_bytes > 2 * newest.raw_bytes:
                return
            merged = merge_runs(self.layout, (newest, older), keep_deletions=True)
            self.fresh = (MemoryRun(list(merged)), *self.fresh[2:])

    def writer(self, runs: Sequence[SortedRun], open_stream: OpenStream, *, keep_deletions: bool) -> RunWriter:
        """Return a writer of the rows of merged runs."""
        deleted = keep_deletions and any(run.deletions for run in runs)
        namespace, partial = any(run.has_namespaces for run in runs), any(run.partials for run in runs)
        schema = self.layout.schema(namespace=namespace, deleted=deleted, partial=partial)
        return RunWriter(schema, self.schema, open_stream, self._reading.settings)

    def _spill_run(self, runs: Sequence[SortedRun], open_stream: OpenStream) -> FileRun:
        writer = self.writer(runs, open_stream, keep_deletions=True)
        return self.file_run(writer.write_all(merge_runs(self.layout, runs, keep_deletions=True)))


def _follows(run: SortedRun, key_group: int) -> bool:
    return int(run.block_last_key_groups[-1]) < key_group


def _is_ascending(tables: Iterable[Any]) -> bool:
    last: list[Any] = []
    for table in tables:
        positions = table.select(position_names(table.schema.names))
        codes = order_codes(position_columns(pa.concat_tables([*last, positions])))
        if (codes[1:] <= codes[:-1]).any():
            return False
        last = [positions.slice(positions.num_rows - 1)]
    return True


def live_values(runs: StateRuns, keys: KeyBatch) -> Iterator[MatchedRows]:
    """Return the live rows of the keys without a namespace, of a state with one row per key."""
    if any(run.partials for run in runs.all):
        yield from live_entries(runs, keys)
        return
    indexes = np.arange(len(keys))
    for run in runs.all:
        missing = np.ones(len(indexes), bool)
        for rows_of_chunk in find_rows(runs.layout, run, keys):
            found = _in_void_namespace(rows_of_chunk)
            missing[found.keys] = False
            yield _live(MatchedRows(found.rows, indexes[found.keys]))
        indexes = indexes[missing]
        if not len(indexes):
            return
        if not missing.all():
            keys = keys.take(pa.array(np.flatnonzero(missing)))


def live_entries(runs: StateRuns, keys: KeyBatch) -> Iterator[MatchedRows]:
    """Return the live rows of the keys without a namespace, of a map or of a state with partial rows."""
    results = [_in_void_namespace(found) for run in runs.all for found in find_rows(runs.layout, run, keys)]
    if not results:
        return
    deleted, partial = (any(name in found.rows.schema.names for found in results) for name in (DELETED, PARTIAL))
    tables = [
        runs.layout.conform(found.rows, namespace=False, deleted=deleted, partial=partial).append_column(
            _KEY_INDEX, pa.array(found.keys)
        )
        for found in results
    ]
    merged = merge_tables(runs.layout, tables)
    yield _live(MatchedRows(merged.drop_columns([_KEY_INDEX]), single(merged.column(_KEY_INDEX)).to_numpy()))


def _in_void_namespace(found: MatchedRows) -> MatchedRows:
    if NAMESPACE not in found.rows.schema.names:
        return found
    chosen = single(pc.equal(found.rows.column(NAMESPACE), VOID_NAMESPACE))
    return _filter(found, chosen)


def _live(found: MatchedRows) -> MatchedRows:
    if DELETED not in found.rows.schema.names:
        return found
    return _filter(found, single(pc.invert(found.rows.column(DELETED))))


def _filter(found: MatchedRows, chosen: Any) -> MatchedRows:
    return MatchedRows(found.rows.filter(chosen), found.keys[chosen.to_numpy(zero_copy_only=False)])


def unexpired(state: RegisteredState, table: Any, now_ms: int) -> Any:
    """
    Return the rows of a state without expired ones, and without the expired elements of lists.

    :param now_ms: Current time in milliseconds.
    """
    if state.ttl is None:
        return table
    oldest, cells = now_ms - state.ttl.ttl_ms, single(table.column(VALUE))
    if state.kind is not StateKind.LIST:
        return table.filter(pc.greater(pc.struct_field(cells, "last_access_ms"), oldest))
    elements = cells.flatten()
    live = pc.greater(pc.struct_field(elements, "last_access_ms"), oldest)
    lists = lists_with(cells, elements, live).cast(cells.type)
    shortened = table.set_column(table.schema.get_field_index(VALUE), VALUE, lists)
    return shortened.filter(pc.greater(pc.list_value_length(lists), 0))


def runs_to_merge(new_bytes: int, new_deletions: int, runs: Sequence[SortedRun]) -> int:
    """
    Return the number of newest runs to merge with the new rows.

    Runs are merged from the newest on while each is at most as large as all newer rows together. The number of runs
    grows with the logarithm of the state, and so does the number of rewrites of a row. All runs are merged if they
    would otherwise take more than twice the size of the live state.

    :param new_bytes: Size of the new rows in bytes.
    :param new_deletions: Number of tombstones among them.
    :param runs: Existing runs, newest first.
    """
    is_too_large = _exceeds_space_amplification(new_bytes, new_deletions, runs)
    return len(runs) if is_too_large else _of_similar_size(new_bytes, runs)


def partial_runs_to_merge(new_bytes: int, runs: Sequence[SortedRun]) -> int:
    """
    Return the number of newest runs to merge with new rows, if there are partial rows.

    Reads combine such rows, so that few runs may stay as they are, also those of similar sizes.

    :param new_bytes: Size of the new rows in bytes.
    :param runs: Existing runs, newest first.
    """
    if len(runs) + bool(new_bytes) <= MOST_PARTIAL_RUNS:
        return 0
    return _of_similar_size(new_bytes, runs, least=len(runs) + 1 - MOST_PARTIAL_RUNS)


def _of_similar_size(new_bytes: int, runs: Sequence[SortedRun], least: int = 0) -> int:
    merged, count = new_bytes, 0
    for run in runs:
        if count >= least and run.raw_bytes > _SIZE_RATIO * merged:
            break
        merged, count = merged + run.raw_bytes, count + 1
    return count


def _exceeds_space_amplification(new_bytes: int, new_deletions: int, runs: Sequence[SortedRun]) -> bool:
    if not runs:
        return False
    oldest = runs[-1]
    deletions = new_deletions + sum(run.deletions for run in runs[:-1])
    live_bytes = oldest.raw_bytes * max(0.0, 1 - deletions / max(1, oldest.num_rows))
    return new_bytes + sum(run.raw_bytes for run in runs) > _MAX_SPACE_AMPLIFICATION * live_bytes


class LocalSpill:
    """Temporary directory for spilled changes, created on first use."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir(), f"statecheck-state-{uuid.uuid4().hex}")
        self._is_created = False
        self.uri = f"file://{self._path}"

    def open_stream(self) -> LocalStream:
        """
        Open a new file.

        :raises StorageError: if the local disk is full or read-only.
        """
        with local_failures(self._path):
            if not self._is_created:
                self._path.mkdir(mode=0o700)
                self._is_created = True
                # Deletes the files of a backend that is not disposed.
                weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
            return LocalStream(self._path / uuid.uuid4().hex)

    def close(self) -> None:
        """Delete all files; idempotent."""
        if self._is_created:
            shutil.rmtree(self._path, ignore_errors=True)
            self._is_created = False


class LocalStream(CheckpointStateOutputStream):
    """
    Stream to a local file that no checkpoint references.

    Its methods raise ``StorageError`` if the local disk is full or read-only.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")

    @override
    def write(self, data: bytes) -> None:
        with local_failures(self._path):
            self._file.write(data)

    @override
    def get_pos(self) -> int:
        return self._file.tell()

    @override
    def flush_to_file(self) -> None:
        """Do nothing, because the stream is a file."""

    @override
    def close_and_get_handle(self) -> FileStateHandle:
        with local_failures(self._path):
            self._file.close()
        return FileStateHandle(f"file://{self._path}", self._path.stat().st_size)

    @override
    def close(self) -> None:
        # Closing writes what is buffered, for which the disk may have no space.
        with suppress(OSError):
            self._file.close()
        self._path.unlink(missing_ok=True)
