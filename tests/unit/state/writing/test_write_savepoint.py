"""Savepoints whose state was given as a table: a backend restores exactly that, and all else is that of the base."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    StateMigrationError,
    StorageError,
    UnknownStateError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.state.aggregates import AggregateSchema
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from airflow_provider_statecheck.state.reading.diff_states import diff_states
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.state.writing import write_savepoint as writing
from airflow_provider_statecheck.state.writing.write_savepoint import write_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import ManualClock
from tests.written_state import BACKENDS, EACH_BACKEND, FUNCTION, GROUPS, STAGE, StatefulJob

TTL = StateTtlConfig(timedelta(milliseconds=100))


class Level(Enum):
    LOW = 1
    HIGH = 2


@dataclass
class Account:
    balance: float
    level: Level
    note: str | None = None


VALUE = ValueStateDescriptor("value", int)
ACCOUNT = ValueStateDescriptor("account", Account)
TAGS = ListStateDescriptor("tags", str)
AMOUNTS = MapStateDescriptor("amounts", str, int)
SEEN = ValueStateDescriptor("seen", int, ttl=TTL)
ALL: list[Any] = [VALUE, ACCOUNT, TAGS, AMOUNTS, SEEN]


@pytest.fixture(params=EACH_BACKEND)
def backend(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def job(backend: str, tmp_path: Path) -> Iterator[StatefulJob]:
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS[backend](), ALL)
    yield made
    made.close()


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"{tmp_path.as_uri()}/savepoints"


def numbers(count: int) -> pa.Table:
    keys = [f"key {number}" for number in range(count)]
    return pa.table({"account": keys, "value": pa.array(range(count), pa.int64())})


def written(data: Any, state: Any, target: str, **arguments: Any) -> str:
    defaults: dict[str, Any] = {"stage": STAGE, "function": FUNCTION, "key": ["account"], "max_parallelism": GROUPS}
    return write_savepoint(data, state, target=target, **(defaults | arguments))


def based(data: Any, state: Any, target: str, base: str, **arguments: Any) -> str:
    return write_savepoint(data, state, stage=STAGE, function=FUNCTION, target=target, base=base, **arguments)


def restore(job: StatefulJob, pointer: str, parallelism: int) -> None:
    (function,) = CheckpointStates.load(pointer).functions()
    job.open(parallelism, function.operator)


def shown(pointer: str, name: str) -> list[tuple[Any, ...]]:
    return sorted((tuple(row.values()) for row in read_state(pointer, name).read_all().to_pylist()), key=repr)


@pytest.mark.parametrize("parallelism", [1, 3])
def test_backend_restores_what_was_given_at_any_parallelism(job: StatefulJob, target: str, parallelism: int) -> None:
    pointer = written(numbers(50), VALUE, target)
    restore(job, pointer, parallelism)
    assert [job.state(f"key {number}", "value").value() for number in range(50)] == list(range(50))
    assert job.state("key 50", "value").value() is None
    job.state("key 7", "value").update(-7)
    later = read_state(job.save(), "value", allowed_locations=[target]).read_all().to_pylist()
    assert {"account": "key 7", "value": -7} in later


def test_every_kind_comes_back_as_it_was_given(job: StatefulJob, target: str) -> None:
    record = {"level": "HIGH", "note": None, "balance": 1.5}
    pointer = written(pa.Table.from_pylist([{"account": "ann", "value": record}]), ACCOUNT, target)
    pointer = based(pa.table({"account": ["ann"], "value": [["x", "y"]]}), TAGS, target, pointer)
    entries = {"account": ["ann", "ann"], "map_key": ["tea", "salt"], "map_value": pa.array([2, None], pa.int64())}
    pointer = based(pa.table(entries), AMOUNTS, target, pointer)
    restore(job, pointer, 2)
    assert job.state("ann", "account").value() == Account(1.5, Level.HIGH)
    assert list(job.state("ann", "tags").get()) == ["x", "y"]
    assert dict(job.state("ann", "amounts").entries()) == {"tea": 2, "salt": None}


def test_what_is_read_can_be_edited_and_written(job: StatefulJob, target: str) -> None:
    fill(job)
    base = job.save(run="2026-01-01T00:00:00+00:00")
    table = read_state(base, "value").read_all()
    edited = table.set_column(1, "value", pa.array([number * 10 for number in table["value"].to_pylist()]))
    before = {name: shown(base, name) for name in ("value", "tags", "amounts", "account", "seen")}
    pointer = based(edited, "value", target, base)
    assert shown(pointer, "value") == sorted((key, value * 10) for key, value in before["value"])
    for name in ("tags", "amounts", "account", "seen"):
        assert shown(pointer, name) == before[name]
    assert {name: shown(base, name) for name in before} == before
    restore(job, pointer, 2)
    assert job.state("key 3", "value").value() == 30
    assert list(job.state("key 3", "tags").get()) == ["tag 3"]


def test_keys_that_are_left_out_of_an_edit_have_no_state(job: StatefulJob, target: str) -> None:
    fill(job)
    pointer = based(numbers(1), "value", target, job.save())
    restore(job, pointer, 1)
    assert job.state("key 0", "value").value() == 0
    assert job.state("key 3", "value").value() is None
    assert list(job.state("key 3", "tags").get()) == ["tag 3"]


@pytest.mark.parametrize(("kind", "are_kept"), [(int, True), (float, False)])
def test_rows_of_another_type_are_those_of_aggregates_that_only_their_names_tell(
    job: StatefulJob, target: str, kind: type, are_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    declared = (AggregateSchema(name="total", is_nullable=True, function="sum"),)
    schemas = replace(job.schemas(), aggregates=declared)
    monkeypatch.setattr(job, "schemas", lambda: schemas)
    fill(job)
    table = numbers(3).set_column(1, "value", numbers(3)["value"].cast(pa.float64() if kind is float else pa.int64()))
    pointer = based(table, ValueStateDescriptor("value", kind), target, job.save())
    (function,) = CheckpointStates.load(pointer).functions()
    assert function.schemas.aggregates == (declared if are_kept else ())


def test_savepoint_names_nothing_outside_of_its_directory(job: StatefulJob, target: str) -> None:
    fill(job)
    pointer = based(numbers(5), "value", target, job.save())
    document = CheckpointStates.load(pointer).document
    assert document.relocatable
    assert pointer.startswith(f"{target}/savepoint-")


def test_every_byte_of_it_verifies(job: StatefulJob, target: str) -> None:
    fill(job)
    pointer = based(numbers(20_000), "value", target, job.save())
    found = CheckpointVerifier(CheckpointStorage.open(pointer), is_deep=True).verify_pointer(pointer)
    assert (found.is_restorable, found.problems) == (True, ())


def test_time_of_last_use_is_given_with_state_that_expires(job: StatefulJob, target: str) -> None:
    job.now_ms = 1_000_000
    moment = datetime.fromtimestamp(1000 - 0.06, UTC)
    data = pa.table({"account": ["ann"], "value": [1], "last_access": [moment]})
    pointer = written(data, SEEN, target)
    restore(job, pointer, 1)
    assert job.state("ann", "seen").value() == 1
    job.now_ms += 40
    assert job.state("ann", "seen").value() is None


def test_metadata_say_who_made_it_when_and_of_what(job: StatefulJob, target: str) -> None:
    fill(job)
    base = job.save()
    clock = ManualClock()
    first = based(numbers(1), "value", target, base, by="ann", clock=clock)
    second = based(numbers(2), "value", target, first, by="bob", clock=clock)
    values = CheckpointStates.load(second).values()["stage"]
    told = [(edit["by"], edit["base"], edit["rows"], edit["state"], edit["function"]) for edit in values["edits"]]
    assert told == [("ann", base, 1, "value", FUNCTION), ("bob", first, 2, "value", FUNCTION)]
    assert {edit["at"] for edit in values["edits"]} == {clock.now().isoformat()}
    assert values["checkpoint"] == 1


def test_state_of_another_function_is_added_and_the_rest_is_carried(job: StatefulJob, target: str) -> None:
    fill(job)
    base = job.save()
    data = pa.table({"day": pa.array([1, 2]), "value": pa.array([10, 20])})
    arguments: dict[str, Any] = {"stage": STAGE, "function": "days", "key": ["day"]}
    pointer = write_savepoint(data, VALUE, target=target, base=base, **arguments)
    assert shown_of(pointer, "days") == [(1, 10), (2, 20)]
    assert shown_of(pointer, FUNCTION) == shown(base, "value")
    assert CheckpointStates.load(pointer).document.relocatable
    with pytest.raises(InvalidConfigurationError, match="'balance', 'days'"):
        read_state(pointer, "value")
    edited = write_savepoint(data.slice(1), "value", target=target, base=pointer, stage=STAGE, function="days")
    assert shown_of(edited, "days") == [(2, 20)]
    assert shown_of(edited, FUNCTION) == shown(base, "value")


def shown_of(pointer: str, uid: str) -> list[tuple[Any, ...]]:
    return sorted(
        (tuple(row.values()) for row in read_state(pointer, "value", uid=uid).read_all().to_pylist()), key=repr
    )


ENTRIES = pa.table({"account": ["a", "a"], "map_key": ["x", "x"], "map_value": [1, 2]})


@pytest.mark.parametrize(
    ("data", "state", "reason"),
    [
        (pa.table({"account": ["a", "b", "a"], "value": [1, 2, 3]}), VALUE, r"1 row too many.*'a'"),
        (ENTRIES, AMOUNTS, "'x'"),
        (pa.table({"account": ["a"], "value": pa.array([[]], pa.list_(pa.string()))}), TAGS, "an empty one"),
        (pa.table({"account": ["a"], "value": [1], "more": [1]}), VALUE, r"account, value.*more"),
        (pa.table({"account": pa.array(["a", None]), "value": [1, 2]}), VALUE, "account"),
        (
            pa.table({"account": ["a", "b"], "namespace": ["", None], "value": [1, 2]}),
            VALUE,
            "namespace, found 1 null",
        ),
        (pa.table({"account": ["a"], "value": [1]}), SEEN, "last_access"),
        ([{"account": "a", "value": 1}], VALUE, "an Arrow table, found list; convert it"),
    ],
    ids=[
        "key twice",
        "entry twice",
        "empty list",
        "another column",
        "no key",
        "no namespace",
        "no time of last use",
        "no table",
    ],
)
def test_rows_that_are_not_those_of_state_are_refused(target: str, data: Any, state: Any, reason: str) -> None:
    expected = UnsupportedStateError if state is TAGS else InvalidConfigurationError
    with pytest.raises(expected, match=reason):
        written(data, state, target)


@pytest.mark.parametrize(
    ("key_type", "user_key"), [(float, float("nan")), (tuple[str, float], ("x", float("nan")))], ids=["float", "tuple"]
)
def test_a_user_key_that_equals_nothing_is_refused(target: str, key_type: Any, user_key: Any) -> None:
    state = MapStateDescriptor("amounts", key_type, int)
    assert state.key_serializer is not None
    user_keys = state.key_serializer.to_arrow([user_key])
    data = pa.table({"account": ["a"], "map_key": user_keys, "map_value": [1]})
    with pytest.raises(UnsupportedStateError, match=r"a map that equals itself, found .*nan"):
        written(data, state, target)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"balance": None, "level": "LOW", "note": None}, "value.balance"),
        ({"balance": 1.0, "level": "NONE", "note": None}, "'NONE'"),
        ({"balance": 1.0, "level": "LOW"}, "found balance, level"),
        ({"balance": 1.0, "level": "LOW", "note": None, "more": 1}, "more"),
        (None, "value"),
        ({"balance": "much", "level": "LOW", "note": None}, "value.balance"),
    ],
)
def test_values_that_do_not_fit_the_type_are_refused(target: str, value: Any, reason: str) -> None:
    good = {"balance": 0.0, "level": "LOW", "note": "n"} if value is None else value
    data = pa.Table.from_pylist([{"account": "a", "value": good}, {"account": "b", "value": value}])
    with pytest.raises(UnsupportedStateError, match=reason):
        written(data, ACCOUNT, target)


@pytest.mark.parametrize(
    ("error", "left"),
    [(StorageError("no answer"), 1), (CorruptStateError("a flipped byte"), 0), (KeyboardInterrupt(), 1)],
    ids=["unknown outcome", "refused", "interrupted"],
)
def test_failure_leaves_no_savepoint(
    target: str, monkeypatch: pytest.MonkeyPatch, error: BaseException, left: int
) -> None:
    def fail(*_: Any, **__: Any) -> bytes:
        raise error

    monkeypatch.setattr(writing, "write_metadata", fail)
    with pytest.raises(type(error)):
        written(numbers(20_000), VALUE, target)
    files = CheckpointStorage.open(target).list_files(target)
    assert len(files) == left
    assert not any(name.endswith("_metadata") for name in files)


def test_a_set_as_user_key_is_found_in_whatever_order_it_was_given(job: StatefulJob, target: str) -> None:
    data = {"account": ["a"], "map_key": pa.array([[9, 1]]), "map_value": [7]}
    given = MapStateDescriptor("given", frozenset[int], int)
    job.descriptors = [given]
    restore(job, written(pa.table(data), given, target), 1)
    assert job.state("a", "given").get(frozenset([1, 9])) == 7
    twice = pa.table({"account": ["a", "a"], "map_key": pa.array([[9, 1], [1, 9]]), "map_value": [7, 8]})
    with pytest.raises(InvalidConfigurationError, match="1 row too many"):
        written(twice, given, target)


def test_sets_have_the_form_that_a_backend_gives_them(job: StatefulJob, target: str) -> None:
    given = MapStateDescriptor("given", int, tuple[set[int], int])
    value = pa.array([{"_1": [9, 1, 9], "_2": 7}, None])
    data = pa.table({"account": ["a", "a"], "map_key": [0, 1], "map_value": value})
    job.descriptors, pointer = [given], written(data, given, target)
    restore(job, pointer, 1)
    job.state("a", "given").put(0, ({1, 9}, 7))
    assert diff_states(pointer, job.save(), "given", allowed_locations=[target]).read_all().num_rows == 0


def test_base_of_another_stage_is_refused(job: StatefulJob, target: str) -> None:
    job.open(1)
    with pytest.raises(IncompatibleCheckpointError, match=r"'other'.*'stage'"):
        write_savepoint(numbers(1), VALUE, stage="other", function=FUNCTION, target=target, base=job.save())


def test_key_of_the_base_stays(job: StatefulJob, target: str) -> None:
    job.open(1)
    base = job.save()
    with pytest.raises(StateMigrationError, match="account"):
        based(numbers(1), VALUE, target, base, key=["owner"])
    with pytest.raises(UnsupportedStateError, match="account"):
        based(pa.table({"account": [1], "value": [1]}), VALUE, target, base)


def test_max_parallelism_is_that_of_the_base_or_has_to_be_given(job: StatefulJob, target: str) -> None:
    job.open(1)
    with pytest.raises(InvalidConfigurationError, match=f"{GROUPS}.*32"):
        based(numbers(1), VALUE, target, job.save(), max_parallelism=32)
    with pytest.raises(InvalidConfigurationError, match="max_parallelism"):
        written(numbers(1), VALUE, target, max_parallelism=None)


def test_name_alone_is_of_a_state_that_the_base_has(job: StatefulJob, target: str) -> None:
    job.open(1)
    with pytest.raises(UnknownStateError, match="value, account"):
        based(numbers(1), "other", target, job.save())
    with pytest.raises(UnknownStateError):
        written(numbers(1), "value", target)


def test_key_is_a_list_of_columns_that_are_there(target: str) -> None:
    keys: list[Any] = ["account", [], None]
    for key in keys:
        with pytest.raises(InvalidConfigurationError, match="key"):
            written(numbers(1), VALUE, target, key=key)
    with pytest.raises(InvalidConfigurationError, match="owner"):
        written(numbers(1), VALUE, target, key=["owner"])


def test_schemas_say_what_each_state_is(job: StatefulJob, target: str) -> None:
    fill(job)
    pointer = based(numbers(5), VALUE, target, job.save())
    (function,) = CheckpointStates.load(pointer).functions()
    schemas: OperatorSchemas = function.schemas
    assert sorted(each.name for each in schemas.keyed) == sorted(each.name for each in ALL)
    assert function.operator.coordinator_state is not None
    assert json.loads(function.operator.coordinator_state.data)["version"] == 1  # type: ignore[union-attr]


def fill(job: StatefulJob) -> None:
    job.open(3)
    for number in range(30):
        key = f"key {number}"
        job.state(key, "value").update(number)
        job.state(key, "tags").add(f"tag {number}")
        job.state(key, "amounts").put("x", number)
        job.state(key, "account").update(Account(float(number), Level.LOW))
        job.state(key, "seen").update(number)
