"""The runs of one state, with changes in memory and spilled to disk."""

from __future__ import annotations

import shutil
import tempfile
import uuid
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from airflow_provider_statecheck.checkpoint.states.handles import FileStateHandle
from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.state.arrow.blocks import BlockCache
from airflow_provider_statecheck.state.arrow.compaction import merge_runs, merge_tables
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    KEY_GROUP,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.part_files import PartBytes, Parts, PartWriter
from airflow_provider_statecheck.state.arrow.restore import RowForm
from airflow_provider_statecheck.state.arrow.runs import FileRun, Found, MemoryRun, SortedRun, find_rows
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.keyed.tables import VOID_NAMESPACE
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.storage.views.state_streams import CheckpointStateOutputStream

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


OpenStream = Callable[[], CheckpointStateOutputStream]


@dataclass(frozen=True, slots=True)
class Reading:
    """What all runs of a backend read with."""

    files: PartBytes
    cache: BlockCache
    settings: ArrowStateSettings


@dataclass(frozen=True, slots=True)
class Captured:
    """What a state was at one moment."""

    fresh: tuple[SortedRun, ...]
    base: tuple[FileRun, ...]
    until: int
    """How many runs of changes there had been by then."""


class StateRuns:
    """
    Runs in layers, the newest first; runs are never changed, only replaced.

    :param schema: As what new rows are written.
    :param base: The restored runs.
    """

    def __init__(
        self, schema: StateSchema, layout: StateLayout, form: RowForm, reading: Reading, base: tuple[Parts, ...] = ()
    ) -> None:
        self.schema = schema
        self.layout = layout
        self._form = form
        self._reading = reading
        self.base = tuple(self.file_run(parts) for parts in base)
        self.fresh: tuple[SortedRun, ...] = ()
        self._sealed = 0
        self._forgotten = 0

    @property
    def all(self) -> tuple[SortedRun, ...]:
        """Return all runs, the newest first."""
        return (*self.fresh, *self.base)

    @property
    def memory_bytes(self) -> int:
        """Return how much memory changes take."""
        return sum(run.raw_bytes for run in self.fresh if isinstance(run, MemoryRun))

    def file_run(self, parts: Parts) -> FileRun:
        """Return a run of files."""
        return FileRun(parts, self._reading.files, self._reading.cache, self._form)

    def rows(self) -> Iterator[Any]:
        """Return what there is now, as tables in order; later changes are not in it."""
        return merge_runs(self.layout, self.all, keep_deletions=False)

    def add(self, table: Any) -> None:
        """Add changed rows, which are in order and newer than all others."""
        if table.num_rows == 0:
            return
        newest = self._newest_open()
        if isinstance(newest, MemoryRun) and _follows(newest, _first_key_group(table)):
            self._replace_newest(1, self._memory_run([*newest.tables_in_order, table]))
            return
        self.fresh = (MemoryRun([table]), *self.fresh)
        self._merge_small()

    def capture(self) -> Captured:
        """Return what a snapshot is made of; what is added later goes to other runs."""
        self._sealed = len(self.fresh)
        return Captured(self.fresh, self.base, self._forgotten + len(self.fresh))

    def confirm(self, captured: Captured, runs: tuple[Parts, ...]) -> None:
        """Take the runs of a snapshot for the base, in place of the old base and of what was captured."""
        count = captured.until - self._forgotten
        if count < 0:
            return
        self.base = tuple(self.file_run(parts) for parts in runs)
        self.fresh = self.fresh[: len(self.fresh) - count]
        self._forgotten += count
        self._sealed = max(0, self._sealed - count)

    def spill(self, open_stream: OpenStream) -> None:
        """
        Move changes from memory to files of this machine.

        :raises StorageError: if it has no space.
        """
        is_open = self.fresh[: len(self.fresh) - self._sealed]
        count = next((i for i, run in enumerate(is_open) if not isinstance(run, MemoryRun)), len(is_open))
        if count:
            spilled, older = self._spilled(self.fresh[:count], open_stream), self.fresh[count : len(is_open)]
            if older and isinstance(older[0], FileRun) and _follows(older[0], int(spilled.block_key_groups[0])):
                spilled, count = self.file_run((*older[0].parts, *spilled.parts)), count + 1
            self.fresh = (spilled, *self.fresh[count:])
        # What was captured stays run by run, because snapshots count them.
        moved = (self._spilled((run,), open_stream) if isinstance(run, MemoryRun) else run for run in self.fresh)
        self.fresh = tuple(moved)

    def _newest_open(self) -> SortedRun | None:
        return self.fresh[0] if len(self.fresh) > self._sealed else None

    def _memory_run(self, tables: Sequence[Any]) -> MemoryRun:
        # A position has a namespace in all rows of a run, or in none.
        namespace = any(NAMESPACE in table.schema.names for table in tables)
        conform = self.layout.conform
        return MemoryRun([conform(t, namespace=namespace, deleted=DELETED in t.schema.names) for t in tables])

    def _replace_newest(self, count: int, run: SortedRun) -> None:
        self.fresh = (run, *self.fresh[count:])

    def _merge_small(self) -> None:
        """Merge the newest runs in memory while they are about as large as each other, so that they stay few."""
        while len(self.fresh) - self._sealed >= 2:
            newest, older = self.fresh[:2]
            if not isinstance(older, MemoryRun) or older.raw_bytes > 2 * newest.raw_bytes:
                return
            merged = merge_runs(self.layout, (newest, older), keep_deletions=True)
            self._replace_newest(2, MemoryRun(list(merged)))

    def _spilled(self, runs: tuple[SortedRun, ...], open_stream: OpenStream) -> FileRun:
        writer = PartWriter(schema_of(self.layout, runs), self.schema, open_stream, self._reading.settings)
        return self.file_run(writer.write_all(merge_runs(self.layout, runs, keep_deletions=True)))


def schema_of(layout: StateLayout, runs: tuple[SortedRun, ...], *, keep_deletions: bool = True) -> Any:
    """Return the Arrow schema of what runs are merged to."""
    deleted = keep_deletions and any(run.deletions for run in runs)
    return layout.schema(namespace=any(run.has_namespaces for run in runs), deleted=deleted)


def _follows(run: SortedRun, key_group: int) -> bool:
    return int(run.block_last_key_groups[-1]) < key_group


def _first_key_group(table: Any) -> int:
    return int(table.column(KEY_GROUP)[0].as_py())


class Gone:
    """What stands in place of a value that was removed."""


GONE: Final = Gone()


def key_columns(keys: KeySerializer, values: Sequence[Any]) -> list[Any]:
    """Return keys that are in form as Arrow columns."""
    import pyarrow as pa

    types = keys.arrow_types
    if len(types) == 1:
        return [pa.array(values, type=types[0])]
    columns = zip(*values, strict=True) if values else ((),) * len(types)
    return [pa.array(column, type=wanted) for column, wanted in zip(columns, types, strict=True)]


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
    Return changes of one namespace as a table in order.

    :param key_groups: An Arrow array of int32.
    :param columns: The columns of the keys.
    :param deleted: An Arrow array of booleans, or ``None`` if nothing is deleted.
    """
    import numpy as np
    import pyarrow as pa

    have = dict(zip(layout.key_names, columns, strict=True))
    have |= {KEY_GROUP: key_groups, USER_KEY: user_keys, VALUE: values, DELETED: deleted}
    has_namespace = namespace != VOID_NAMESPACE
    if has_namespace:
        have[NAMESPACE] = pa.repeat(pa.scalar(namespace, pa.string()), len(key_groups))
    schema = layout.schema(namespace=has_namespace, deleted=deleted is not None)
    table = pa.table([have[name] for name in schema.names], schema=schema)
    return table.take(pa.array(np.argsort(order_codes(position_columns(table)), kind="stable")))


def joined_rows(layout: StateLayout, tables: Sequence[Any]) -> Any:
    """Return changes of several namespaces as one table in order."""
    import numpy as np
    import pyarrow as pa

    if len(tables) == 1:
        return tables[0]
    deleted = any(DELETED in table.schema.names for table in tables)
    joined = pa.concat_tables([layout.conform(table, namespace=True, deleted=deleted) for table in tables])
    return joined.take(pa.array(np.argsort(order_codes(position_columns(joined)), kind="stable")))


def marks(values: Iterable[Any]) -> Any:
    """Return which of some values are gone as an Arrow array, ``None`` if none is."""
    import pyarrow as pa

    gone = [value is GONE for value in values]
    return pa.array(gone, pa.bool_()) if any(gone) else None


def groups_of(keys: Sequence[Any], key_groups: Mapping[Any, int]) -> Any:
    """Return the key groups of keys as an Arrow array."""
    import pyarrow as pa

    return pa.array([key_groups[key] for key in keys], pa.int32())


class LocalSpill:
    """A directory that is made when it is needed and goes with this object."""

    def __init__(self) -> None:
        self._path = Path(tempfile.gettempdir(), f"statecheck-state-{uuid.uuid4().hex}")
        self._is_made = False

    @property
    def uri(self) -> str:
        """Return where the files are."""
        return f"file://{self._path}"

    def open_stream(self) -> LocalStream:
        """
        Open a new file.

        :raises StorageError: if this machine has no space.
        """
        try:
            if not self._is_made:
                self._path.mkdir(mode=0o700)
                self._is_made = True
                # A backend that is forgotten rather than disposed of must not fill the disk.
                weakref.finalize(self, shutil.rmtree, self._path, ignore_errors=True)
            return LocalStream(self._path / uuid.uuid4().hex)
        except OSError as error:
            raise _failed(error) from error

    def close(self) -> None:
        """Delete all files; without effect the second time."""
        if self._is_made:
            shutil.rmtree(self._path, ignore_errors=True)
            self._is_made = False


class LocalStream:
    """A ``CheckpointStateOutputStream`` to a file that no checkpoint names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("xb")

    def write(self, data: bytes) -> None:
        """
        Add bytes.

        :raises StorageError: if this machine has no space.
        """
        try:
            self._file.write(data)
        except OSError as error:
            raise _failed(error) from error

    def get_pos(self) -> int:
        """Return how many bytes were written."""
        return self._file.tell()

    def flush_to_file(self) -> None:
        """Do nothing: it is a file."""

    def close_and_get_handle(self) -> FileStateHandle:
        """
        Close the file and return where it is.

        :raises StorageError: if this machine has no space.
        """
        try:
            self._file.close()
        except OSError as error:
            raise _failed(error) from error
        return FileStateHandle(f"file://{self._path}", self._path.stat().st_size)

    def close(self) -> None:
        """Give the file up."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _failed(error: OSError) -> StorageError:
    return StorageError(f"State cannot be kept on this machine: {error}; make space, or raise memtable_bytes.")


_OF_KEY = "of_key"


def newest_of_void(runs: StateRuns, keys: KeyBatch) -> Iterator[Found]:
    """Return the rows of single values that keys have without a namespace, without those that are gone."""
    import numpy as np
    import pyarrow as pa

    numbers = np.arange(len(keys))
    for run in runs.all:
        missing = np.ones(len(numbers), bool)
        for found in find_rows(runs.layout, run, keys):
            some = _of_void(found)
            missing[some.keys] = False
            yield _without_gone(Found(some.rows, numbers[some.keys]))
        numbers = numbers[missing]
        if not len(numbers):
            return
        if not missing.all():
            keys = _taken(keys, pa.array(np.flatnonzero(missing)))


def newest_of_all(runs: StateRuns, keys: KeyBatch) -> Iterator[Found]:
    """Return the rows that keys have in any namespace and under any user key, without those that are gone."""
    import pyarrow as pa

    found = [some for run in runs.all for some in find_rows(runs.layout, run, keys)]
    if not found:
        return
    deleted = any(DELETED in some.rows.schema.names for some in found)
    tables = [
        runs.layout.conform(some.rows, namespace=True, deleted=deleted).append_column(_OF_KEY, pa.array(some.keys))
        for some in found
    ]
    merged = merge_tables(tables)
    yield _without_gone(Found(merged.drop_columns([_OF_KEY]), single(merged.column(_OF_KEY)).to_numpy()))


def _of_void(found: Found) -> Found:
    import pyarrow.compute as pc

    if NAMESPACE not in found.rows.schema.names:
        return found
    chosen = single(pc.equal(found.rows.column(NAMESPACE), VOID_NAMESPACE))
    return _filtered(found, chosen)


def _without_gone(found: Found) -> Found:
    import pyarrow.compute as pc

    if DELETED not in found.rows.schema.names:
        return found
    return _filtered(found, single(pc.invert(found.rows.column(DELETED))))


def _filtered(found: Found, chosen: Any) -> Found:
    return Found(found.rows.filter(chosen), found.keys[chosen.to_numpy(zero_copy_only=False)])


def _taken(keys: KeyBatch, rows: Any) -> KeyBatch:
    return KeyBatch(keys.key_groups.take(rows), tuple(column.take(rows) for column in keys.columns))
