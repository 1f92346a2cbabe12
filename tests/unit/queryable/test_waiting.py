"""Reads in an event loop, which answer from what is cached and never wait."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from threading import Event, Thread

import pytest

from airflow_provider_statecheck.api.checked_rows import CheckedRows
from airflow_provider_statecheck.api.state_reads import ProxyReads
from airflow_provider_statecheck.cached_reads import WouldWaitError, without_waiting
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle, SharedCall
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy
from airflow_provider_statecheck.queryable.queries import PythonKeys, StateQuery, StateReply
from airflow_provider_statecheck.state.descriptors import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.contracts.queried_stage import QueriedStage
from tests.messages import ManualClock
from tests.sqlite_rows import new_store
from tests.written_state import BACKENDS, StatefulJob

DESCRIPTORS = [
    ValueStateDescriptor("balance", int, queryable_name="balances"),
    MapStateDescriptor("prices", str, int, queryable_name="prices"),
    ListStateDescriptor("items", int, queryable_name="items"),
]


class Served:
    """A stage whose state a proxy reads, with the version checks of an event loop."""

    def __init__(self, folder: Path) -> None:
        self.storage = CheckpointStorage.open((folder / "checkpoints").as_uri())
        store = new_store(ManualClock())
        self.rows = CheckedRows(AttemptCoordinator(store))
        oracle_of = partial(CheckpointLocationOracle, rows=self.rows, open_storage=CheckpointStorage.open)
        self.proxy = StateProxy(KvStateServer(CheckpointStorage.open), oracle_of)
        self.stage = QueriedStage(store, (StatefulJob(self.storage, BACKENDS["arrow"](), DESCRIPTORS),))
        self.stage.begin()

    def query(self, key: str, name: str = "balances") -> StateQuery:
        return StateQuery(job_id=self.stage.job_id, name=name, keys=PythonKeys((key,)))

    def check(self) -> None:
        asyncio.run(self.rows.check(self.stage.job_id))

    def at_once(self, key: str, name: str = "balances") -> StateReply:
        with without_waiting():
            return self.proxy.get(self.query(key, name))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    served = Served(tmp_path)
    yield served
    served.stage.close()


def test_what_is_cached_is_read_at_once_and_the_rest_is_not_waited_for(served: Served) -> None:
    served.stage.put("balance", {"ann": 1})
    served.stage.checkpoint()
    with pytest.raises(WouldWaitError):
        served.at_once("ann")
    served.check()
    with pytest.raises(WouldWaitError):
        served.at_once("ann")
    assert served.proxy.get(served.query("ann")).values == (1,)
    assert served.at_once("ann").values == (1,)


def test_new_checkpoint_is_not_loaded_at_once(served: Served) -> None:
    for value in (1, 2):
        served.stage.put("balance", {"ann": value})
        served.stage.checkpoint()
        served.check()
        with pytest.raises(WouldWaitError):
            served.at_once("ann")
        assert served.proxy.get(served.query("ann")).values == (value,)
        assert served.at_once("ann").values == (value,)


def test_whole_map_is_not_converted_at_once(served: Served) -> None:
    served.stage.state("ann", "prices").put("pear", 3)
    served.stage.checkpoint()
    served.check()
    assert served.proxy.get(served.query("ann", "prices")).values == ({"pear": 3},)
    with pytest.raises(WouldWaitError):
        served.at_once("ann", "prices")


def test_long_value_is_not_converted_at_once(served: Served) -> None:
    for key, count in (("ann", 100_000), ("ben", 10)):
        served.stage.state(key, "items").update(list(range(count)))
    served.stage.checkpoint()
    served.check()
    for key, count in (("ann", 100_000), ("ben", 10)):
        assert len(served.proxy.get(served.query(key, "items")).values[0]) == count
    with pytest.raises(WouldWaitError):
        served.at_once("ann", "items")
    assert served.at_once("ben", "items").values == (list(range(10)),)


def test_event_loop_answers_from_each_new_checkpoint(served: Served) -> None:
    reads = ProxyReads(lambda: served.proxy, served.rows.check)

    async def value() -> object:
        return await reads.get(served.query("ann"), lambda reply: reply.values[0], is_short=True)

    for expected in (1, 2, 3):
        served.stage.put("balance", {"ann": expected})
        served.stage.checkpoint()
        assert [asyncio.run(value()) for _ in range(3)] == [expected] * 3


def test_refusal_to_wait_is_not_shared_with_threads() -> None:
    began, end, outcomes = Event(), Event(), list[str]()

    def call() -> None:
        began.set()
        end.wait()
        outcomes.append("called")

    shared = SharedCall(call)
    calling = Thread(target=shared)
    calling.start()
    began.wait()
    with without_waiting(), pytest.raises(WouldWaitError):
        shared()
    end.set()
    calling.join()
    with without_waiting():
        shared()
    assert outcomes == ["called", "called"]
