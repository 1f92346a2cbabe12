"""Harness for the contract suites of keyed state, with sample data for each kind of state."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.options import DEFAULT_LOCATION
from airflow_provider_statecheck.checkpoint.states.assignment import redistribute_keyed
from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.state.backends.state_backend import StateBackend, StateEnvironment
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keyed.abstract_backend import AbstractKeyedStateBackend
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStorageAccess, FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

KEY_GROUPS = 16
OPERATOR = "totals"
"""The name of the operator in errors."""
ATTEMPT = AttemptRef(job_id=job_id_of("suite"), operator_id=operator_id_of("keyed"), epoch=1)
Handles = tuple[KeyedStateHandle, ...]


class KeyedHarness:
    """
    An operator with keyed state.

    :param backend: The state backend under test.
    :param storage: The storage of snapshots.
    :param key_types: The Arrow types of the key's columns, by default one string column.
    """

    def __init__(
        self, backend: StateBackend, storage: CheckpointStorage, key_types: Sequence[Any] | None = None
    ) -> None:
        import pyarrow as pa

        types = [pa.string()] if key_types is None else key_types
        self.backend = backend
        self.storage = storage
        self.keys = KeySerializer(tuple(KeyField(f"k{index}", key_type) for index, key_type in enumerate(types)))
        self.now_ms = 1_000_000
        self._checkpoint_id = 0
        self._opened: list[AbstractKeyedStateBackend] = []

    def open(
        self, restored: Sequence[KeyedStateHandle] = (), index: int = 0, parallelism: int = 1
    ) -> AbstractKeyedStateBackend:
        """Return the keyed state backend of a subtask."""
        key_groups = key_group_range_of(index, parallelism, KEY_GROUPS)
        return self.open_range(key_groups, restored, index, parallelism)

    def open_range(
        self,
        key_groups: KeyGroupRange,
        restored: Sequence[KeyedStateHandle] = (),
        index: int = 0,
        parallelism: int = 1,
    ) -> AbstractKeyedStateBackend:
        """Return the keyed state backend of a range of key groups."""
        opened = self.backend.create_keyed_state_backend(
            self._environment(index, parallelism),
            ATTEMPT.job_id,
            ATTEMPT.operator_id,
            self.keys,
            KEY_GROUPS,
            key_groups,
            restored=tuple(restored),
        )
        self._opened.append(opened)
        return opened

    def streams(self) -> FsCheckpointStreamFactory:
        """Return the stream factory of the next snapshot, which writes all state to files."""
        self._checkpoint_id += 1
        writing = StateWriting(epoch=ATTEMPT.epoch, inline_threshold=0)
        view = FsCheckpointStorageAccess(self.storage, ATTEMPT, writing=writing)
        return view.resolve_checkpoint_storage_location(self._checkpoint_id, DEFAULT_LOCATION)

    def snapshot(self, backend: AbstractKeyedStateBackend) -> Any:
        """Return a snapshot that is not yet written."""
        streams = self.streams()
        return backend.snapshot(self._checkpoint_id, self.now_ms, streams)

    def save(self, backend: AbstractKeyedStateBackend) -> Handles:
        """Write a snapshot and return its handles, an empty tuple if there is no state."""
        handle = self.snapshot(backend).run().handle
        return () if handle is None else (handle,)

    def reopen(
        self, backends: Sequence[AbstractKeyedStateBackend], parallelism: int
    ) -> list[AbstractKeyedStateBackend]:
        """Return subtasks restored from snapshots of other subtasks."""
        return self.restore([self.snapshot(backend) for backend in backends], parallelism)

    def restore(self, snapshots: Sequence[Any], parallelism: int) -> list[AbstractKeyedStateBackend]:
        """Write snapshots and return the subtasks restored from them."""
        written = [snapshot.run().handle for snapshot in snapshots]
        handles = [() if handle is None else (handle,) for handle in written]
        assigned = redistribute_keyed(handles, parallelism, KEY_GROUPS)
        return [self.open(own, index, parallelism) for index, own in enumerate(assigned)]

    def reopened(self, backend: AbstractKeyedStateBackend) -> AbstractKeyedStateBackend:
        """Return the only subtask restored from a snapshot of another subtask."""
        (restored,) = self.reopen([backend], 1)
        return restored

    def owner_of(self, key: Any, backends: Sequence[AbstractKeyedStateBackend]) -> AbstractKeyedStateBackend:
        """Return the subtask that owns a key."""
        key_group = self.keys.key_group_of(key, KEY_GROUPS)
        (owner,) = (backend for backend in backends if key_group in backend.key_group_range)
        return owner

    def files(self) -> set[str]:
        """Return the files of all snapshots."""
        return set(self.storage.list_files(self.storage.base_uri))

    def close(self) -> None:
        """Dispose of all opened backends."""
        for backend in self._opened:
            backend.dispose()

    def _environment(self, index: int, parallelism: int) -> StateEnvironment:
        return StateEnvironment(
            storage=self.storage,
            subtask_index=index,
            parallelism=parallelism,
            max_parallelism=KEY_GROUPS,
            now_ms=lambda: self.now_ms,
            epoch=ATTEMPT.epoch,
            operator_name=OPERATOR,
        )


class Concatenate:
    """Aggregate function that joins strings with commas."""

    def create_accumulator(self) -> list[str]:
        return []

    def add(self, value: str, accumulator: list[str]) -> list[str]:
        return [*accumulator, value]

    def get_result(self, accumulator: list[str]) -> str:
        return ",".join(accumulator)

    def merge(self, a: list[str], b: list[str]) -> list[str]:
        return a + b


def all_descriptors() -> dict[str, Any]:
    """Return a descriptor of each kind of state."""
    return {
        "value": ValueStateDescriptor("value", int),
        "list": ListStateDescriptor("list", int),
        "reducing": ReducingStateDescriptor("reducing", lambda a, b: a + b, int),
        "aggregating": AggregatingStateDescriptor("aggregating", Concatenate(), list[str]),
        "folding": FoldingStateDescriptor("folding", ["start"], lambda acc, value: [*acc, value], list[str]),
        "map": MapStateDescriptor("map", str, int),
    }


def read_all(backend: Any) -> dict[str, Any]:
    """Return the values of the current key in each kind of state."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    return {
        "value": states["value"].value(),
        "list": list(states["list"].get()),
        "reducing": states["reducing"].get(),
        "aggregating": states["aggregating"].get(),
        "folding": states["folding"].get(),
        "map": {key: value for key, value in states["map"].entries()},  # noqa: C416 - entries, not pairs
    }


def write_all(backend: Any, number: int) -> None:
    """Write values for the current key to each kind of state."""
    states = {name: backend.get_partitioned_state(each) for name, each in all_descriptors().items()}
    states["value"].update(number)
    states["list"].add_all([number, number + 1])
    states["reducing"].add(number)
    states["aggregating"].add(str(number))
    states["folding"].add(str(number))
    states["map"].put("number", number)


NOTHING: dict[str, Any] = {"value": None, "list": [], "reducing": None, "aggregating": None, "folding": None, "map": {}}


def written(number: int) -> dict[str, Any]:
    """Return the result of :func:`read_all` after :func:`write_all`."""
    return {
        "value": number,
        "list": [number, number + 1],
        "reducing": number,
        "aggregating": str(number),
        "folding": ["start", str(number)],
        "map": {"number": number},
    }
