"""Types and times to live that change between releases, when older rows are in files that are not written again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from datetime import timedelta
from enum import Enum
from pathlib import Path
from typing import Annotated, Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.checkpoint.states.handles import KeyedStateHandle, key_group_ranges
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.state.arrow.keyed_backend import ArrowKeyedStateBackend
from airflow_provider_statecheck.state.arrow.layout import ArrowStateSettings
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer
from airflow_provider_statecheck.state.schema_evolution import OperatorSchemas
from airflow_provider_statecheck.state.serializers.record_serializer import Aliases
from tests.unit.state.arrow.harness import GROUPS, Job

KEY = 1
MANY = range(500)
"""So many keys that changes of a few of them leave their file as it is."""
Made = Callable[[StateTtlConfig | None], StateDescriptor[Any]]

KINDS: dict[str, Made] = {
    "value": lambda ttl: ValueStateDescriptor("s", int, ttl=ttl),
    "list": lambda ttl: ListStateDescriptor("s", int, ttl=ttl),
    "map": lambda ttl: MapStateDescriptor("s", str, int, ttl=ttl),
}


def lives(milliseconds: int) -> StateTtlConfig:
    return StateTtlConfig(timedelta(milliseconds=milliseconds))


@pytest.fixture
def job(tmp_path: Path) -> Job:
    return Job(tmp_path, settings=ArrowStateSettings())


def write(backend: ArrowKeyedStateBackend, descriptor: StateDescriptor[Any], *keys: int) -> None:
    state: Any = backend.get_partitioned_state(descriptor)
    for key in keys:
        backend.set_current_key(key)
        if descriptor.kind == "map":
            state.put("entry", key)
        else:
            state.update([key] if descriptor.kind == "list" else key)


def read(backend: ArrowKeyedStateBackend, descriptor: StateDescriptor[Any], key: int = KEY) -> Any:
    state: Any = backend.get_partitioned_state(descriptor)
    backend.set_current_key(key)
    if descriptor.kind == "map":
        return dict(state.entries())
    return list(state.get()) if descriptor.kind == "list" else state.value()


def next_run(job: Job, *handles: KeyedStateHandle, wanted: StateDescriptor[Any]) -> KeyedStateHandle:
    """Run a release that only asks for a state, and return its snapshot."""
    backend = job.open(*handles)
    backend.get_partitioned_state(wanted)
    return job.save(backend)


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_what_was_cleared_stays_cleared_without_a_time_to_live(job: Job, made: Made) -> None:
    backend = job.open()
    write(backend, made(lives(100)), *MANY)
    first = job.save(backend)
    backend = job.open(first)
    backend.set_current_key(KEY)
    Job.state(backend, made(lives(100))).clear()
    second = job.save(backend)
    assert set(first.shared) < set(second.shared)
    job.now_ms = 10
    restored = job.open(second)
    assert not read(restored, made(None))
    assert KEY not in set(restored.get_keys("s"))
    assert restored.num_entries() == len(MANY) - 1


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_expired_value_hides_older_ones_without_a_time_to_live(job: Job, made: Made) -> None:
    job.now_ms = 1000
    backend = job.open()
    write(backend, made(lives(100)), *MANY)
    first = job.save(backend)
    # A run of an earlier date comes later.
    job.now_ms = 500
    backend = job.open(first)
    write(backend, made(lives(100)), KEY)
    second = job.save(backend)
    assert set(first.shared) < set(second.shared)
    job.now_ms = 1000
    restored = job.open(second)
    restored.prefetch(job.batch(range(5)))
    assert not read(restored, made(None))
    assert read(restored, made(None), 2)
    assert KEY not in set(restored.get_keys("s"))


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_what_lost_its_time_to_live_never_expires_any_more(job: Job, made: Made) -> None:
    backend = job.open()
    write(backend, made(lives(100)), *MANY)
    handle = next_run(job, job.save(backend), wanted=made(None))
    job.now_ms = 1000
    assert read(job.open(handle), made(None))


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_time_to_live_that_is_added_begins_once(job: Job, made: Made) -> None:
    backend = job.open()
    write(backend, made(None), *MANY)
    handle = next_run(job, job.save(backend), wanted=made(lives(100)))
    job.now_ms = 60
    handle = next_run(job, handle, wanted=made(lives(100)))
    job.now_ms = 120
    assert not read(job.open(handle), made(lives(100)))


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_time_to_live_that_ends_is_the_last_one(job: Job, made: Made) -> None:
    backend = job.open()
    write(backend, made(lives(100)), *MANY)
    handle = next_run(job, job.save(backend), wanted=made(lives(1000)))
    job.now_ms = 500
    backend = job.open(handle)
    write(backend, made(lives(1000)), 2)
    assert read(job.open(job.save(backend)), made(None))


def test_each_release_has_to_know_the_types_of_the_one_before_alone(job: Job) -> None:
    first = make_dataclass("Totals", [("sum", int)])
    second = make_dataclass("Totals", [("total", Annotated[int, Aliases("sum")])])
    third = make_dataclass("Totals", [("amount", Annotated[int, Aliases("total")], 0)])
    backend = job.open()
    state: Any = backend.get_partitioned_state(ValueStateDescriptor("s", first))
    for key in MANY:
        backend.set_current_key(key)
        state.update(first(7))
    handle = next_run(job, job.save(backend), wanted=ValueStateDescriptor("s", second))
    assert read(job.open(handle), ValueStateDescriptor("s", third)) == third(7)


def test_snapshot_after_a_migration_is_incremental_again(job: Job) -> None:
    backend = job.open()
    write(backend, KINDS["value"](None), *MANY)
    handle = next_run(job, job.save(backend), wanted=KINDS["value"](lives(100)))
    backend = job.open(handle)
    write(backend, KINDS["value"](lives(100)), KEY)
    assert isinstance(handle, type(after := job.save(backend)))
    assert set(handle.shared) < set(after.shared)


@dataclass(frozen=True)
class Long:
    x: int
    label: str


@dataclass(frozen=True)
class Short:
    x: int


@pytest.mark.parametrize("made", KINDS.values(), ids=KINDS)
def test_renamed_key_column_finds_the_state_of_all_releases_in_files_that_stay(job: Job, made: Made) -> None:
    state = made(None)
    backend = job.open()
    write(backend, state, *MANY)
    first = job.save(backend)
    job.keys = KeySerializer((KeyField("number", pa.int64(), ("id",)),))
    backend = job.open(first)
    assert read(backend, state, 7) == read(job.open(first), state, 7)
    write(backend, state, 500)
    second = job.save(backend)
    assert dict(first.shared).items() <= dict(second.shared).items()
    job.keys = KeySerializer((KeyField("account", pa.int64(), ("number",)),))
    backend = job.open(second)
    found = {1: True, 499: True, 500: True, 501: False}
    assert {key: bool(read(backend, state, key)) for key in found} == found
    job.keys = KeySerializer((KeyField("account", pa.int64()),))
    backend = job.open(job.save(backend))
    assert {key: bool(read(backend, state, key)) for key in found} == found
    assert sorted(backend.get_keys("s")) == [*MANY, 500]


def test_user_keys_that_could_become_one_are_refused_at_the_first_access(job: Job) -> None:
    backend = job.open()
    backend.set_current_key(KEY)
    Job.state(backend, MapStateDescriptor("s", Long, int)).put(Long(1, "a"), 1)
    restored = job.open(job.save(backend))
    with pytest.raises(StateMigrationError, match="two could become one"):
        restored.get_partitioned_state(MapStateDescriptor("s", Short, int))
    restored.set_current_key(KEY)
    assert dict(Job.state(restored, MapStateDescriptor("s", Long, int)).entries()) == {Long(1, "a"): 1}


@dataclass(frozen=True)
class Place:
    x: int
    y: int


@dataclass(frozen=True)
class Turned:
    y: int
    x: int


def put(job: Job, backend: ArrowKeyedStateBackend, descriptor: MapStateDescriptor[Any], user_keys: list[Any]) -> None:
    state = Job.state(backend, descriptor)
    for key in MANY:
        if job.keys.key_group_of(key, GROUPS) in backend.key_group_range:
            backend.set_current_key(key)
            for number, user_key in enumerate(user_keys):
                state.put(user_key, number)


def test_user_keys_with_reordered_fields_are_found_in_the_files_of_all_subtasks(job: Job) -> None:
    ranges = key_group_ranges(2, GROUPS)
    places = [(x, -x) for x in range(5)]
    first, second = (MapStateDescriptor("s", each, int) for each in (Place, Turned))
    filled = job.open(owned=ranges[0])
    put(job, filled, first, [Place(x, y) for x, y in places])
    schemas = OperatorSchemas(keyed=filled.schemas())
    handles = [job.save(filled)]
    # The second subtask has state for the first time after the release.
    for handle, owned in zip([*handles, None], ranges, strict=True):
        backend = job.open(handle, owned=owned, schemas=schemas)
        put(job, backend, second, [Turned(y, x) for x, y in places])
        handles.append(job.save(backend))
    restored = job.open(*handles[1:], schemas=schemas)
    state = Job.state(restored, second)
    for key in MANY:
        restored.set_current_key(key)
        assert [state.get(Turned(y, x)) for x, y in places] == list(range(5))


class Colour(Enum):
    BLUE = 1
    RED = 2


class NewColour(Enum):
    BLUE = 1
    CRIMSON = 2
    RED = 2  # noqa: PIE796 - the old name


def test_a_user_key_is_found_under_the_new_name_of_its_member(job: Job) -> None:
    backend = job.open()
    put(job, backend, MapStateDescriptor("s", Colour, int), [*Colour])
    restored = job.open(job.save(backend))
    state = Job.state(restored, MapStateDescriptor("s", NewColour, int))
    restored.set_current_key(KEY)
    assert [state.get(each) for each in NewColour] == [0, 1]
    state.put(NewColour.CRIMSON, 7)
    assert dict(state.entries()) == {NewColour.BLUE: 0, NewColour.CRIMSON: 7}


class Yellow(Enum):
    YELLOW = 1
    BLUE = 1  # noqa: PIE796 - the old name
    RED = 2


def test_a_set_as_user_key_is_found_under_the_new_names_of_its_members(job: Job) -> None:
    backend = job.open()
    put(job, backend, MapStateDescriptor("s", frozenset[Colour], int), [frozenset(Colour)])
    restored = job.open(job.save(backend))
    state = Job.state(restored, MapStateDescriptor("s", frozenset[Yellow], int))
    restored.set_current_key(KEY)
    assert state.get(frozenset(Yellow)) == 0
    state.put(frozenset(Yellow), 7)
    assert dict(state.entries()) == {frozenset(Yellow): 7}


class Crimson(Enum):
    BLUE = 1
    RED = 2
    CRIMSON = 3


class Azure(Enum):
    BLUE = 1
    AZURE = 2
    RED = 2  # noqa: PIE796 - the old name
    CRIMSON = 3


@pytest.mark.parametrize("block_rows", [1, 2, 4096])
def test_user_keys_whose_new_names_have_another_order_are_refused(tmp_path: Path, block_rows: int) -> None:
    job = Job(tmp_path, settings=ArrowStateSettings(block_rows=block_rows))
    backend = job.open()
    state = Job.state(backend, MapStateDescriptor("s", Crimson, int))
    backend.set_current_key(KEY)
    for colour in Crimson:
        state.put(colour, colour.value)
    restored = job.open(job.save(backend))
    with pytest.raises(StateMigrationError, match="in their old order"):
        Job.state(restored, MapStateDescriptor("s", Azure, int))
