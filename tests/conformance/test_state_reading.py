"""
State that is read as data is what the backend itself would give, whichever backend wrote it and at any parallelism.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import UnknownStateError
from airflow_provider_statecheck.spark.stages.stage_state import coordinator_state
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas, encode_schemas
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.written_state import BACKENDS, EACH_BACKEND, StatefulJob

TTL = StateTtlConfig(timedelta(milliseconds=100))


@dataclass
class Account:
    balance: float
    owner: str


def descriptors() -> list[Any]:
    return [
        ValueStateDescriptor("value", int),
        ValueStateDescriptor("account", Account),
        ListStateDescriptor("list", str),
        ReducingStateDescriptor("reducing", lambda a, b: a + b, int),
        MapStateDescriptor("map", str, int),
        ValueStateDescriptor("expiring", int, ttl=TTL),
        ListStateDescriptor("expiring_list", int, ttl=TTL),
        MapStateDescriptor("expiring_map", str, int, ttl=TTL),
    ]


@pytest.fixture(params=EACH_BACKEND)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StatefulJob]:
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS[request.param](), descriptors())
    yield made
    made.close()


def rows(pointer: str, name: str, **arguments: Any) -> list[tuple[Any, ...]]:
    return in_order(read_state(pointer, name, **arguments).read_all())


def in_order(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in table.to_pylist()), key=repr)


def test_each_kind_has_its_columns(job: StatefulJob) -> None:
    job.open(2)
    job.state("ann", "value").update(7)
    job.state("ann", "account").update(Account(1.5, "Ann"))
    job.state("bob", "list").update(["x", "y"])
    job.state("bob", "reducing").add(2)
    job.state("bob", "reducing").add(3)
    job.state("cat", "map").put("tea", 1)
    job.state("cat", "map").put("salt", None)
    pointer = job.save()
    assert read_state(pointer, "value").read_all().to_pylist() == [{"account": "ann", "value": 7}]
    record = {"balance": 1.5, "owner": "Ann"}
    assert read_state(pointer, "account").read_all().to_pylist() == [{"account": "ann", "value": record}]
    assert read_state(pointer, "list").read_all().to_pylist() == [{"account": "bob", "value": ["x", "y"]}]
    assert rows(pointer, "reducing") == [("bob", 5)]
    assert read_state(pointer, "map").schema.names == ["account", "map_key", "map_value"]
    assert rows(pointer, "map") == [("cat", "salt", None), ("cat", "tea", 1)]


def test_state_that_nobody_wrote_has_columns_and_no_rows(job: StatefulJob) -> None:
    job.open(1)
    pointer = job.save()
    table = read_state(pointer, "account").read_all()
    assert table.num_rows == 0
    assert table.schema.names == ["account", "value"]


@pytest.mark.parametrize("seed", range(4))
def test_newest_rows_of_any_history_and_parallelism_are_read(job: StatefulJob, seed: int) -> None:
    chance = random.Random(seed)
    values: dict[str, int] = {}
    entries: dict[tuple[str, str], int | None] = {}
    operator, taken = None, []
    for number in range(6):
        job.open(chance.choice([1, 2, 3, 5]), operator)
        for _ in range(30):
            change(chance, job, number, values, entries)
        operator = job.operator()
        taken.append((job.publish(operator), dict(values), dict(entries)))
    for pointer, value, entry in taken:
        assert rows(pointer, "value") == in_order_of(value.items())
        assert rows(pointer, "map") == in_order_of((*key, found) for key, found in entry.items())


@pytest.mark.parametrize("seed", range(4))
def test_difference_of_two_checkpoints_is_that_of_their_rows(job: StatefulJob, seed: int) -> None:
    chance = random.Random(seed)
    values: dict[str, int] = {}
    entries: dict[tuple[str, str], int | None] = {}
    operator, taken = None, []
    for number in range(5):
        if number in (0, 3):
            job.open(chance.choice([1, 2, 3]), operator)
        for _ in range(25 if number == 0 else 6):
            change(chance, job, number, values, entries)
        operator = job.operator()
        taken.append((job.publish(operator), dict(values), dict(entries)))
    for first, value, entry in taken:
        for second, later_value, later_entry in taken:
            found = in_order(diff_states(first, second, "value").read_all())
            assert found == in_order_of((key, *rest) for key, *rest in differences(value, later_value))
            found = in_order(diff_states(first, second, "map").read_all())
            assert found == in_order_of((*key, *rest) for key, *rest in differences(entry, later_entry))


def test_what_had_expired_at_the_checkpoint_is_left_out(job: StatefulJob) -> None:
    job.open(1)
    write_expiring(job, "old")
    job.now_ms += 60
    write_expiring(job, "new")
    job.state("old", "expiring_list").add(2)
    job.now_ms += 60
    pointer = job.save()
    assert rows(pointer, "expiring") == [("new", 1)]
    assert rows(pointer, "expiring_list") == [("new", [1]), ("old", [2])]
    assert rows(pointer, "expiring_map") == [("new", "x", 1)]


def test_times_of_last_use_are_shown_where_they_are_wanted(job: StatefulJob) -> None:
    job.open(1)
    write_expiring(job, "ann")
    pointer = job.save()
    moment = pa.scalar(job.now_ms, pa.timestamp("ms", "UTC")).cast(pa.timestamp("us", "UTC")).as_py()
    assert rows(pointer, "expiring", with_times=True) == [("ann", 1, moment)]
    assert rows(pointer, "expiring_list", with_times=True) == [("ann", [1], [moment])]
    assert rows(pointer, "expiring_map", with_times=True) == [("ann", "x", 1, moment)]
    assert read_state(pointer, "value", with_times=True).schema.names == ["account", "value"]


def test_expired_state_is_a_difference_although_nobody_wrote(job: StatefulJob) -> None:
    job.open(1)
    write_expiring(job, "ann")
    first = job.save()
    job.now_ms += 100
    second = job.save()
    found = diff_states(first, second, "expiring").read_all().to_pylist()
    assert found == [{"account": "ann", "change": "removed", "before": 1, "after": None}]


def test_state_that_a_function_asked_for_late_is_found_in_the_files(job: StatefulJob) -> None:
    job.open(2)
    for number in range(10):
        job.state(f"key {number}", "value").update(number)
        job.state(f"key {number}", "map").put("x", number)
    nothing = coordinator_state(encode_schemas(OperatorSchemas()))
    pointer = job.publish(replace(job.operator(), coordinator_state=nothing))
    assert rows(pointer, "value") == in_order_of((f"key {number}", number) for number in range(10))
    assert rows(pointer, "map") == in_order_of((f"key {number}", "x", number) for number in range(10))
    with pytest.raises(UnknownStateError, match="balance: value"):
        read_state(pointer, "other")


def test_key_groups_are_read_apart(job: StatefulJob) -> None:
    from airflow_provider_statecheck.checkpoint.states.handles import key_group_ranges
    from airflow_provider_statecheck.state.reading.state_reader import StateReader

    job.open(3)
    for number in range(40):
        job.state(f"key {number}", "value").update(number)
    states = CheckpointStates.load(job.save())
    reader = StateReader(states.storage, states.content("value"))
    found: list[Any] = []
    for owned in key_group_ranges(7, reader.content.max_parallelism):
        found += [row for table in reader.tables(owned) for row in in_order(table)]
    assert in_order_of(found) == in_order_of((f"key {number}", number) for number in range(40))


def change(
    chance: random.Random,
    job: StatefulJob,
    number: int,
    values: dict[str, int],
    entries: dict[tuple[str, str], int | None],
) -> None:
    """Write or remove something at random, and note it."""
    key, user_key, value = f"key {chance.randrange(25)}", chance.choice("abc"), number * 1000 + chance.randrange(50)
    if chance.random() < 0.7:
        job.state(key, "value").update(value)
        job.state(key, "map").put(user_key, value)
        values[key] = value
        entries[key, user_key] = value
    else:
        job.state(key, "value").clear()
        job.state(key, "map").remove(user_key)
        values.pop(key, None)
        entries.pop((key, user_key), None)


def differences(before: dict[Any, Any], after: dict[Any, Any]) -> Iterator[tuple[Any, ...]]:
    for key in before.keys() | after.keys():
        if key not in after:
            yield key, "removed", before[key], None
        elif key not in before:
            yield key, "added", None, after[key]
        elif before[key] != after[key]:
            yield key, "changed", before[key], after[key]


def in_order_of(found: Any) -> list[tuple[Any, ...]]:
    return sorted((tuple(each) for each in found), key=repr)


def write_expiring(job: StatefulJob, key: str) -> None:
    job.state(key, "expiring").update(1)
    job.state(key, "expiring_list").add(1)
    job.state(key, "expiring_map").put("x", 1)
