"""Keyed state in Arrow files for benchmarks: one subtask with bigint keys."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, KeyGroupRange
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.abstract_backend import StateEnvironment
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

KEY_GROUPS = 128
KEYS = KeySerializer((KeyField("id", pa.int64()),))
BALANCE: ValueStateDescriptor[float] = ValueStateDescriptor("balance", pa.float64())


class Subtask:
    """
    Operator with one subtask.

    :param folder: Folder for checkpoints.
    """

    def __init__(self, folder: Path) -> None:
        self._storage = CheckpointStorage.open((folder / uuid.uuid4().hex).as_uri())
        self._checkpoint_id = 0

    def open(self, *restored: KeyedStateHandle) -> ArrowKeyedStateBackend:
        """Open the state like an increment."""
        environment = StateEnvironment(
            storage=self._storage,
            now_ms=lambda: 0,
        )
        return ArrowStateBackend().create_keyed_state_backend(
            environment, "job", "operator", KEYS, KEY_GROUPS, KeyGroupRange(0, KEY_GROUPS - 1), restored=restored
        )

    def save(self, backend: ArrowKeyedStateBackend) -> tuple[KeyedStateHandle, int]:
        """Write a snapshot, and return its handle and the number of new bytes."""
        self._checkpoint_id += 1
        base = f"{self._storage.base_uri}/{'0' * 32}"
        streams = FsCheckpointStreamFactory(
            storage=self._storage,
            exclusive=f"{base}/chk-{self._checkpoint_id}",
            shared=f"{base}/shared/{'0' * 32}/state",
            writing=StateWriting(epoch=1),
        )
        result = backend.snapshot(self._checkpoint_id, 0, streams).run()
        if result.handle is None:
            raise RuntimeError("Expected state to be saved, found none.")
        return result.handle, result.new_bytes


def batch_of(keys: Any) -> KeyBatch:
    """Return a batch of distinct keys from a numpy array."""
    columns = (pa.array(keys),)
    groups = KEYS.key_groups_of(columns, KEY_GROUPS)
    order = np.argsort(groups, kind="stable")
    return KeyBatch(pa.array(groups[order]), (columns[0].take(pa.array(order)),))


def distinct_keys(count: int, seed: int = 0) -> Any:
    """Return random distinct keys with gaps, similar to customer ids."""
    return np.random.default_rng(seed).permutation(count * 3)[:count].astype("int64")


def fill(backend: ArrowKeyedStateBackend, keys: Any, seed: int = 1) -> None:
    """Write random balances with two decimals for keys."""
    batch = batch_of(keys)
    amounts = np.random.default_rng(seed).integers(0, 1_000_000, len(keys)) / 100
    backend.batch_state(BALANCE).put(batch, pa.array(amounts))


def change(backend: ArrowKeyedStateBackend, keys: Any) -> None:
    """Read and update the balances of keys."""
    batch, state = batch_of(keys), backend.batch_state(BALANCE)
    state.put(batch, pa.compute.add(state.get(batch), 1.0))
