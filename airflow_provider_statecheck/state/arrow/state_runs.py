"""Runs of one state, with changes in memory and spilled to disk."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, merge_tables
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    ArrowStateSettings,
    BlockCache,
    StateLayout,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.part_files import PartBytes, Parts
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.restore import RowForm
from airflow_provider_statecheck.state.arrow.runs import FileRun, MatchedRows, MemoryRun, SortedRun, find_rows
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

OpenStream = Callable[[], CheckpointStateOutputStream]
_KEY_INDEX = "of_key"


@dataclass(frozen=True, slots=True)
class Reading:
    """Shared resources for reading the runs of a backend."""

    files: PartBytes
    cache: BlockCache
    settings: ArrowStateSettings


@dataclass(frozen=True, slots=True)
class Captured:
    """Runs of a state at the start of a snapshot."""

    fresh: tuple[SortedRun, ...]
    base: tuple[FileRun, ...]
    until: int
    """Number of runs of changes added up to that moment."""


class StateRuns:
    """
    Runs of a state, newest first. Runs are immutable and only replaced.

    :param schema: Schema of new rows.
    :param layout: Layout of the rows.
    :param form: Conversion of restored rows to the current types.
    :param reading: Shared resources for reading runs.
    :param base: Restored runs.
    """

    def __init__(
        self,
        schema: StateSchema,
        layout: StateLayout,
        form: RowForm,
        reading: Reading,
        base: tuple[Parts, ...] = (),
    ) -> None:
        self.schema = schema
        self.layout = layout
        self._form = form
        self._reading = reading
        self.base = tuple(self.file_run(parts) for parts in base)
        self.fresh: tuple[SortedRun, ...] = ()
        self._sealed = 0
        self._confirmed = 0

    @property
    def all(self) -> tuple[SortedRun, ...]:
        """Return all runs, newest first."""
        return (*self.fresh, *self.base)

    @property
    def memory_bytes(self) -> int:
        """Return the size of the changes in memory, in bytes."""
        return sum(run.raw_bytes for run in self.fresh if isinstance(run, MemoryRun))

    def file_run(self, parts: Parts) -> FileRun:
        """Return a run in files."""
        return FileRun(parts, self._reading.files, self._reading.cache, self._form)

    def rows(self) -> Iterator[Any]:
        """Return the current rows as sorted tables. Later changes are not visible."""
        return merge_runs(self.layout, self.all, keep_deletions=False)

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

    def capture(self) -> Captured:
        """Capture the runs for a snapshot. Later rows are added to other runs."""
        self._sealed = len(self.fresh)
        return Captured(self.fresh, self.base, self._confirmed + len(self.fresh))

    def confirm(self, captured: Captured, runs: tuple[Parts, ...]) -> None:
        """Replace the base and the captured changes by the runs of a completed snapshot."""
        count = captured.until - self._confirmed
        if count < 0:
            return
        self.base = tuple(self.file_run(parts) for parts in runs)
        self.fresh = self.fresh[: len(self.fresh) - count]
        self._confirmed += count
        self._sealed = max(0, self._sealed - count)

    def move(self, before: tuple[Parts, ...], after: tuple[Parts, ...]) -> None:
        """Replace restored runs, if they are still the base, by copies with the same rows."""
        if len(before) == len(self.base) and all(
            run.parts is parts for run, parts in zip(self.base, before, strict=True)
        ):
            self.base = tuple(self.file_run(parts) for parts in after)

    def spill(self, open_stream: OpenStream) -> None:
        """
        Move changes from memory to local files.

        :raises StorageError: if the local disk is full.
        """
        unsealed = self.fresh[: len(self.fresh) - self._sealed]
        count = next((i for i, run in enumerate(unsealed) if not isinstance(run, MemoryRun)), len(unsealed))
        if count:
            spilled, older = self._spill_run(self.fresh[:count], open_stream), self.fresh[count : len(unsealed)]
            if older and isinstance(older[0], FileRun) and _follows(older[0], int(spilled.block_key_groups[0])):
                spilled, count = self.file_run((*older[0].parts, *spilled.parts)), count + 1
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

    def _spill_run(self, runs: tuple[SortedRun, ...], open_stream: OpenStream) -> FileRun:
        writer = PartWriter(schema_of(self.layout, runs), self.schema, open_stream, self._reading.settings)
        return self.file_run(writer.write_all(merge_runs(self.layout, runs, keep_deletions=True)))


def schema_of(layout: StateLayout, runs: tuple[SortedRun, ...], *, keep_deletions: bool = True) -> Any:
    """Return the Arrow schema of merged runs."""
    deleted = keep_deletions and any(run.deletions for run in runs)
    return layout.schema(namespace=any(run.has_namespaces for run in runs), deleted=deleted)


def _follows(run: SortedRun, key_group: int) -> bool:
    return int(run.block_last_key_groups[-1]) < key_group


class Removed:
    """Type of the marker of a removed value."""


REMOVED: Final = Removed()
"""Marker of a removed value in memory."""


def changed_rows(
    layout: StateLayout,
    key_groups: Any,
    columns: Sequence[Any],
    namespace: str,
    values: Any,
    deleted: Any,
    user_keys: Any = None,
) -> Any:
    """
    Return the changes of one namespace as a sorted table.

    :param key_groups: Arrow array of int32.
    :param columns: Key columns.
    :param deleted: Boolean Arrow array that marks tombstones, or ``None`` if there are none.
    """
    import numpy as np
    import pyarrow as pa

    columns_by_name = dict(zip(layout.key_names, columns, strict=True))
    columns_by_name |= {KEY_GROUP: key_groups, USER_KEY: user_keys, VALUE: values, DELETED: deleted}
    has_namespace = namespace != VOID_NAMESPACE
    if has_namespace:
        columns_by_name[NAMESPACE] = pa.repeat(pa.scalar(namespace, pa.string()), len(key_groups))
    schema = layout.schema(namespace=has_namespace, deleted=deleted is not None)
    table = pa.table([columns_by_name[name] for name in schema.names], schema=schema)
    return table.take(pa.array(np.argsort(order_codes(position_columns(table)), kind="stable")))


def joined_rows(layout: StateLayout, tables: Sequence[Any]) -> Any:
    """Return the changes of several namespaces as one sorted table."""
    import numpy as np
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0]
    deleted = any(DELETED in table.schema.names for table in tables)
    joined = pa.concat_tables([layout.conform(table, namespace=True, deleted=deleted) for table in tables])
    return joined.take(pa.array(np.argsort(order_codes(position_columns(joined)), kind="stable")))


def tombstone_mask(values: Iterable[Any]) -> Any:
    """Return a boolean Arrow array that marks removed values, or ``None`` if there are none."""
    import pyarrow as pa

    mask = [value is REMOVED for value in values]
    return pa.array(mask, pa.bool_()) if any(mask) else None


def live_rows_in_void_namespace(runs: StateRuns, keys: KeyBatch) -> Iterator[MatchedRows]:
    """Return the live rows of the keys without a namespace."""
    import numpy as np
    import pyarrow as pa

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


def live_rows(runs: StateRuns, keys: KeyBatch) -> Iterator[MatchedRows]:
    """Return the live rows of the keys in all namespaces and with all user keys."""
    import pyarrow as pa

    results = [found for run in runs.all for found in find_rows(runs.layout, run, keys)]
    if not results:
        return
    deleted = any(DELETED in found.rows.schema.names for found in results)
    tables = [
        runs.layout.conform(found.rows, namespace=True, deleted=deleted).append_column(_KEY_INDEX, pa.array(found.keys))
        for found in results
    ]
    merged = merge_tables(tables)
    yield _live(MatchedRows(merged.drop_columns([_KEY_INDEX]), single(merged.column(_KEY_INDEX)).to_numpy()))


def _in_void_namespace(found: MatchedRows) -> MatchedRows:
    import pyarrow.compute as pc

    if NAMESPACE not in found.rows.schema.names:
        return found
    chosen = single(pc.equal(found.rows.column(NAMESPACE), VOID_NAMESPACE))
    return _filter(found, chosen)


def _live(found: MatchedRows) -> MatchedRows:
    import pyarrow.compute as pc

    if DELETED not in found.rows.schema.names:
        return found
    return _filter(found, single(pc.invert(found.rows.column(DELETED))))


def _filter(found: MatchedRows, chosen: Any) -> MatchedRows:
    return MatchedRows(found.rows.filter(chosen), found.keys[chosen.to_numpy(zero_copy_only=False)])


def key_groups_of(keys: Sequence[Any], key_groups: Mapping[Any, int]) -> Any:
    """Return the key groups of keys as an Arrow array."""
    import pyarrow as pa

    return pa.array([key_groups[key] for key in keys], pa.int32())


class LocalSpill:
    """Temporary directory for spilled changes, created on first use."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir(), f"statecheck-state-{uuid.uuid4().hex}")
        self._is_created = False

    @property
    def uri(self) -> str:
        """Return the URI of the directory."""
        return f"file://{self._path}"

    def open_stream(self) -> LocalStream:
        """
        Open a new file.

        :raises StorageError: if the local disk is full.
        """
        with _spilling():
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


class LocalStream:
    """
    ``CheckpointStateOutputStream`` to a local file that no checkpoint references.

    Its methods raise ``StorageError`` if the local disk is full.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        """Write bytes."""
        with _spilling():
            self._file.write(data)

    def get_pos(self) -> int:
        """Return the number of bytes written."""
        return self._file.tell()

    def flush_to_file(self) -> None:
        """Do nothing, because the stream is a file."""

    def close_and_get_handle(self) -> FileStateHandle:
        """Close the file and return its handle."""
        with _spilling():
            self._file.close()
        return FileStateHandle(f"file://{self._path}", self._path.stat().st_size)

    def close(self) -> None:
        """Discard the file."""
        self._file.close()
        self._path.unlink(missing_ok=True)


@contextmanager
def _spilling() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise StorageError(f"State changes cannot be spilled to the local disk: {error}; free space.") from error
