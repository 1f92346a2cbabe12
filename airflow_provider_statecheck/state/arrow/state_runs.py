"""The rows of one state: runs of the last snapshot that is sure, and what was changed since."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from airflow_provider_statecheck.state.arrow.block_cache import BlockCache
from airflow_provider_statecheck.state.arrow.file_run import FileRun
from airflow_provider_statecheck.state.arrow.layout import DELETED, KEY_GROUP, NAMESPACE, StateLayout
from airflow_provider_statecheck.state.arrow.memory_run import MemoryRun
from airflow_provider_statecheck.state.arrow.merging import merge_runs
from airflow_provider_statecheck.state.arrow.part import Parts
from airflow_provider_statecheck.state.arrow.part_bytes import PartBytes
from airflow_provider_statecheck.state.arrow.part_writer import PartWriter
from airflow_provider_statecheck.state.arrow.row_form import RowForm
from airflow_provider_statecheck.state.arrow.settings import ArrowStateSettings
from airflow_provider_statecheck.state.arrow.sorted_run import SortedRun
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream

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
