"""The state of Q1: a completed checkpoint of many keys in SQLite and on a storage, and the proxy that reads it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.queryable.locations import KvStateAddress
from airflow_provider_statecheck.queryable.opened_state import StateCache
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy
from airflow_provider_statecheck.queryable.queries import PythonKeys, StateQuery
from airflow_provider_statecheck.state.backends import ArrowStateBackend
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyBatch, KeyField, KeySerializer
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.written_state import GROUPS, StatefulJob

KEYS = KeySerializer((KeyField("id", pa.int64()),))
NAME = "balances"
BALANCE: ValueStateDescriptor[float] = ValueStateDescriptor("balance", pa.float64(), queryable_name=NAME)


@dataclass(frozen=True, slots=True)
class Data:
    """Keys and their values, in the same order."""

    ids: Any
    balances: Any

    @classmethod
    def of(cls, count: int, seed: int = 0) -> Data:
        """Return random distinct keys with gaps, similar to customer ids, and random balances with two decimals."""
        random = np.random.default_rng(seed)
        ids = random.permutation(count * 3)[:count].astype("int64")
        return cls(ids, random.integers(0, 1_000_000, count) / 100)

    @property
    def table(self) -> Any:
        """The rows sorted by key as an Arrow table."""
        order = np.argsort(self.ids)
        return pa.table({"id": self.ids[order], "balance": self.balances[order]})


class SavedState:
    """
    A completed checkpoint of the data.

    :param base: URI of the checkpoint directory.
    :param options: Options of the filesystem.
    :param database: URL of the database of the rows.
    """

    def __init__(self, data: Data, base: str, options: dict[str, Any], database: str) -> None:
        self._storage = CheckpointStorage.open(base, **options)
        engine = create_engine(database)
        METADATA.create_all(engine)
        self._rows = AttemptCoordinator(SqlJobStore(engine))
        job = StatefulJob(self._storage, ArrowStateBackend(), [BALANCE], keys=KEYS)
        stage = QueriedStage(SqlJobStore(engine), (job,))
        stage.begin(parallelism=2)
        for backend in job.states:
            _fill(backend, data)
        self.pointer = stage.pointer(stage.checkpoint())
        self.size_bytes = sum(self._storage.list_files(base).values())
        self.job_id = stage.job_id
        stage.close()

    def proxy(self, cache: StateCache) -> StateProxy:
        """Return a new proxy with an in-process state server."""
        return StateProxy(KvStateServer(lambda _: self._storage, cache), lambda _: self._oracle())

    def look_up(self, proxy: StateProxy, as_of: AsOf = LATEST) -> Callable[[int], Any]:
        """
        Return the look-up of a key in the latest checkpoint, which checks the version of the job, or an earlier one.
        """
        job_id = self.job_id

        def get(key: int) -> Any:
            return proxy.get(StateQuery(job_id=job_id, name=NAME, keys=PythonKeys((key,)), as_of=as_of)).values[0]

        return get

    def look_up_all(self, proxy: StateProxy, keys: list[int]) -> None:
        """Look keys up in one query."""
        proxy.get(StateQuery(job_id=self.job_id, name=NAME, keys=PythonKeys(tuple(keys))))

    def served(self, cache: StateCache) -> Callable[[int], Any]:
        """Return the look-up of a key by the state server alone, at a known location."""
        server = KvStateServer(lambda _: self._storage, cache)
        location = self._oracle().request_kv_state_location(NAME)
        addresses: list[KvStateAddress] = [location.address_of(key_group) for key_group in range(GROUPS)]

        def get(key: int) -> Any:
            key_group = KEYS.key_group_of(key, GROUPS)
            return server.read(addresses[key_group], [(key, key_group)])[0]

        return get

    def _oracle(self) -> CheckpointLocationOracle:
        return CheckpointLocationOracle(self.job_id, self._rows, lambda _: self._storage)


def _fill(backend: Any, data: Data) -> None:
    groups = KEYS.key_groups_of((pa.array(data.ids),), GROUPS)
    owned = backend.key_group_range
    rows = np.flatnonzero((groups >= owned.start) & (groups <= owned.end))
    rows = rows[np.argsort(groups[rows], kind="stable")]
    batch = KeyBatch(pa.array(groups[rows]), (pa.array(data.ids[rows]),))
    backend.batch_state(BALANCE).put(batch, pa.array(data.balances[rows]))
