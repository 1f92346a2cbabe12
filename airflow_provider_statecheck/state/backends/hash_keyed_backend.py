"""Keyed state as objects in memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from airflow_provider_statecheck.checkpoint.states.handles import CheckpointedStateScope, KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.backends.captured_state import CapturedState
from airflow_provider_statecheck.state.backends.full_snapshot import FullSnapshot
from airflow_provider_statecheck.state.backends.full_snapshot_reader import FullSnapshotReader
from airflow_provider_statecheck.state.backends.hash_map_table import HashMapTable
from airflow_provider_statecheck.state.backends.hash_state_table import HashStateTable
from airflow_provider_statecheck.state.backends.restored_rows import RestoredRows
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.serializers.serializer import Outcome, SerializerSnapshot
from airflow_provider_statecheck.storage.views.state_files import discard_state, open_input_stream

if TYPE_CHECKING:
    from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
    from airflow_provider_statecheck.state.keyed.tables import MapTable, StateTable
    from airflow_provider_statecheck.state.keys.key_serializer import KeySerializer
    from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
    from airflow_provider_statecheck.storage.views.state_stream import CheckpointStateOutputStream
    from airflow_provider_statecheck.storage.views.stream_factory import CheckpointStreamFactory

OpenOutput = Callable[["CheckpointStreamFactory"], "CheckpointStateOutputStream"]


class HashKeyedStateBackend(AbstractKeyedStateBackend):
    """
    Keeps all state in memory and writes all of it in each snapshot.

    :param storage: From which state is restored.
    :param open_output: Opens the stream of a snapshot; by default one of the checkpoint's own.
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
        Begin with the state of handles; keys of other ranges are skipped.

        :raises CorruptStateError: if it was changed.
        :raises IncompatibleCheckpointError: if it is of another backend, version or number of key groups.
        :raises StorageError: if the storage fails.
        :raises StateMigrationError: if the keys are of another type.
        """
        for handle in handles:
            self._read(handle)

    def num_entries(self) -> int:
        """Return for how many keys and namespaces there is state, summed over all states."""
        tables: list[Any] = list(self._tables.values())
        unclaimed = sum(len(rows) for found in self._restored.values() for rows in found)
        return sum(len(table.groups) for table in tables) + unclaimed

    def snapshot(self, checkpoint_id: int, timestamp: int, streams: CheckpointStreamFactory) -> FullSnapshot:
        """Capture the state as it is now; what is returned writes it, and later changes are not in it."""
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
        """Give up the state and end the snapshots that still run; without effect the second time."""
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

    def _read(self, handle: KeyedStateHandle) -> None:
        reader = FullSnapshotReader(
            lambda stream: open_input_stream(self._storage, stream), self.number_of_key_groups, self.key_group_range
        )
        found = reader.read(handle)
        if found is None:
            return
        header, states = found
        self._require_keys(header.schemas.key)
        for rows in states:
            self._restored.setdefault(rows.schema.name, []).append(RestoredRows(rows))
            self._unclaimed.setdefault(rows.schema.name, rows.schema)

    def _require_keys(self, old: SerializerSnapshot | None) -> None:
        verdict = None if old is None else self.key_serializer.resolve_compatibility(old)
        if verdict is not None and verdict.outcome is Outcome.INCOMPATIBLE:
            raise StateMigrationError(f"Expected keys that fit the restored state, but {verdict.reason}.")


def _open_exclusive(streams: CheckpointStreamFactory) -> CheckpointStateOutputStream:
    return streams.create_checkpoint_state_output_stream(CheckpointedStateScope.EXCLUSIVE)
