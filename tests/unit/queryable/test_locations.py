"""Registration of queryable states, by Flink's rules."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.states.handles import KeyGroupRange
from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    DuplicateNameError,
    InvalidConfigurationError,
    UnknownKvStateKeyGroupLocationError,
    UnknownKvStateLocationError,
)
from airflow_provider_statecheck.queryable.locations import KvStateAddress, KvStateLocation, KvStateLocationRegistry
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, StateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keyed.registered_state import RegisteredState
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates, StateContent
from tests.unit.queryable.found_job import LateStates, named
from tests.written_state import TEXT_KEY

JOB = job_id_of("job")
LOWER, UPPER, ALL = KeyGroupRange(0, 3), KeyGroupRange(4, 7), KeyGroupRange(0, 7)
BALANCE: StateDescriptor[int] = ValueStateDescriptor("balance", int)


@pytest.fixture
def registry() -> KvStateLocationRegistry:
    return KvStateLocationRegistry(JOB, {"a": 8, "b": 8})


def registered(location: KvStateLocation) -> int:
    return sum(address is not None for address in location.addresses)


def address(kv_state_id: str = "x", descriptor: StateDescriptor[int] = BALANCE) -> KvStateAddress:
    content = StateContent(
        uid="a",
        schema=RegisteredState.of(descriptor).schema(),
        key=TEXT_KEY.snapshot(),
        max_parallelism=8,
        handles=(),
        taken_at_ms=0,
    )
    return KvStateAddress(kv_state_id=kv_state_id, pointer="file:///c/chk-1", checkpoint_id=1, content=content)


def test_location_knows_the_address_of_each_registered_key_group(registry):
    one, two = address("1"), address("2")
    registry.register("a", LOWER, "name", one)
    registry.register("a", UPPER, "name", two)

    location = registry.location("name")

    assert (location.job_id, location.uid, location.name, location.num_key_groups) == (JOB, "a", "name", 8)
    assert [location.address_of(group) for group in range(8)] == [one] * 4 + [two] * 4
    assert registered(location) == 8


def test_key_group_without_a_registration_has_no_address(registry):
    registry.register("a", UPPER, "name", address())

    location = registry.location("name")

    assert registered(location) == 4
    with pytest.raises(UnknownKvStateKeyGroupLocationError, match="key group 3"):
        location.address_of(3)


@pytest.mark.parametrize("key_group", [-1, 8])
def test_key_group_out_of_bounds_is_an_error(registry, key_group):
    registry.register("a", ALL, "name", address())

    with pytest.raises(InvalidConfigurationError, match="from 0 to 7"):
        registry.location("name").address_of(key_group)


def test_second_operator_with_a_name_is_refused_and_the_first_one_keeps_it(registry):
    registry.register("a", LOWER, "name", address())

    with pytest.raises(DuplicateNameError, match="'a' and in 'b'"):
        registry.register("b", UPPER, "name", address())

    assert registry.owner_of("name") == "a"
    assert registered(registry.location("name")) == 4


def test_unknown_operator_cannot_register(registry):
    with pytest.raises(InvalidConfigurationError, match="'c'"):
        registry.register("c", LOWER, "name", address())


def test_key_groups_out_of_bounds_cannot_be_registered(registry):
    with pytest.raises(InvalidConfigurationError, match="from 0 to 7"):
        registry.register("a", KeyGroupRange(4, 8), "name", address())

    assert registry.names == ()


def test_operator_replaces_its_registration_of_a_range(registry):
    old, new = address("old"), address("new")
    registry.register("a", ALL, "name", old)
    before = registry.location("name")

    registry.register("a", UPPER, "name", new)

    assert registry.location("name").address_of(4) is new
    assert registry.location("name").address_of(3) is old
    assert before.address_of(4) is old, "a location that a reader has does not change"


def test_name_vanishes_with_its_last_range(registry):
    registry.register("a", LOWER, "name", address())
    registry.register("a", UPPER, "name", address())

    registry.unregister("a", LOWER, "name")
    assert registered(registry.location("name")) == 4
    registry.unregister("a", UPPER, "name")

    assert registry.names == ()
    registry.register("b", ALL, "name", address())


@pytest.mark.parametrize(
    ("uid", "key_groups", "name"),
    [
        ("a", LOWER, "other"),
        ("b", LOWER, "name"),
        ("a", UPPER, "name"),
        ("a", ALL, "name"),
        ("a", KeyGroupRange(0, 9), "name"),
    ],
    ids=["unknown name", "other operator", "other range", "partly registered range", "out of bounds"],
)
def test_registration_that_does_not_exist_cannot_be_removed(registry, uid, key_groups, name):
    registry.register("a", LOWER, "name", address())

    with pytest.raises(InvalidConfigurationError, match="registered or unregistered it first"):
        registry.unregister(uid, key_groups, name)

    assert registered(registry.location("name")) == 4


def test_unknown_name_is_an_error_that_lists_the_names(registry):
    registry.register("a", ALL, "balances", address())

    with pytest.raises(UnknownKvStateLocationError, match=r"'prices' .* found 'balances'"):
        registry.location("prices")


def test_location_has_the_serializers_of_its_keys(registry):
    registry.register("a", ALL, "balances", address())
    registry.register("a", ALL, "prices", address(descriptor=MapStateDescriptor("prices", int, int)))

    assert registry.location("balances").key_serializer == TEXT_KEY
    assert registry.location("balances").user_key_serializer is None
    assert str(registry.location("prices").user_key_serializer.arrow_type) == "int64"


def test_refused_state_is_logged_once(job, caplog):
    stages = [job.stage(uid, named("x")) for uid in ("a", "b")]
    with caplog.at_level(logging.WARNING):
        for stage in stages * 3:
            stage.checkpoint()
            assert job.read("x")[0] == "a/balance"

    (record,) = caplog.records
    assert "'x' in 'a/balance' and in 'b/balance'" in record.message


def test_all_processes_agree_on_the_owner_of_a_name(job):
    """The stage that comes first by uid owns it, also in a process that knew the other one first."""
    later = job.stage("b", named("x"))
    later.checkpoint()
    assert job.read("x") == ("b/balance", 1)

    job.stage("a", named("x")).checkpoint()

    assert job.read("x") == job.read("x", job.new_oracle()) == ("a/balance", 2)


def test_name_registered_after_open_is_refused_if_another_stage_registered_it_in_open(job):
    late = job.stage("a", named("w", "x"), LateStates)
    late.put("state of x", {"ann": 1})
    late.checkpoint()
    job.stage("b", named("x")).checkpoint()
    assert job.read("x") == ("b/balance", 2)

    listed = job.oracle.names()

    assert [(each.uid, each.name) for each in listed if each.refused] == [("a/balance", "x")]
    assert job.read("x") == job.read("x", job.new_oracle()) == ("b/balance", 2)


def test_owner_of_a_late_name_does_not_depend_on_which_state_files_were_read(job):
    first, second = (job.stage(uid, named(f"opened {uid}", "late"), LateStates) for uid in ("a", "b"))
    first.checkpoint()
    second.put("state of late", {"ann": 1})
    second.checkpoint()
    assert job.read("late") == ("b/balance", 2)

    first.put("state of late", {"ann": 1})
    first.checkpoint()

    assert job.read("late") == job.read("late", job.new_oracle()) == ("a/balance", 3)


def test_name_of_a_stage_whose_checkpoint_is_unreadable_is_not_answered_by_another_stage(job):
    owner, other = job.stage("a", named("x")), job.stage("b", named("x", "y"))
    owner.checkpoint()
    other.checkpoint()
    assert (job.read("x"), job.read("y")) == (("a/balance", 1), ("b/balance", 2))

    job.damage(owner, owner.checkpoint())

    with pytest.raises(CorruptStateError):
        job.read("x")
    assert job.read("y") == ("b/balance", 2), "the name is known to be its own"
    assert [each.name for each in job.oracle.names()] == ["y"]

    owner.checkpoint()
    assert job.read("x") == ("a/balance", 4)


def test_name_that_an_unreadable_stage_may_claim_is_not_answered_in_a_new_process(job):
    job.stage("a", named("v")).checkpoint()
    damaged = job.stage("b", named("x"))
    job.damage(damaged, damaged.checkpoint())
    job.stage("c", named("x", "y")).checkpoint()

    for name in ("x", "y"):
        with pytest.raises(CorruptStateError):
            job.read(name)
    assert job.read("v") == ("a/balance", 1), "a stage with an earlier uid owns its names in any case"


def test_stage_whose_state_files_are_unreadable_hides_only_names_that_it_may_claim_after_open(job, monkeypatch):
    job.stage("a", named("w")).checkpoint()
    late = job.stage("b", named("x", "late"), LateStates)
    late.put("state of late", {"ann": 1})
    late.checkpoint()
    complete = CheckpointStates.complete

    def unreadable(states: CheckpointStates, function: Any) -> Any:
        if function.operator.uid.startswith("a/"):
            raise CorruptStateError("damaged state file")
        return complete(states, function)

    monkeypatch.setattr(CheckpointStates, "complete", unreadable)

    with pytest.raises(CorruptStateError):
        job.read("late")
    assert [each.name for each in job.oracle.names()] == ["w", "x"]
    assert (job.read("w"), job.read("x")) == (("a/balance", 1), ("b/balance", 2))


def test_name_of_a_refused_state_is_its_own_once_the_other_one_is_renamed(job):
    first, second = job.stage("a", named("x")), job.stage("b", named("x"))
    first.checkpoint()
    second.checkpoint()
    assert job.read("x") == ("a/balance", 1)

    first.written[0].descriptors = named("y")
    first.begin()
    first.checkpoint()

    assert (job.read("x"), job.read("y")) == (("b/balance", 2), ("a/balance", 3))
    assert [each.refused for each in job.oracle.names()] == ["", ""]


def test_two_states_of_a_function_cannot_have_one_name(job):
    descriptors = [ValueStateDescriptor(name, int, queryable_name="x") for name in ("one", "two")]
    stage = job.stage("a", descriptors)
    stage.checkpoint()
    stage.checkpoint()

    location = job.oracle.request_kv_state_location("x")

    assert {each.content.schema.name for each in location.addresses if each} == {"one"}
    served, refused = job.oracle.names()
    assert (served.refused, "'a/balance'" in refused.refused) == ("", True)
