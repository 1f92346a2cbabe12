"""Restore of Arrow state files, and migration of their rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, zip_longest
from typing import Any

from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    KeyedStateHandle,
    KeyGroupRange,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, StateMigrationError
from airflow_provider_statecheck.lazy import np, pa, pc
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    NAMESPACE,
    PARTIAL,
    USER_KEY,
    VALUE,
    StateLayout,
    key_names_of,
    single,
)
from airflow_provider_statecheck.state.arrow.run_files import (
    RunFile,
    RunFiles,
    SnapshotMeta,
    StateFiles,
    decode_meta,
)
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.expiry import timed_cells
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState, lists_with
from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
from airflow_provider_statecheck.state.schema_evolution import (
    StateSchema,
    compatibility_of,
    schema_of_all,
)
from airflow_provider_statecheck.state.serializers.nested_columns import with_elements
from airflow_provider_statecheck.state.serializers.serializer import Outcome
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.state_files import read_state

BACKEND_ID = "arrow"
"""Backend id in all handles. Subtasks share it, because they may reference the same file after a rescale."""
CANONICAL_ID = "canonical"
"""Backend id in the handles of canonical savepoints, whose Parquet files belong to no backend."""
_Migrate = Callable[[Any], Any]
_Readable = tuple[KeyGroupRange, StateFiles]
"""Files, and the key groups of which they may be read."""
_READABLE = frozenset({BACKEND_ID, CANONICAL_ID})


def restored_files(
    handles: Sequence[KeyedStateHandle],
    storage: CheckpointStorage,
    keys: KeySerializer,
    number_of_key_groups: int,
    owned: KeyGroupRange,
) -> dict[str, StateFiles]:
    """
    Return the state files by state name. Only the snapshot metadata is read; raises also as :func:`read_meta`.

    :raises IncompatibleCheckpointError: if the number of key groups is another one.
    :raises StateMigrationError: if the keys have another type.
    """
    states: dict[str, list[_Readable]] = {}
    for handle in handles:
        meta = read_meta(handle, storage)
        _require_fitting(meta, keys, number_of_key_groups)
        for files in meta.states:
            readable = owned.intersection(handle.key_group_range)
            found = _files_within(files, readable, key_names_of(keys))
            states.setdefault(files.state.name, []).append((readable, found))
    return {name: _merged(found, number_of_key_groups) for name, found in states.items()}


def is_known(handle: KeyedStateHandle) -> bool:
    """Return whether the format of a handle is one of this package."""
    return handle.backend_id in _READABLE and handle.meta is not None


def read_meta(handle: KeyedStateHandle, storage: CheckpointStorage) -> SnapshotMeta:
    """
    Read the snapshot metadata of a handle.

    :raises CheckpointNotFoundError: if it is missing.
    :raises CorruptStateError: if it is corrupt.
    :raises IncompatibleCheckpointError: if another backend or a newer version wrote it.
    :raises StorageError: if the storage fails.
    """
    if not is_known(handle) or handle.meta is None:
        raise IncompatibleCheckpointError(
            f"Expected state files of a backend of this package or of a canonical savepoint, found those of "
            f"{handle.backend_id!r}; restore them with the backend that wrote them, or from a canonical savepoint."
        )
    stream = handle.meta
    is_file = isinstance(stream, FileStateHandle | SegmentFileStateHandle)
    source = redact(stream.uri) if is_file else f"checkpoint {handle.checkpoint_id}"  # type: ignore[union-attr]
    return decode_meta(read_state(storage, stream), dict((*handle.shared, *handle.private)), source)


def _require_fitting(meta: SnapshotMeta, keys: KeySerializer, number_of_key_groups: int) -> None:
    if meta.number_of_key_groups != number_of_key_groups:
        raise IncompatibleCheckpointError(
            f"Expected state with {number_of_key_groups} key groups, found {meta.number_of_key_groups}; restore with "
            "the maximum parallelism of the checkpoint, or rescale the checkpoint."
        )
    verdict = keys.resolve_compatibility(meta.key)
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(
            f"Expected keys that fit the restored state, found other keys: {verdict.reason}; keep their type."
        )


def _files_within(files: StateFiles, owned: KeyGroupRange, key_names: tuple[str, ...]) -> StateFiles:
    runs = (
        tuple(
            found.with_key_names(key_names) for found in (each.within(owned) for each in run_files) if found is not None
        )
        for run_files in files.runs
    )
    return StateFiles(files.state, tuple(run_files for run_files in runs if run_files))


def _merged(found: Sequence[_Readable], number_of_key_groups: int) -> StateFiles:
    """
    Merge the files of several handles into as few runs as possible.

    Handles of several subtasks have different key groups. Where handles have the same ones, each has partial results of
    its own, and is as new as its place among them.
    """
    depths = np.zeros(number_of_key_groups, np.int64)
    layers: list[list[StateFiles]] = []
    for readable, files in found:
        groups = slice(readable.start, readable.end + 1)
        depth = int(depths[groups].max(initial=0))
        depths[groups] = depth + 1
        layers += [[]] if depth == len(layers) else []
        layers[depth].append(files)
    runs = tuple(chain.from_iterable(map(_runs_of_layer, reversed(layers))))
    return StateFiles(schema_of_all([files.state for _, files in found]), runs)


def _runs_of_layer(found: Sequence[StateFiles]) -> tuple[RunFiles, ...]:
    """Return the runs of files with different key groups, newest first."""
    levels = zip_longest(*(reversed(files.runs) for files in found), fillvalue=())
    runs = [sorted(chain.from_iterable(level), key=lambda run_file: int(run_file.key_groups[0])) for level in levels]
    return tuple(map(tuple, reversed(runs)))


class RowForm:
    """Conversion of the rows of a run file to the columns and types of a reader. This one returns them as written."""

    def rows(self, run_file: RunFile, table: Any, *, namespace: bool) -> Any:
        """Return the converted rows."""
        return table

    def firsts(self, run_file: RunFile) -> Any:
        """Return the first sort key of each block."""
        return run_file.firsts

    def deletions(self, run_file: RunFile) -> int:
        """Return the number of tombstones; at least 1 if rows may have expired."""
        return run_file.deletions

    def is_current(self, run_file: RunFile) -> bool:
        """Return whether the rows have the current types, so that a snapshot need not rewrite them."""
        return True


class PositionForm(RowForm):
    """
    Row form without values, which needs no types of values.

    :param user_key_type: Arrow type of the user keys; ``None`` unless the state is a map.
    """

    def __init__(self, keys: KeySerializer, user_key_type: Any) -> None:
        self.layout = StateLayout.of(keys, pa.null(), user_key_type)

    def rows(self, run_file: RunFile, table: Any, *, namespace: bool) -> Any:
        """Return the rows with null values."""
        index = table.schema.get_field_index(VALUE)
        table = table.set_column(index, VALUE, pa.nulls(table.num_rows))
        return self.layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)


class StateRowForm(RowForm):
    """
    Row form with the current types of a state. Rows are migrated block by block.

    :param restored: Schema of the state in the checkpoint.
    :param now_ms: Last use of values that gain a time to live, in milliseconds.
    """

    def __init__(self, state: RegisteredState, restored: StateSchema, layout: StateLayout, now_ms: int) -> None:
        self.state = state
        self.schema = state.schema()
        self.layout = layout
        self._restored = restored
        self._now_ms = now_ms
        self._migrations: list[tuple[StateSchema, CellMigration | None]] = []

    def rows(self, run_file: RunFile, table: Any, *, namespace: bool) -> Any:
        """Return the rows in the current types. Expired rows become tombstones."""
        migration = self.migration(run_file.state)
        if migration is not None:
            table = self._migrated(migration, table)
        return self.layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)

    def firsts(self, run_file: RunFile) -> Any:
        table, migration = run_file.firsts, self.migration(run_file.state)
        if migration is not None and migration.migrate_keys is not None:
            index = table.schema.get_field_index(USER_KEY)
            table = table.set_column(index, USER_KEY, migration.migrate_keys(single(table.column(index))))
        return table

    def deletions(self, run_file: RunFile) -> int:
        migration = self.migration(run_file.state)
        lets_expire = migration is not None and migration.lifetime_ms is not None and self.state.ttl is None
        return max(1, run_file.deletions) if lets_expire else run_file.deletions

    def is_current(self, run_file: RunFile) -> bool:
        return self.migration(run_file.state) is None

    def migration(self, old: StateSchema) -> CellMigration | None:
        """
        Return the migration of rows with a schema, or ``None`` if they are current.

        :raises StateMigrationError: if the types are incompatible.
        """
        for known, migration in self._migrations:
            if known is old or known == old:
                return migration
        # Rows of all releases expire after the last known time to live.
        rows = replace(old, ttl_ms=self._restored.ttl_ms) if old.expires and self._restored.expires else old
        migration = None if old == self.schema else CellMigration.of(rows, self.state, self._now_ms)
        self._migrations.append((old, migration))
        return migration

    def migrates_keys(self, run_file: RunFile) -> bool:
        """Return whether the user keys of a run file are migrated, which may change their order."""
        migration = self.migration(run_file.state)
        return migration is not None and migration.migrate_keys is not None

    def _migrated(self, migration: CellMigration, table: Any) -> Any:
        columns = dict(zip(table.schema.names, table.columns, strict=True))
        columns[VALUE], expired = migration.migrated(single(columns[VALUE]))
        if migration.migrate_keys is not None:
            columns[USER_KEY] = migration.migrate_keys(single(columns[USER_KEY]))
        if expired is not None:
            columns[DELETED] = pc.or_(single(columns[DELETED]), expired) if DELETED in columns else expired
        schema = self.layout.schema(
            namespace=NAMESPACE in columns, deleted=DELETED in columns, partial=PARTIAL in columns
        )
        return pa.table([columns[name] for name in schema.names], schema=schema)


@dataclass(frozen=True, slots=True)
class CellMigration:
    """
    Migration of the types and timestamps of cells.

    Values that gain a time to live get the current time as their last use. Expired values of a state that loses it are
    dropped.
    """

    state: RegisteredState
    migrate: _Migrate | None
    migrate_keys: _Migrate | None
    lifetime_ms: int | None
    """Time to live of the restored values in milliseconds; ``None`` if they do not carry the time of their last use."""
    now_ms: int

    @classmethod
    def of(cls, old: StateSchema, new: RegisteredState, now_ms: int) -> CellMigration | None:
        """
        Return the migration of restored cells, or ``None`` if they need none.

        :raises StateMigrationError: if the types are incompatible.
        """
        migrate, migrate_keys = compatibility_of(new.name, new.serializer, old.value).migrate, None
        if new.key_serializer is not None and old.key is not None:
            migrate_keys = compatibility_of(new.name, new.key_serializer, old.key, are_keys=True).migrate
        changes = migrate or migrate_keys or old.expires is not (new.ttl is not None)
        return cls(new, migrate, migrate_keys, old.ttl_ms, now_ms) if changes else None

    def migrated(self, cells: Any) -> tuple[Any, Any]:
        """Return migrated cells, and a boolean array that marks expired ones; ``None`` if no cell is expired."""
        if self.state.kind is not StateKind.LIST:
            return self._elements(cells)
        elements, expired = self._elements(cells.flatten())
        if expired is None:
            return with_elements(cells, elements), None
        lists = lists_with(cells, elements, pc.invert(expired))
        return lists, pc.equal(pc.list_value_length(lists), pa.scalar(0, pa.int32()))

    def _elements(self, elements: Any) -> tuple[Any, Any]:
        migrate = self.migrate or (lambda values: values)
        if self.lifetime_ms is None:
            new = migrate(elements)
            now = pa.scalar(self.now_ms, pa.int64())
            return (new if self.state.ttl is None else timed_cells(new, pa.repeat(now, len(new)))), None
        new, times = migrate(pc.struct_field(elements, "value")), pc.struct_field(elements, "last_access_ms")
        if self.state.ttl is not None:
            return timed_cells(new, times), None
        # A null timestamp belongs to a null value.
        return new, pc.fill_null(pc.less_equal(times, self.now_ms - self.lifetime_ms), True)
