"""Values of single keys, which are those that the state reader finds in the whole state."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from enum import Enum
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.queryable.queries import ABSENT
from airflow_provider_statecheck.state.descriptors import (
    AggregatingStateDescriptor,
    FoldingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.serializers.record_shapes import HashableRecord
from airflow_provider_statecheck.state.writing.canonical import rescale_max_parallelism
from tests import key_values
from tests.unit.queryable.served import ServedJob
from tests.written_state import BACKENDS, EACH_BACKEND

TTL = StateTtlConfig(timedelta(milliseconds=100))
NAMES = [f"key {number}" for number in range(40)]


class Color(Enum):
    RED = 1


@dataclass(frozen=True)
class Point:
    x: int
    y: float | None


class Mean:
    def create_accumulator(self) -> tuple[int, int]:
        return 0, 0

    def add(self, value: int, accumulator: tuple[int, int]) -> tuple[int, int]:
        return accumulator[0] + value, accumulator[1] + 1

    def get_result(self, accumulator: tuple[int, int]) -> float:
        return accumulator[0] / accumulator[1]

    def merge(self, a: tuple[int, int], b: tuple[int, int]) -> tuple[int, int]:
        return a[0] + b[0], a[1] + b[1]


def descriptors(ttl: StateTtlConfig | None = None) -> list[Any]:
    return [
        ValueStateDescriptor("value", Point, ttl=ttl),
        ListStateDescriptor("list", Color, ttl=ttl),
        ReducingStateDescriptor("reducing", max, int, ttl=ttl),
        AggregatingStateDescriptor("aggregating", Mean(), tuple[int, int], ttl=ttl),
        FoldingStateDescriptor("folding", "", lambda text, value: text + value, str, ttl=ttl),
        MapStateDescriptor("map", Point, float | None, ttl=ttl),
    ]


def change(state: Any, name: str, number: int) -> None:
    """Change a state by a number, which may remove it."""
    if number % 5 == 0:
        state.clear()
    elif name == "value":
        state.update(Point(number, None if number % 2 else 0.5))
    elif name == "map":
        state.put(Point(number % 3, None), None if number % 2 else number / 2)
    else:
        state.add(Color.RED if name == "list" else str(number) if name == "folding" else number)


KINDS = [each.name for each in descriptors()]


@pytest.fixture(params=EACH_BACKEND)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def make(tmp_path: Path, backend: str) -> Iterator[Any]:
    made: list[ServedJob] = []

    def job(*states: Any, **arguments: Any) -> ServedJob:
        made.append(ServedJob(tmp_path / str(len(made)), *states, backend=backend, **arguments))
        return made[-1]

    yield job
    for each in made:
        each.close()


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("ttl", [None, TTL], ids=["kept", "expiring"])
def test_every_kind_of_state_is_read_like_the_whole_state(make: Any, name: str, ttl: StateTtlConfig | None) -> None:
    served = make(*descriptors(ttl))
    for taken in range(4):
        for number in range(taken, 40, taken + 1):
            change(served.job.state(NAMES[number], name), name, number + taken)
        served.job.now_ms += 40
        pointer = served.job.save()
        wanted = [*NAMES, "unknown"]
        expected = served.expected(pointer, name, wanted)
        assert expected.count(ABSENT) in range(1, 41)
        assert served.get(pointer, name, *wanted) == expected
        assert [served.get(pointer, name, each)[0] for each in wanted] == expected


def test_one_entry_of_a_map_is_read_by_its_user_key(make: Any) -> None:
    served = make(MapStateDescriptor("map", Point, float | None))
    served.job.state("ann", "map").put(Point(1, 0.5), 2.5)
    served.job.state("ann", "map").put(Point(1, None), None)
    served.job.save()
    served.job.state("bob", "map").put(Point(2, 0.5), 4.5)
    served.job.state("ann", "map").remove(Point(1, 0.5))
    served.job.state("ann", "map").put(Point(2, 0.5), 3.5)
    pointer = served.job.save()
    assert served.get(pointer, "map", "ann", "bob", user_key=HashableRecord(x=2, y=0.5)) == [3.5, 4.5]
    assert served.get(pointer, "map", "ann", "bob", user_key=HashableRecord(x=1, y=None)) == [None, ABSENT]
    assert served.get(pointer, "map", "ann", user_key=HashableRecord(x=1, y=0.5)) == [ABSENT]
    with pytest.raises(UnsupportedStateError):
        served.get(pointer, "map", "ann", user_key="text")


def test_what_is_as_old_as_its_ttl_at_the_time_of_the_checkpoint_is_absent(make: Any) -> None:
    served = make(ValueStateDescriptor("value", int, ttl=TTL), MapStateDescriptor("map", str, int, ttl=TTL))
    served.job.state("ann", "value").update(1)
    served.job.state("ann", "map").put("a", 1)
    for passed_ms, expected in ((99, [1]), (1, [ABSENT])):
        served.job.now_ms += passed_ms
        pointer = served.job.save()
        assert served.get(pointer, "value", "ann") == served.get(pointer, "map", "ann", user_key="a") == expected


@pytest.mark.parametrize("kind", key_values.TYPES)
@given(data=st.data())
@settings(max_examples=4, deadline=None)
def test_keys_of_every_type_and_of_several_columns_are_found(kind: str, data: st.DataObject) -> None:
    keys = KeySerializer((KeyField("k", key_values.TYPES[kind]), KeyField("n", pa.int32())))
    drawn = [
        (each, number) for number, each in enumerate(data.draw(st.lists(key_values.STRATEGIES[kind], max_size=20)))
    ]
    for backend in BACKENDS:
        with TemporaryDirectory() as folder:
            served = ServedJob(Path(folder), ValueStateDescriptor("value", int), backend=backend, keys=keys)
            for key in drawn:
                served.job.state(keys.normalized(key), "value").update(key[1])
            pointer = served.job.save()
            assert served.get(pointer, "value", *drawn) == [number for _, number in drawn]
            absent = [(key, -1) for key, _ in drawn]
            assert served.get(pointer, "value", *absent) == [ABSENT] * len(drawn)
            served.close()


CHANGES = st.tuples(
    st.sampled_from(["ann", "bob"]), st.sampled_from(["", "window"]), st.integers(0, 5), st.none() | st.integers(0, 9)
)


@given(increments=st.lists(st.lists(CHANGES, max_size=12), min_size=1, max_size=4))
@settings(max_examples=15, deadline=None)
def test_maps_are_found_after_any_changes(increments: list[list[tuple[str, str, int, int | None]]]) -> None:
    for backend in BACKENDS:
        with TemporaryDirectory() as folder:
            served = ServedJob(Path(folder), MapStateDescriptor("map", int, int), backend=backend)
            model: dict[tuple[str, str], dict[int, int]] = {}
            for changes in increments:
                for key, namespace, user_key, value in changes:
                    state = served.job.state(key, "map", namespace)
                    entries = model.setdefault((key, namespace), {})
                    if value is None:
                        state.remove(user_key)
                        entries.pop(user_key, None)
                    else:
                        state.put(user_key, value)
                        entries[user_key] = value
                pointer = served.job.save()
                for namespace in ("", "window"):
                    expected = [model.get((key, namespace)) or ABSENT for key in ("ann", "bob")]
                    assert served.get(pointer, "map", "ann", "bob", namespace=namespace) == expected
                    for user_key in range(6):
                        of_entry = [model.get((key, namespace), {}).get(user_key, ABSENT) for key in ("ann", "bob")]
                        found = served.get(pointer, "map", "ann", "bob", namespace=namespace, user_key=user_key)
                        assert found == of_entry
            served.close()


def test_types_that_evolved_are_read_as_the_newest(make: Any) -> None:
    served = make(ValueStateDescriptor("value", pa.int32()))
    served.job.state("ann", "value").update(1)
    operator = served.job.operator()
    old = served.job.publish(operator)
    assert served.get(old, "value", "ann") == [1]
    served.job.taken += 1
    served.job.descriptors = [ValueStateDescriptor("value", pa.float64(), ttl=TTL)]
    newest = replace(operator, coordinator_state=served.job.operator().coordinator_state)
    pointer = served.job.publish(newest)
    (found,) = served.get(pointer, "value", "ann")
    assert (found, type(found)) == (1.0, float)
    assert [type(each) for each in served.get(old, "value", "ann")] == [int]


def test_keys_are_found_after_another_maximum_parallelism(make: Any) -> None:
    served = make(ValueStateDescriptor("value", int), MapStateDescriptor("map", str, int))
    for number, name in enumerate(NAMES):
        served.job.state(name, "value").update(number)
        served.job.state(name, "map").put("a", number)
    states = CheckpointStates.load(served.job.save())
    savepoint = f"{served.storage.base_uri}/savepoint"
    rescale_max_parallelism(states.storage, states.document, directory=savepoint, max_parallelism=64)
    served.job.max_parallelism = 64
    assert served.get(savepoint, "value", *NAMES) == list(range(40))
    assert served.get(savepoint, "map", *NAMES) == [{"a": number} for number in range(40)]


def test_reading_changes_nothing(make: Any, tmp_path: Path) -> None:
    served = make(ValueStateDescriptor("value", int, ttl=TTL), MapStateDescriptor("map", str, int))
    served.job.state("ann", "value").update(1)
    served.job.state("ann", "map").put("a", 1)
    pointer = served.job.save()
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    (found,) = served.get(pointer, "map", "ann")
    found["b"] = 2
    served.get(pointer, "value", "ann")
    assert served.get(pointer, "map", "ann") == [{"a": 1}]
    assert before == {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
