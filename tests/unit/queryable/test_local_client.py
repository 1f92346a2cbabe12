"""Queryable state in one process, from the rows of a database and the files of checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import (
    ImmutableStateError,
    UnknownKeyOrNamespaceError,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.reads import LocalStateClient
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    MapStateDescriptor,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.function_harness import Concatenate
from tests.contracts.queried_stage import QueriedStage
from tests.sqlite_rows import new_engine
from tests.unit.state.serializers.record_types import Point
from tests.written_state import BACKENDS, EACH_BACKEND, StatefulJob

BALANCE = ValueStateDescriptor("balance", int, queryable_name="balances")
PLACE = ValueStateDescriptor("place", Point, queryable_name="places")
WORDS = AggregatingStateDescriptor("words", Concatenate(), list[str], queryable_name="words")
VISITS = MapStateDescriptor("visits", Point, int, queryable_name="visits")


@dataclass
class Job:
    """A job with state, and a client that has nothing but its database and the storage."""

    stage: QueriedStage
    client: LocalStateClient

    @property
    def name(self) -> str:
        return self.stage.written[0].job_name


@pytest.fixture(params=EACH_BACKEND)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Job]:
    engine = new_engine(tmp_path / "state.db")
    storage = CheckpointStorage.open((tmp_path / "checkpoints").as_uri())
    written = StatefulJob(storage, BACKENDS[request.param](), [BALANCE, PLACE, WORDS, VISITS], job_name="sales")
    stage = QueriedStage(SqlJobStore(engine), (written,), num_retained=3)
    stage.begin()
    yield Job(stage, LocalStateClient.open(str(engine.url)))
    stage.close()
    engine.dispose()


def test_objects_and_results_come_from_the_descriptor(job: Job) -> None:
    job.stage.put("place", {"ann": Point(1, "a")})
    job.stage.state("ann", "words").add("one")
    job.stage.state("ann", "words").add("two")
    job.stage.checkpoint()
    assert job.client.get(job.name, "places", "ann").value == {"x": 1, "label": "a"}
    place = job.client.get_kv_state(job.name, "places", "ann", PLACE)
    assert place.value() == Point(1, "a")
    assert job.client.get_kv_state(job.name, "words", "ann", WORDS).get() == "one,two"
    with pytest.raises(ImmutableStateError):
        place.clear()


def test_entries_of_a_map_are_found_by_objects_of_the_users_class(job: Job) -> None:
    visits = job.stage.state("ann", "visits")
    visits.put_all({Point(1, "a"): 3, Point(2): None})
    job.stage.checkpoint()
    assert job.client.get(job.name, "visits", "ann", user_key=Point(1, "a")).value == 3
    assert job.client.get(job.name, "visits", "ann", user_key=Point(2)).value is None
    with pytest.raises(UnknownKeyOrNamespaceError):
        job.client.get(job.name, "visits", "ann", user_key=Point(3))
    state = job.client.get_kv_state(job.name, "visits", "ann", VISITS)
    assert {entry.key: entry.value for entry in state} == {Point(1, "a"): 3, Point(2): None}


def test_many_keys_are_read_from_one_checkpoint(job: Job) -> None:
    keys = [f"key {number}" for number in range(1200)]
    job.stage.put("balance", {key: number for number, key in enumerate(keys)})
    checkpoint_id = job.stage.checkpoint()
    reply = job.client.get_many(job.name, "balances", [*keys, "nobody"])
    assert reply.found == {key: number for number, key in enumerate(keys)}
    assert reply.checkpoint_id == checkpoint_id
