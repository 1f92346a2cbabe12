"""Keyed state backend with Python objects in memory and copy-on-write snapshots."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.states.handles import (
    CheckpointedStateScope,
    KeyedStateHandle,
    KeyGroupRange,
    KeyGroupsStateHandle,
)
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.arrow.restore import restored_files
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot, FullSnapshotReader
from airflow_provider_statecheck.state.backends.state_backend import (
    RestoredRows,
    StateRows,
    arrow_schema_of,
    blocks_of,
    repeated,
    rows_of_tables,
)
from airflow_provider_statecheck.state.descriptors import StateKind
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keyed.expiry import unexpired
from airflow_provider_statecheck.state.keyed.registered_state import VOID_NAMESPACE
from airflow_provider_statecheck.state.reading.checkpoint_states import StateContent
from airflow_provider_statecheck.state.reading.state_reader import StateRowsReader, StateView, columns_of
from airflow_provider_statecheck.state.serializers.serializer import Outcome, SerializerSnapshot
from airflow_provider_statecheck.storage.views.state_files import discard_state, open_input_stream

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import MapTable, RegisteredState, StateTable
    from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeySerializer
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.views.state_streams import (
        CheckpointStateOutputStream,
        CheckpointStreamFactory,
    )


Group = dict[Any, Any]
"""Cells of one key group and namespace, by key."""
Version = dict[str, dict[int, Group]]
"""Key groups of each namespace at one moment; immutable."""
OpenOutput = Callable[["CheckpointStreamFactory"], "CheckpointStateOutputStream"]

_NO_ENTRIES: dict[Any, Any] = {}


class HashKeyedStateBackend(AbstractKeyedStateBackend):
    """
    Keyed state in memory, written completely by each snapshot.

    :param storage: Storage of the restored state.
    :param open_output: Opens the stream of a snapshot; an exclusive stream of the checkpoint by default.
    """

    def __init__(
        self,
        *,
        key_serializer: KeySerializer,
        number_of_key_groups: int,
        key_group_range: KeyGroupRange,
        now_ms: Callable[[], int],
        storage: CheckpointStorage,
        open_output: OpenOutput | None = None,
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
        self._open_output = open_output or _open_exclusive
        self._restored: dict[str, list[RestoredRows]] = {}
        self._snapshots: WeakSet[FullSnapshot] = WeakSet()

    def restore(self, handles: Sequence[KeyedStateHandle]) -> None:
        """
        Restore the state of handles. Keys of other subtasks are skipped.

        :raises CorruptStateError: if the state does not match its checksum.
        :raises IncompatibleCheckpointError: if a newer version wrote the state, or with another number of key groups.
        :raises StorageError: if the storage fails.
        :raises StateMigrationError: if the keys have another type.
        """
        for handle in handles:
            read = self._read if isinstance(handle, KeyGroupsStateHandle) else self._read_runs
            for rows in read(handle):
                self._restored.setdefault(rows.schema.name, []).append(RestoredRows(rows))
                self._unclaimed.setdefault(rows.schema.name, rows.schema)

    def num_entries(self) -> int:
        """Return the number of pairs of key and namespace with state, summed over all states."""
        tables: list[Any] = list(self._tables.values())
        unclaimed = sum(len(rows) for found in self._restored.values() for rows in found)
        return sum(len(table.groups) for table in tables) + unclaimed

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> FullSnapshot:
        """Capture the current state. The returned snapshot writes it without later changes."""
        tables: dict[str, Any] = self._tables
        now_ms = self._now_ms()
        captured = [
            CapturedState(state, tables[name], self.key_serializer, now_ms) for name, state in self._registered.items()
        ]
        snapshot = FullSnapshot(
            key=self.key_serializer.snapshot(),
            number_of_key_groups=self.number_of_key_groups,
            key_group_range=self.key_group_range,
            states=(*captured, *(rows for found in self._restored.values() for rows in found)),
            open_stream=lambda: self._open_output(streams),
            discard=lambda handle: discard_state(self._storage, handle),
        )
        self._snapshots.add(snapshot)
        return snapshot

    def dispose(self) -> None:
        """Release the state and cancel running snapshots; idempotent."""
        for snapshot in list(self._snapshots):
            snapshot.cancel()
        self._restored.clear()
        super().dispose()

    def _create_table(self, state: RegisteredState) -> StateTable | MapTable:
        table = HashMapTable() if state.is_map else HashStateTable(state, self.key_serializer)
        for rows in self._restored.get(state.name, ()):
            rows.fill(table, state, self.key_serializer, self._now_ms())
        self._restored.pop(state.name, None)
        return table

    def _read(self, handle: KeyedStateHandle) -> tuple[StateRows, ...]:
        reader = FullSnapshotReader(
            lambda stream: open_input_stream(self._storage, stream), self.number_of_key_groups, self.key_group_range
        )
        found = reader.read(handle)
        if found is None:
            return ()
        self._require_keys(found[0].schemas.key)
        return found[1]

    def _read_runs(self, handle: KeyedStateHandle) -> Iterator[StateRows]:
        """Return the states of a canonical savepoint, or of a checkpoint of the Arrow backend."""
        groups, owned = self.number_of_key_groups, self.key_group_range
        for files in restored_files([handle], self._storage, self.key_serializer, groups, owned).values():
            content = StateContent(
                uid="",
                schema=files.state,
                key=self.key_serializer.snapshot(),
                max_parallelism=groups,
                handles=(handle,),
                taken_at_ms=self._now_ms(),
            )
            columns = columns_of(content, StateView())
            tables = StateRowsReader(self._storage, content, columns).merged(files.runs)
            yield rows_of_tables(columns.state, columns.layout, self.key_serializer, tables)

    def _require_keys(self, old: SerializerSnapshot | None) -> None:
        verdict = None if old is None else self.key_serializer.resolve_compatibility(old)
        if verdict is not None and verdict.outcome is Outcome.INCOMPATIBLE:
            raise StateMigrationError(
                f"Expected keys that fit the restored state, found other keys: {verdict.reason}; keep their type."
            )


def _open_exclusive(streams: CheckpointStreamFactory) -> CheckpointStateOutputStream:
    return streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)


class CapturedState:
    """
    Version of a table at the start of a snapshot.

    Lists are encoded immediately, because their state modifies them in place. Other cells are encoded by the snapshot.

    :param state: State of the table.
    :param table: Table to capture.
    :param key_serializer: Serializer of the keys.
    :param now_ms: Time of the snapshot in milliseconds; expired values are not written.
    """

    def __init__(
        self,
        state: RegisteredState,
        table: HashStateTable | HashMapTable,
        key_serializer: KeySerializer,
        now_ms: int,
    ) -> None:
        self._state = state
        self._table = table
        self._key_serializer = key_serializer
        self._now_ms = now_ms
        self._version: Version | None = table.groups.version()
        self._rows: StateRows | None = None
        if state.kind is StateKind.LIST:
            self.rows()

    def rows(self) -> StateRows:
        """
        Return the rows of the captured state.

        :raises UnsupportedStateError: if a value does not fit the type of the state.
        """
        if self._rows is None:
            assert self._version is not None  # noqa: S101 - for the type checker
            self._rows = self._encode(self._version)
            self._version = None
        return self._rows

    def _encode(self, version: Version) -> StateRows:
        schema = arrow_schema_of(self._state, self._key_serializer)
        key_groups, batch = self._columns(version, schema)
        return StateRows(self._state.schema(), schema, tuple(blocks_of(key_groups, batch)))

    def _columns(self, version: Version, schema: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        groups = sorted((key_group, namespace) for namespace, found in version.items() for key_group in found)
        rows_by_group = [self._table.rows_of(version[namespace][key_group]) for key_group, namespace in groups]
        keys, user_keys, cells = ([row for rows in rows_by_group for row in rows[i] or ()] for i in range(3))
        counts = [len(rows[0]) for rows in rows_by_group]
        namespaces = repeated([namespace for _, namespace in groups], counts, pa.string())
        columns = [*self._key_columns(keys), namespaces, *self._user_key_columns(user_keys)]
        columns.append(self._state.cells.write(cells))
        key_groups = repeated([key_group for key_group, _ in groups], counts, pa.int32())
        return self._without_expired(key_groups, pa.RecordBatch.from_arrays(columns, schema=schema))

    def _key_columns(self, keys: list[Any]) -> list[Any]:
        import pyarrow as pa

        # Stored keys are normalized, and normalizing them again would dominate the cost.
        types = self._key_serializer.arrow_types
        columns = [keys] if len(types) == 1 else (list(zip(*keys, strict=True)) or [()] * len(types))
        return [pa.array(column, wanted) for column, wanted in zip(columns, types, strict=True)]

    def _user_key_columns(self, user_keys: list[Any]) -> list[Any]:
        serializer = self._state.key_serializer
        return [] if serializer is None else [serializer.to_arrow(user_keys)]

    def _without_expired(self, key_groups: Any, batch: Any) -> tuple[Any, Any]:
        import pyarrow as pa

        if self._state.ttl is None:
            return key_groups, batch
        cells, live = unexpired(self._state, batch.column(batch.num_columns - 1), self._now_ms)
        batch = pa.RecordBatch.from_arrays([*batch.columns[:-1], cells], schema=batch.schema)
        return key_groups.filter(live), batch.filter(live)


class VersionedGroups:
    """
    Key groups that are copied on the first change after a version was taken.

    Groups that may be modified in place are also in ``writable``, which saves a check for versions in each access.

    :param copy_group: Copies a group with its mutable contents.
    """

    __slots__ = ("_copy_group", "readable", "writable")

    def __init__(self, copy_group: Callable[[Group], Group]) -> None:
        self._copy_group = copy_group
        self.readable: Version = {}
        self.writable: Version = {}

    def own(self, namespace: str, key_group: int) -> Group:
        """Return a group for modification, created or copied if necessary."""
        groups = self.readable.setdefault(namespace, {})
        owned = self.writable.setdefault(namespace, {})
        if key_group not in owned:
            groups[key_group] = owned[key_group] = self._copy_group(groups.get(key_group, {}))
        return owned[key_group]

    def drop(self, namespace: str, key_group: int) -> None:
        """Remove an empty group."""
        for groups in (self.readable, self.writable):
            del groups[namespace][key_group]
            if not groups[namespace]:
                del groups[namespace]

    def version(self) -> Version:
        """Return the current groups. Later changes apply to copies."""
        self.writable.clear()
        return {namespace: dict(groups) for namespace, groups in self.readable.items()}

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the current keys of a namespace."""
        return iter([key for group in self.readable.get(namespace, {}).values() for key in group])

    def __len__(self) -> int:
        """Return the number of keys in all namespaces."""
        return sum(len(group) for groups in self.readable.values() for group in groups.values())


class HashStateTable:
    """
    State table in memory.

    :param state: State of the table.
    :param key_serializer: Serializer of the keys.
    """

    def __init__(self, state: RegisteredState, key_serializer: KeySerializer) -> None:
        self.groups = VersionedGroups(dict)
        self._readable = self.groups.readable
        self._writable = self.groups.writable
        self._cells = state.cells
        self._key_serializer = key_serializer

    def get(self, key: Any, key_group: int, namespace: str) -> Any:
        """Return the value, or ``None`` if there is none."""
        try:
            return self._readable[namespace][key_group].get(key)
        except KeyError:
            return None

    def put(self, key: Any, key_group: int, namespace: str, value: Any) -> None:
        """Set the value, which must not be ``None``."""
        try:
            self._writable[namespace][key_group][key] = value
        except KeyError:
            self.groups.own(namespace, key_group)[key] = value

    def remove(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove the value, if there is one."""
        if self.get(key, key_group, namespace) is None:
            return
        group = self.groups.own(namespace, key_group)
        del group[key]
        if not group:
            self.groups.drop(namespace, key_group)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have a value; concurrent changes are allowed and not visible."""
        return self.groups.keys(namespace)

    def get_batch(self, keys: KeyBatch) -> Any:
        """Return an Arrow array of the values of distinct keys without a namespace; null for a key without a value."""
        return self._cells.write([self.get(key, group, VOID_NAMESPACE) for key, group in self._keys_of(keys)])

    def put_batch(self, keys: KeyBatch, values: Any) -> None:
        """Set the values of distinct keys without a namespace from an Arrow array; null removes."""
        cells = self._cells.read(values)
        for (key, key_group), cell in zip(self._keys_of(keys), cells, strict=True):
            if cell is None:
                self.remove(key, key_group, VOID_NAMESPACE)
            else:
                self.put(key, key_group, VOID_NAMESPACE, cell)

    def rows_of(self, group: Group) -> tuple[list[Any], None, list[Any]]:
        """Return the keys and values of a group, and ``None`` for its user keys."""
        return list(group), None, list(group.values())

    def restore(self, key_group: int, namespace: str, key: Any, user_key: None, cell: Any) -> None:
        """Set a restored value."""
        self.put(key, key_group, namespace, cell)

    def _keys_of(self, keys: KeyBatch) -> Iterator[tuple[Any, int]]:
        return zip(self._key_serializer.from_columns(keys.columns), keys.key_groups.to_pylist(), strict=True)


class HashMapTable:
    """Map table in memory. Keys without entries are absent."""

    def __init__(self) -> None:
        self.groups = VersionedGroups(_copied)
        self._readable = self.groups.readable
        self._writable = self.groups.writable

    def get(self, key: Any, key_group: int, namespace: str, user_key: Any) -> Any:
        """Return the value of an entry, or ``None`` if there is none."""
        try:
            return self._readable[namespace][key_group][key].get(user_key)
        except KeyError:
            return None

    def contains(self, key: Any, key_group: int, namespace: str, user_key: Any) -> bool:
        """Return whether there is an entry."""
        return user_key in self._entries(key, key_group, namespace)

    def put(self, key: Any, key_group: int, namespace: str, user_key: Any, value: Any) -> None:
        """Set an entry."""
        try:
            self._writable[namespace][key_group][key][user_key] = value
        except KeyError:
            self.groups.own(namespace, key_group).setdefault(key, {})[user_key] = value

    def remove(self, key: Any, key_group: int, namespace: str, user_key: Any) -> None:
        """Remove an entry, if there is one."""
        if not self.contains(key, key_group, namespace, user_key):
            return
        entries = self.groups.own(namespace, key_group)[key]
        del entries[user_key]
        if not entries:
            self.clear(key, key_group, namespace)

    def entries(self, key: Any, key_group: int, namespace: str) -> Iterator[tuple[Any, Any]]:
        """Return the current entries; concurrent changes are allowed and not visible."""
        return iter(list(self._entries(key, key_group, namespace).items()))

    def is_empty(self, key: Any, key_group: int, namespace: str) -> bool:
        """Return whether the key has no entries."""
        return not self._entries(key, key_group, namespace)

    def clear(self, key: Any, key_group: int, namespace: str) -> None:
        """Remove all entries of the key."""
        if key not in self._readable.get(namespace, {}).get(key_group, {}):
            return
        group = self.groups.own(namespace, key_group)
        del group[key]
        if not group:
            self.groups.drop(namespace, key_group)

    def keys(self, namespace: str) -> Iterator[Any]:
        """Return the distinct keys that have an entry; concurrent changes are allowed and not visible."""
        return self.groups.keys(namespace)

    def rows_of(self, group: Group) -> tuple[list[Any], list[Any], list[Any]]:
        """Return the keys, user keys and values of the entries of a group."""
        keys = [key for key, entries in group.items() for _ in entries]
        user_keys = [user_key for entries in group.values() for user_key in entries]
        return keys, user_keys, [value for entries in group.values() for value in entries.values()]

    def restore(self, key_group: int, namespace: str, key: Any, user_key: Any, cell: Any) -> None:
        """Set a restored entry."""
        self.put(key, key_group, namespace, user_key, cell)

    def _entries(self, key: Any, key_group: int, namespace: str) -> dict[Any, Any]:
        try:
            found: dict[Any, Any] = self._readable[namespace][key_group][key]
        except KeyError:
            return _NO_ENTRIES
        return found


def _copied(group: Group) -> Group:
    return {key: dict(entries) for key, entries in group.items()}
