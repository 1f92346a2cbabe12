"""Keyed state in Arrow files for measurements: one subtask with bigint keys, and batches of them."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle
from airflow_provider_statecheck.checkpoint.states.key_groups import KeyGroupRange
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend, ArrowStateBackend
from airflow_provider_statecheck.state.backends.state_backend import StateEnvironment
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.fs_storage import FsCheckpointStreamFactory
from airflow_provider_statecheck.storage.views.state_streams import StateWriting

KEY_GROUPS = 128
KEYS = KeySerializer((KeyField("id", pa.int64()),))
BALANCE: ValueStateDescriptor[float] = ValueStateDescriptor("balance", pa.float64())


class Subtask:
    """
    The only subtask of an operator.

    :param folder: Where its checkpoints go.
    """

    def __init__(self, folder: Path) -> None:
        self._storage = CheckpointStorage.open((folder / uuid.uuid4().hex).as_uri())
        self._checkpoint_id = 0

    def open(self, *restored: KeyedStateHandle) -> ArrowKeyedStateBackend:
        """Return its state, as an increment opens it."""
        environment = StateEnvironment(
            storage=self._storage,
            subtask_index=0,
            parallelism=1,
            max_parallelism=KEY_GROUPS,
            now_ms=lambda: 0,
            epoch=1,
        )
        return ArrowStateBackend().create_keyed_state_backend(
            environment, "job", "operator", KEYS, KEY_GROUPS, KeyGroupRange(0, KEY_GROUPS - 1), restored=restored
        )

    def save(self, backend: ArrowKeyedStateBackend) -> tuple[KeyedStateHandle, int]:
        """Write a snapshot; return its handle and how many bytes were new."""
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
    """Return distinct keys, a numpy array, as a batch."""
    columns = (pa.array(keys),)
    groups = KEYS.key_groups_of(columns, KEY_GROUPS)
    order = np.argsort(groups, kind="stable")
    return KeyBatch(pa.array(groups[order]), (columns[0].take(pa.array(order)),))


def distinct_keys(count: int, seed: int = 0) -> Any:
    """Return keys as customers have them: scattered, with gaps."""
    return np.random.default_rng(seed).permutation(count * 3)[:count].astype("int64")


def fill(backend: ArrowKeyedStateBackend, keys: Any, seed: int = 1) -> None:
    """Give keys random balances of two decimals."""
    batch = batch_of(keys)
    amounts = np.random.default_rng(seed).integers(0, 1_000_000, len(keys)) / 100
    backend.batch_state(BALANCE).put(batch, pa.array(amounts))


def change(backend: ArrowKeyedStateBackend, keys: Any) -> None:
    """Read the balances of keys and write others."""
    batch, state = batch_of(keys), backend.batch_state(BALANCE)
    state.put(batch, pa.compute.add(state.get(batch), 1.0))
