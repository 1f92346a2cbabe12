"""Which state owns a queryable name that several states claim or may claim."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import CorruptStateError
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from airflow_provider_statecheck.state.reading.checkpoint_states import CheckpointStates
from tests.unit.queryable.found_job import LateStates, named


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
