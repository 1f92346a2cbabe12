"""Restore of keyed state from Arrow files, including rows of earlier forms."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Protocol

from airflow_provider_statecheck.checkpoint.states.handles import (
    FileStateHandle,
    IncrementalKeyedStateHandle,
    KeyedStateHandle,
    SegmentFileStateHandle,
)
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import IncompatibleCheckpointError, StateMigrationError
from airflow_provider_statecheck.state.arrow.layout import (
    DELETED,
    NAMESPACE,
    USER_KEY,
    VALUE,
    StateLayout,
    order_codes,
    position_columns,
    single,
)
from airflow_provider_statecheck.state.arrow.part_files import Part, Parts
from airflow_provider_statecheck.state.arrow.snapshot_metadata import SnapshotMeta, StateFiles, decode_meta
from airflow_provider_statecheck.state.keyed.cell_migration import CellMigration
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.schemas import StateSchema
from airflow_provider_statecheck.state.serializers.serializer import Outcome
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.uris import redact
from airflow_provider_statecheck.storage.views.state_files import read_state

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer


BACKEND_ID = "arrow"
"""Of all subtasks alike: after a change of parallelism two of them name the same file, and it must be one for the registry."""


def restored_files(
    handles: Sequence[KeyedStateHandle],
    storage: CheckpointStorage,
    keys: KeySerializer,
    number_of_key_groups: int,
    owned: KeyGroupRange,
) -> dict[str, StateFiles]:
    """
    Return the files of each state by its name; only the description in each handle is read.

    :raises CheckpointNotFoundError: if a description is missing.
    :raises CorruptStateError: if it was changed.
    :raises IncompatibleCheckpointError: if another backend, a newer version or one of other key groups wrote it.
    :raises StateMigrationError: if the keys are of another type.
    """
    states: dict[str, list[StateFiles]] = {}
    for handle in sorted(handles, key=lambda handle: handle.key_group_range.start):
        meta = _read(handle, storage)
        _require_fitting(meta, keys, number_of_key_groups)
        for files in meta.states:
            readable = owned.intersection(handle.key_group_range)
            states.setdefault(files.state.name, []).append(_within(files, readable))
    return {name: _joined(found) for name, found in states.items()}


def _read(handle: KeyedStateHandle, storage: CheckpointStorage) -> SnapshotMeta:
    if not isinstance(handle, IncrementalKeyedStateHandle) or handle.backend_id != BACKEND_ID or handle.meta is None:
        found = f"that of {handle.backend_id}" if isinstance(handle, IncrementalKeyedStateHandle) else "a full snapshot"
        raise IncompatibleCheckpointError(
            f"Expected state that the state backend arrow wrote, found {found}; restore it with the backend that wrote it."
        )
    stream = handle.meta
    is_file = isinstance(stream, FileStateHandle | SegmentFileStateHandle)
    where = redact(stream.uri) if is_file else f"checkpoint {handle.checkpoint_id}"  # type: ignore[union-attr]
    return decode_meta(read_state(storage, stream), dict((*handle.shared, *handle.private)), where)


def _require_fitting(meta: SnapshotMeta, keys: KeySerializer, number_of_key_groups: int) -> None:
    if meta.number_of_key_groups != number_of_key_groups:
        raise IncompatibleCheckpointError(
            f"Expected state of {number_of_key_groups} key groups, found one of {meta.number_of_key_groups}; the maximum "
            f"parallelism of an operator cannot be changed."
        )
    verdict = keys.resolve_compatibility(meta.key)
    if verdict.outcome is Outcome.INCOMPATIBLE:
        raise StateMigrationError(f"Expected keys that fit the restored state, but {verdict.reason}.")


def _within(files: StateFiles, owned: KeyGroupRange) -> StateFiles:
    runs = (tuple(filter(None, (part.within(owned) for part in parts))) for parts in files.runs)
    return StateFiles(files.state, tuple(parts for parts in runs if parts))


def _joined(found: Sequence[StateFiles]) -> StateFiles:
    """Return the files of several subtasks, whose key groups differ, with as few runs as one of them had."""
    levels = zip_longest(*(reversed(files.runs) for files in found), fillvalue=())
    runs = [_ordered(part for parts in level for part in parts) for level in levels]
    return StateFiles(found[0].state, tuple(reversed(runs)))


def _ordered(parts: Iterable[Part]) -> Parts:
    return tuple(sorted(parts, key=lambda part: int(part.key_groups[0])))


class RowForm(Protocol):
    """Brings the rows of a part into the columns and types that a reader wants."""

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return rows."""
        ...

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block."""
        ...

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone; at least one if some may have expired since."""
        ...

    def is_current(self, part: Part) -> bool:
        """Tell whether rows need not be written again to be as the state is now."""
        ...


class PositionForm:
    """
    Leaves the values out, so that it needs none of their types.

    :param layout: Its values are of the null type.
    """

    def __init__(self, layout: StateLayout) -> None:
        self._layout = layout

    @classmethod
    def of(cls, keys: KeySerializer, user_key_type: Any) -> PositionForm:
        """Return the form for keys of a serializer."""
        import pyarrow as pa

        return cls(StateLayout.of(keys, pa.null(), user_key_type))

    @property
    def layout(self) -> StateLayout:
        """Return the columns of the rows."""
        return self._layout

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """Return rows without their values."""
        import pyarrow as pa

        index = table.schema.get_field_index(VALUE)
        table = table.set_column(index, VALUE, pa.nulls(table.num_rows))
        return self._layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block as it was written."""
        return _with_namespace(self._layout, part.firsts, namespace=namespace)

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone."""
        return part.deletions

    def is_current(self, part: Part) -> bool:
        """Tell that rows stay as they were written."""
        return True


class StateRowForm:
    """
    Brings the rows of a part into the columns and types of a state, block by block.

    :param state: The state as it is now.
    :param restored: As what it was written last.
    :param layout: Its columns.
    :param now_ms: When values that have no time were last used.
    """

    def __init__(self, state: RegisteredState, restored: StateSchema, layout: StateLayout, now_ms: int) -> None:
        self._state = state
        self._restored = restored
        self._schema = state.schema()
        self._layout = layout
        self._now_ms = now_ms
        self._migrations: list[tuple[StateSchema, CellMigration | None]] = []

    def require(self, part: Part) -> None:
        """
        Refuse a part that cannot go on.

        :raises StateMigrationError: if the types do not fit.
        """
        self._migration(part.state)

    def rows(self, part: Part, table: Any, *, namespace: bool) -> Any:
        """
        Return rows in the form of now; those that expired say that older ones are gone.

        :raises StateMigrationError: if the new user keys of a map are in another order.
        """
        migration = self._migration(part.state)
        if migration is not None:
            table = self._migrated(migration, table)
        return self._layout.conform(table, namespace=namespace, deleted=DELETED in table.schema.names)

    def firsts(self, part: Part, *, namespace: bool) -> Any:
        """Return the first position of each block in the form of now."""
        table, migration = part.firsts, self._migration(part.state)
        if migration is not None and migration.migrate_keys is not None:
            index = table.schema.get_field_index(USER_KEY)
            table = table.set_column(index, USER_KEY, migration.migrate_keys(single(table.column(index))))
        return _with_namespace(self._layout, table, namespace=namespace)

    def deletions(self, part: Part) -> int:
        """Return how many rows only say that something older is gone; at least one if some may have expired since."""
        migration = self._migration(part.state)
        return part.deletions if migration is None or not migration.lets_expire else max(1, part.deletions)

    def is_current(self, part: Part) -> bool:
        """Tell whether rows were written in the form of now."""
        return self._migration(part.state) is None

    def _migration(self, old: StateSchema) -> CellMigration | None:
        for known, migration in self._migrations:
            if known is old or known == old:
                return migration
        migration = None if old == self._schema else CellMigration.of(self._lately(old), self._state, self._now_ms)
        self._migrations.append((old, migration))
        return migration

    def _lately(self, old: StateSchema) -> StateSchema:
        """Return as what rows were written, with the time to live that they had last."""
        return replace(old, ttl_ms=self._restored.ttl_ms) if old.ttl and self._restored.ttl else old

    def _migrated(self, migration: CellMigration, table: Any) -> Any:
        import pyarrow as pa
        import pyarrow.compute as pc

        have = dict(zip(table.schema.names, table.columns, strict=True))
        user_keys = single(have[USER_KEY]) if USER_KEY in have else None
        new = migration.migrated(single(have[VALUE]), user_keys)
        have |= {VALUE: new.cells, USER_KEY: new.user_keys}
        if new.expired is not None:
            have[DELETED] = pc.or_(single(have[DELETED]), new.expired) if DELETED in have else new.expired
        wanted = self._layout.schema(namespace=NAMESPACE in have, deleted=DELETED in have)
        migrated = pa.table([have[name] for name in wanted.names], schema=wanted)
        if migration.migrate_keys is not None:
            self._require_order(migrated)
        return migrated

    def _require_order(self, table: Any) -> None:
        codes = order_codes(position_columns(table))
        if (codes[1:] <= codes[:-1]).any():
            raise StateMigrationError(
                f"Expected the new keys of the map state {self._state.name} to be different and in the order of the old ones, "
                f"found others; use another name for a state with such keys, and move the entries in the function."
            )


def _with_namespace(layout: StateLayout, table: Any, *, namespace: bool) -> Any:
    import pyarrow as pa

    if not namespace or NAMESPACE in table.schema.names:
        return table
    none = pa.repeat(pa.scalar("", pa.string()), table.num_rows)
    return table.add_column(1 + len(layout.key_fields), NAMESPACE, none)
