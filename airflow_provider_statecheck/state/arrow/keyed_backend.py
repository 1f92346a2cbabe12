"""Default state backend: keyed state in sorted Arrow files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.config import CheckpointConfig
from airflow_provider_statecheck.checkpoint.states.handles import (
    KeyedStateHandle,
    KeyGroupRange,
    OperatorStateHandle,
    StreamStateHandle,
)
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.state.arrow.compaction import merge_runs
from airflow_provider_statecheck.state.arrow.layout import (
    USER_KEY,
    ArrowStateSettings,
    BlockCache,
    StateLayout,
    count_owners,
)
from airflow_provider_statecheck.state.arrow.part_files import PartBytes, StateFiles
from airflow_provider_statecheck.state.arrow.restore import PositionForm, StateRowForm, restored_files
from airflow_provider_statecheck.state.arrow.runs import FileRun
from airflow_provider_statecheck.state.arrow.snapshot import ArrowSnapshot, CapturedRuns, SnapshotPlan
from airflow_provider_statecheck.state.arrow.state_runs import LocalSpill, Reading, StateRuns
from airflow_provider_statecheck.state.arrow.tables import ArrowMapTable, ArrowValueTable
from airflow_provider_statecheck.state.backends.state_backend import (
    ConfigurableStateBackend,
    StateBackend,
    StateEnvironment,
    restoring,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.pointers import resolve_checkpoint
from airflow_provider_statecheck.storage.views.state_files import discard_state
from airflow_provider_statecheck.storage.views.state_streams import CompletedCheckpointStorageLocation

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.descriptors import StateDescriptor
    from airflow_provider_statecheck.state.keyed.registered_state import MapTable, RegisteredState, StateTable
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend
    from airflow_provider_statecheck.storage.views.state_streams import CheckpointStreamFactory


_Table = ArrowValueTable | ArrowMapTable


# Base of a storage that only resolves pointers, which are absolute.
_NO_DIRECTORY = "memory://statecheck-without-directory"


@dataclass(frozen=True, slots=True)
class ArrowStateBackend(StateBackend, ConfigurableStateBackend):
    """
    State backend with sorted Arrow files, incremental snapshots and bounded memory.

    The storage of the stage determines the location of checkpoints.

    :param settings: Sizes and compression; those of the configuration if ``None``.
    :param incremental: Whether snapshots reference the files of earlier ones; as configured if ``None``, else ``True``.
    :param streams: Streams of the state in snapshots; those of the checkpoint if ``None``.
    """

    settings: ArrowStateSettings | None = None
    incremental: bool | None = None
    streams: CheckpointStreamFactory | None = None

    @override
    def configure(self, config: Mapping[str, Any]) -> ArrowStateBackend:
        settings = self.settings or ArrowStateSettings.from_config(config)
        incremental = _is_incremental(config) if self.incremental is None else self.incremental
        return replace(self, settings=settings, incremental=incremental)

    @override
    def create_keyed_state_backend(
        self,
        environment: StateEnvironment,
        job_id: str,
        operator_identifier: str,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        kv_registry: Any = None,
        *,
        restored: Sequence[KeyedStateHandle] = (),
    ) -> ArrowKeyedStateBackend:
        backend = ArrowKeyedStateBackend(
            key_serializer=key_serializer,
            number_of_key_groups=number_of_key_groups,
            key_group_range=key_group_range,
            now_ms=environment.now_ms,
            storage=environment.storage,
            settings=self.settings,
            incremental=self.incremental is not False,
            streams=self.streams,
            operator_name=environment.operator_name,
        )
        with restoring(operator_identifier):
            backend.restore(restored)
        return backend

    @override
    def create_operator_state_backend(
        self,
        environment: StateEnvironment,
        operator_identifier: str,
        *,
        restored: Sequence[OperatorStateHandle] = (),
    ) -> DefaultOperatorStateBackend:
        from airflow_provider_statecheck.state.operator.backend import DefaultOperatorStateBackend

        with restoring(operator_identifier):
            return DefaultOperatorStateBackend.restore(environment.storage, restored, environment.operator_name)

    @override
    def resolve_checkpoint(self, pointer: str | None, **storage_options: Any) -> CompletedCheckpointStorageLocation:
        base = _NO_DIRECTORY if not pointer or not storage_options else pointer
        return resolve_checkpoint(CheckpointStorage.open(base, **storage_options), pointer)


def _is_incremental(config: Mapping[str, Any]) -> bool:
    values = CheckpointConfig()
    CheckpointConfig.incremental.read(values, config)
    return values.incremental


class ArrowKeyedStateBackend(AbstractKeyedStateBackend):
    """
    Keyed state as sorted Arrow files on the checkpoint storage, with later changes in memory and local files.

    An incremental snapshot references the files of an earlier one only after :meth:`notify_checkpoint_complete`, or if the
    backend was restored from them. Reads and later snapshots need these files: those of a checkpoint may be deleted only after
    the backend was notified of a later one, and no snapshot captured before is still being written.

    :param storage: Storage of the restored state.
    :param settings: Sizes and compression; the defaults if ``None``.
    :param incremental: Whether snapshots reference the files of earlier ones.
    :param streams: Streams of the state in snapshots; those of the checkpoint if ``None``.
    :raises InvalidConfigurationError: if the range exceeds the number of key groups.
    """

    def __init__(
        self,
        *,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        now_ms: Callable[[], int],
        storage: CheckpointStorage,
        settings: ArrowStateSettings | None = None,
        incremental: bool = True,
        streams: CheckpointStreamFactory | None = None,
        operator_name: str = "",
    ) -> None:
        super().__init__(
            key_serializer=key_serializer,
            number_of_key_groups=number_of_key_groups,
            key_group_range=key_group_range,
            now_ms=now_ms,
            operator_name=operator_name,
        )
        self._storage = storage
        self._settings = settings or ArrowStateSettings()
        self._spill = LocalSpill()
        files = PartBytes(storage.allowing(self._spill.uri))
        self._reading = Reading(files, BlockCache(self._settings.cache_bytes), self._settings)
        self._snapshots: WeakSet[ArrowSnapshot] = WeakSet()
        self._unconfirmed: dict[int, ArrowSnapshot] = {}
        self._carried: dict[str, StateFiles] = {}
        self._exclusive: frozenset[StreamStateHandle] = frozenset()
        self._incremental = incremental
        self._streams = streams

    def restore(self, handles: Sequence[KeyedStateHandle]) -> None:
        """
        Restore the state of handles. Only the metadata of their files is read.

        :raises CheckpointNotFoundError: if snapshot metadata is missing.
        :raises CorruptStateError: if snapshot metadata is corrupt.
        :raises IncompatibleCheckpointError: if a backend outside of this package or a newer version wrote the state, or
            with another number of key groups.
        :raises StateMigrationError: if the keys have another type.
        :raises StorageError: if the storage fails.
        """
        self._carried = restored_files(
            handles, self._storage, self.key_serializer, self.number_of_key_groups, self.key_group_range
        )
        self._exclusive = frozenset(stream for handle in handles for _, stream in handle.private)
        self._unclaimed.update({name: files.state for name, files in self._carried.items()})

    def advance_to(self, key_group: int) -> None:
        """Notify the backend that keys of lower key groups are not accessed before the next snapshot."""
        for table in self._arrow_tables():
            table.advance_to(key_group)

    def prefetch(self, keys: KeyBatch) -> None:
        """
        Read all registered states of the keys at once.

        Later accesses to these keys need no search, until the next call. Other keys are looked up one by one.
        """
        key_list = self.key_serializer.from_columns(keys.columns)
        for table in self._arrow_tables():
            table.prefetch(keys, key_list)

    def num_entries(self) -> int:
        """Return the number of pairs of key and namespace with state, summed over all states. Reads all state."""
        carried = (count_owners(self._positions_of(files)) for files in self._carried.values())
        return sum(table.num_entries() for table in self._arrow_tables()) + sum(carried)

    def scan(self, descriptor: StateDescriptor[Any]) -> Iterator[Any]:
        """
        Return a state as sorted Arrow tables with the key group, the key columns and the value.

        Later changes are not visible. The tables of a map state have a ``user_key`` column. Tables have a namespace
        column only if the state has namespaces.
        """
        self.get_partitioned_state(descriptor)
        table = cast("_Table", self._tables[descriptor.name])
        table.seal()
        return table.runs.rows()

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> ArrowSnapshot:
        """Capture the current state. The returned snapshot writes it without later changes."""
        tables = list(self._arrow_tables())
        for table in tables:
            table.seal()
        snapshot = ArrowSnapshot(
            SnapshotPlan(
                checkpoint_id=checkpoint_id,
                key=self.key_serializer.snapshot(),
                number_of_key_groups=self.number_of_key_groups,
                key_group_range=self.key_group_range,
                states=[CapturedRuns(table.state, table.runs, table.runs.capture()) for table in tables],
                now_ms=self._now_ms(),
                carried=tuple(self._carried.values()),
                is_incremental=self._incremental,
                exclusive=self._exclusive,
                streams=self._streams or streams,
                reading=self._reading,
                discard=lambda handle: discard_state(self._storage, handle),
            )
        )
        self._snapshots.add(snapshot)
        self._unconfirmed[checkpoint_id] = snapshot
        return snapshot

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Use the files of a completed checkpoint as the base of later snapshots."""
        snapshot = self._unconfirmed.get(checkpoint_id)
        self._unconfirmed = {n: s for n, s in self._unconfirmed.items() if n > checkpoint_id}
        if snapshot is not None:
            for state, files in zip(snapshot.plan.states, snapshot.files, strict=False):
                state.runs.confirm(state.captured, files.runs)
            for before, after in zip(snapshot.plan.carried, snapshot.carried, strict=False):
                self._move(before, after)

    def _move(self, before: StateFiles, after: StateFiles) -> None:
        """Use other files of a restored state that had no descriptor when they were written."""
        name = before.state.name
        if self._carried.get(name) is before:
            self._carried[name] = after
        elif name in self._tables:
            table: _Table = cast("_Table", self._tables[name])
            table.runs.move(before.runs, after.runs)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Forget the files of an aborted checkpoint; later snapshots write their rows again."""
        self._unconfirmed.pop(checkpoint_id, None)

    def dispose(self) -> None:
        """Release the state and cancel running snapshots; idempotent."""
        for snapshot in list(self._snapshots):
            snapshot.cancel()
        self._unconfirmed.clear()
        self._carried.clear()
        self._reading.cache.clear()
        self._reading.files.close()
        self._spill.close()
        super().dispose()

    def _create_table(self, state: RegisteredState) -> StateTable | MapTable:
        user_keys = None if state.key_serializer is None else state.key_serializer.arrow_type
        layout = StateLayout.of(self.key_serializer, state.cell_serializer.arrow_type, user_keys)
        restored = self._carried.get(state.name) or StateFiles(state.schema(), ())
        form = StateRowForm(state, restored.state, layout, self._now_ms())
        for part in chain.from_iterable(restored.runs):
            form.require(part)
        runs = StateRuns(state.schema(), layout, form, self._reading, restored.runs)
        self._carried.pop(state.name, None)
        table = ArrowMapTable if state.is_map else ArrowValueTable
        return table(state, self.key_serializer, runs, self._memory_budget, self._spill_if_full)

    def _positions_of(self, files: StateFiles) -> Iterator[Any]:
        """Return the rows of a state without values, in the types in which they were written."""
        parts = [part for run in files.runs for part in run]
        user_keys = parts[0].schema.field(USER_KEY).type if parts and files.state.key is not None else None
        form = PositionForm(self.key_serializer, user_keys)
        runs = [FileRun(run, self._reading.files, self._reading.cache, form) for run in files.runs]
        return merge_runs(form.layout, runs, keep_deletions=False)

    def _arrow_tables(self) -> Iterator[_Table]:
        tables: dict[str, Any] = self._tables
        return iter(tables.values())

    def _memory_budget(self) -> int:
        return self._settings.memtable_bytes // (2 * max(1, len(self._tables)))

    def _spill_if_full(self) -> None:
        largest = max(self._arrow_tables(), key=lambda table: table.runs.memory_bytes)
        if sum(table.runs.memory_bytes for table in self._arrow_tables()) > self._settings.memtable_bytes // 2:
            largest.runs.spill(self._spill.open_stream)
