"""A stateful job whose checkpoints are served, with storage that counts what is read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange, key_group_range_of
from airflow_provider_statecheck.queryable.locations import KvStateAddress
from airflow_provider_statecheck.queryable.opened_state import StateCache
from airflow_provider_statecheck.queryable.proxy import KvStateServer
from airflow_provider_statecheck.queryable.queries import ABSENT
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.state_reader import StateReader
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.written_state import BACKENDS, TEXT_KEY, StatefulJob


class CountingStorage(CheckpointStorage):
    """Storage that notes its range reads."""

    reads: list[tuple[str, int, int]]

    @classmethod
    def open(cls, base_uri: str, **storage_options: Any) -> Self:
        storage = super().open(base_uri, **storage_options)
        storage.reads = []
        return storage

    def read_range(self, uri: str, start: int, end: int) -> bytes:
        self.reads.append((uri, start, end))
        return super().read_range(uri, start, end)


class ServedJob:
    """
    A job of two subtasks, and a server that reads its checkpoints.

    :param directory: URI or directory of the checkpoints.
    """

    def __init__(
        self,
        directory: Path | str,
        *descriptors: Any,
        backend: Any = "arrow",
        keys: Any = TEXT_KEY,
        cache: StateCache | None = None,
    ) -> None:
        uri = directory if isinstance(directory, str) else directory.as_uri()
        self.storage = CountingStorage.open(uri)
        made = BACKENDS[backend]() if isinstance(backend, str) else backend
        self.job = StatefulJob(self.storage, made, descriptors, keys=keys)
        self.job.open(2)
        self.cache = StateCache() if cache is None else cache
        self.server = KvStateServer(lambda _: self.storage, self.cache)
        self._known: dict[tuple[str, str], list[tuple[KvStateAddress, KeyGroupRange]]] = {}

    def address(self, pointer: str, name: str, key: Any) -> KvStateAddress:
        """Return the address of a key, with the content of its subtask."""
        return next(each for each, groups in self.addresses(pointer, name) if self._group(key) in groups)

    def get(self, pointer: str, name: str, *keys: Any, namespace: str = "", user_key: Any = None) -> list[Any]:
        """Look keys up, each at its address, and those of one address in one call."""
        found: dict[int, Any] = {}
        for address, groups in self.addresses(pointer, name):
            chosen = [index for index, key in enumerate(keys) if self._group(key) in groups]
            wanted = [(self.job.keys.normalized(keys[index]), self._group(keys[index])) for index in chosen]
            values = self.server.read(address, wanted, namespace, user_key)
            found.update(zip(chosen, values, strict=True))
        return [found[index] for index in range(len(keys))]

    def expected(self, pointer: str, name: str, keys: Iterable[Any], namespace: str = "") -> list[Any]:
        """Return the values of keys in the whole state, read by the state reader, as the server returns them."""
        states = CheckpointStates.load(pointer)
        reader = StateReader(states.storage, states.content(name), namespaces=True)
        columns = reader.columns
        rows: dict[Any, Any] = {}
        for table in reader.tables():
            owners = columns.keys.from_columns([table.column(each) for each in columns.key_names])
            values = self._values(columns, table)
            for owner, its_namespace, value in zip(owners, table.column("namespace").to_pylist(), values, strict=True):
                if its_namespace == namespace:
                    _add(rows, owner, value, is_map=columns.state.is_map)
        return [rows.get(self.job.keys.normalized(key), ABSENT) for key in keys]

    def addresses(self, pointer: str, name: str) -> list[tuple[KvStateAddress, KeyGroupRange]]:
        """Return the address of each subtask with its key groups."""
        key = pointer, name
        if key not in self._known:
            self._known[key] = self._addresses(pointer, name)
        return self._known[key]

    def look_up_again(self) -> None:
        """Forget the addresses."""
        self._known.clear()

    def close(self) -> None:
        self.job.close()
        self.cache.clear()

    @staticmethod
    def _values(columns: Any, table: Any) -> Sequence[Any]:
        state = columns.state
        column = table.column(columns.value_name).combine_chunks()
        if state.is_map:
            user_keys = state.key_serializer.from_arrow(table.column("map_key").combine_chunks())
            return list(zip(user_keys, state.serializer.from_arrow(column), strict=True))
        if state.kind == "list":
            return [state.serializer.from_arrow(each.values) for each in column]
        values: list[Any] = state.serializer.from_arrow(column)
        return values

    def _addresses(self, pointer: str, name: str) -> list[tuple[KvStateAddress, KeyGroupRange]]:
        content = CheckpointStates.of(self.storage, pointer).content(name)
        parallelism = len(self.job.states)
        ranges = [key_group_range_of(index, parallelism, self.job.max_parallelism) for index in range(parallelism)]
        return [
            (
                KvStateAddress(
                    kv_state_id=f"{name}/{index}",
                    pointer=pointer,
                    checkpoint_id=self.job.taken,
                    content=content.within(groups),
                ),
                groups,
            )
            for index, groups in enumerate(ranges)
        ]

    def _group(self, key: Any) -> int:
        return self.job.keys.key_group_of(key, self.job.max_parallelism)


def _add(rows: dict[Any, Any], owner: Any, value: Any, *, is_map: bool) -> None:
    if is_map:
        rows.setdefault(owner, {})[value[0]] = value[1]
    else:
        rows[owner] = value
