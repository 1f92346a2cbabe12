"""Which checkpoint ends a wait."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.triggers.checkpoint import CheckpointCondition
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
)
from tests.sqlite_rows import new_store


class Job:
    """One job and its clock."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = AttemptCoordinator(new_store(self.clock))

    def begin(self, uid: str = "aggregate") -> AttemptRef:
        return self.coordinator.register(make_registration(uid=uid)).attempt

    def find(self, **condition: Any) -> dict[str, Any] | None:
        return CheckpointCondition(job="sales", **condition).find(self.coordinator.describe(job_id_of("sales")))

    def found_id(self, **condition: Any) -> int | None:
        found = self.find(**condition)
        return None if found is None else found["checkpoint_id"]


@pytest.fixture
def job() -> Job:
    return Job()


def test_what_is_found_says_where_a_restore_starts(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    assert job.find() == {
        "job": "sales",
        "uid": "aggregate",
        "checkpoint_id": 1,
        "pointer": f"memory://base/{job_id_of('sales')}/chk-1",
        "completed_at": job.clock.now().isoformat(),
    }


def test_a_job_without_a_completed_checkpoint_is_waited_for(job: Job) -> None:
    attempt = job.begin()
    assert job.find() is None
    job.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    assert job.find() is None


def test_the_newest_one_is_found_and_none_that_was_subsumed(job: Job) -> None:
    attempt = job.begin()
    for _ in range(4):
        complete_checkpoint(job.coordinator, attempt)
    assert job.found_id() == 4


def test_only_the_operator_that_was_named_counts(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin("first"))
    assert job.found_id(uid="second") is None
    complete_checkpoint(job.coordinator, job.begin("second"))
    assert (job.found_id(uid="first"), job.found_id(uid="second"), job.found_id()) == (1, 2, 2)


def test_an_older_id_than_asked_for_does_not_count(job: Job) -> None:
    attempt = job.begin()
    complete_checkpoint(job.coordinator, attempt)
    assert (job.found_id(at_least=1), job.found_id(at_least=2)) == (1, None)
    complete_checkpoint(job.coordinator, attempt)
    assert job.found_id(at_least=2) == 2


def test_age_is_counted_from_the_completion_to_the_coordinators_now(job: Job) -> None:
    attempt, minute = job.begin(), timedelta(minutes=1)
    pending = job.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    job.clock.advance(50)
    job.coordinator.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id))
    job.clock.advance(60)
    assert job.found_id(max_age=minute) == 1
    job.clock.advance(1)
    assert job.found_id(max_age=minute) is None, "although nothing has happened in the job since"


def test_a_clock_that_goes_back_makes_nothing_too_old(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    job.clock.advance(-3600)
    assert job.found_id(max_age=timedelta(seconds=1)) == 1


def test_a_younger_one_with_a_lower_id_is_found_where_the_newest_is_too_old(job: Job) -> None:
    first, second = job.begin("first"), job.begin("second")
    slow = job.coordinator.trigger(TriggerCheckpoint(attempt=first, request_key=new_key()))
    complete_checkpoint(job.coordinator, second)
    job.clock.advance(120)
    job.coordinator.acknowledge(make_acknowledgement(first, slow.checkpoint_id))
    assert (job.found_id(), job.found_id(max_age=timedelta(seconds=60))) == (2, 1)


def test_one_from_before_a_fresh_start_does_not_count(job: Job) -> None:
    complete_checkpoint(job.coordinator, job.begin())
    restart = make_registration(owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
    fresh = job.coordinator.register(restart).attempt
    assert job.found_id() is None
    complete_checkpoint(job.coordinator, fresh)
    assert job.found_id() == 2


def test_one_that_a_restore_could_not_use_does_not_count(job: Job) -> None:
    attempt = job.begin()
    complete_checkpoint(job.coordinator, attempt)
    complete_checkpoint(job.coordinator, attempt)
    skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum"),)
    job.coordinator.confirm_restore(ConfirmRestore(attempt=job.begin(), checkpoint_id=1, skipped=skipped))
    assert job.found_id() == 1


@pytest.mark.parametrize(
    "condition", [{"job": " "}, {"uid": ""}, {"at_least": 0}, {"max_age": timedelta(0)}], ids=lambda c: next(iter(c))
)
def test_a_condition_out_of_its_range_is_refused(condition: dict[str, Any]) -> None:
    with pytest.raises(InvalidConfigurationError):
        CheckpointCondition(**{"job": "sales"} | condition)


def test_a_condition_says_what_it_is() -> None:
    awaited = CheckpointCondition(job="sales", uid="a", at_least=3, max_age=timedelta(hours=1))
    assert str(awaited) == "a completed checkpoint of operator 'a' of job 'sales', id 3 or later, at most 1:00:00 old"
