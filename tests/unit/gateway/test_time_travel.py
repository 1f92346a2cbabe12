"""From a moment of a job to the checkpoint of that moment."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, OnClear
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.gateway.time_travel import checkpoints_as_of, find_checkpoint
from tests.messages import ManualClock, complete_checkpoint, make_owner, make_registration
from tests.sqlite_rows import new_store


class Job:
    """Two runs, each with two checkpoints an hour after each other, of which three are retained."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.store = new_store(self.clock)
        self.coordinator = AttemptCoordinator(self.store)
        self.taken = [record for number in (1, 2) for record in self._run(number)]

    def _run(self, number: int) -> list[CheckpointRecord]:
        owner = make_owner(run_key=f"2026-01-0{number}", run_id=f"scheduled__{number}", clear_marker=str(number))
        registration = make_registration(owner=owner, num_retained=3, on_clear="resume")
        attempt = self.coordinator.register(registration).attempt
        records = []
        for _ in range(2):
            self.clock.advance(3600)
            reply = complete_checkpoint(self.coordinator, attempt)
            assert reply.checkpoint is not None
            records.append(reply.checkpoint)
        return records

    def add_operator(self) -> CheckpointRecord:
        """Complete a checkpoint of another operator."""
        self.clock.advance(3600)
        attempt = self.coordinator.register(make_registration(uid="totals")).attempt
        record = complete_checkpoint(self.coordinator, attempt).checkpoint
        assert record is not None
        return record

    def as_of(self, **wanted: Any) -> list[int]:
        """Return the ids of the checkpoints of all operators."""
        return [
            each.checkpoint_id for each in checkpoints_as_of(self.coordinator.describe(job_id_of("sales")), **wanted)
        ]

    def find(self, **wanted: Any) -> str:
        return find_checkpoint("sales", "aggregate", metadata=self.coordinator, **wanted)


@pytest.fixture
def job() -> Job:
    return Job()


def test_newest_is_found_where_nothing_else_is_said(job: Job) -> None:
    assert job.find() == job.taken[3].location


def test_checkpoint_is_found_by_its_id(job: Job) -> None:
    for each in job.taken[1:]:
        assert job.find(checkpoint_id=each.checkpoint_id) == each.location


def test_newest_of_a_run_is_found_by_its_date_or_its_id(job: Job) -> None:
    assert job.find(run="2026-01-01") == job.find(run="scheduled__1") == job.taken[1].location
    assert job.find(run="2026-01-02") == job.taken[3].location


def test_newest_that_was_complete_at_a_time_is_found(job: Job) -> None:
    moment = job.taken[2].completed_at
    assert moment is not None
    assert job.find(at=moment) == job.taken[2].location
    assert job.find(at=moment - timedelta(seconds=1)) == job.taken[1].location


def test_checkpoint_that_is_not_retained_is_not_found_and_those_that_are_are_named(job: Job) -> None:
    for wanted in ({"checkpoint_id": job.taken[0].checkpoint_id}, {"run": "none"}, {"at": job.taken[0].completed_at}):
        with pytest.raises(CheckpointNotFoundError, match=job.taken[3].location):
            job.find(**wanted)


def test_unknown_job_or_stage_is_told(job: Job) -> None:
    with pytest.raises(CheckpointNotFoundError):
        find_checkpoint("none", "aggregate", metadata=job.coordinator)
    with pytest.raises(CheckpointNotFoundError, match="'aggregate'"):
        find_checkpoint("sales", "none", metadata=job.coordinator)


def test_one_condition_at_a_time_and_times_with_a_zone(job: Job) -> None:
    with pytest.raises(InvalidConfigurationError, match="one of"):
        job.find(run="2026-01-01", checkpoint_id=1)
    with pytest.raises(InvalidConfigurationError, match="zone"):
        job.find(at=datetime(2026, 1, 1))  # noqa: DTZ001 - that is what is refused


def test_newest_of_each_operator_at_a_time_are_found(job: Job) -> None:
    other = job.add_operator()
    assert other.completed_at is not None
    assert job.as_of(at=other.completed_at) == [4, 5]
    assert job.as_of(at=other.completed_at - timedelta(seconds=1)) == [4]
    assert job.as_of(at=job.taken[2].completed_at) == [3]
    with pytest.raises(CheckpointNotFoundError, match=r"complete at .* of job 'sales', found 2 \("):
        job.as_of(at=job.taken[0].completed_at)


def test_checkpoint_of_any_operator_is_found_by_its_id_or_its_pointer(job: Job) -> None:
    other = job.add_operator()
    for each in (job.taken[1], other):
        assert job.as_of(checkpoint_id=each.checkpoint_id) == [each.checkpoint_id]
        assert job.as_of(pointer=each.location + "/") == [each.checkpoint_id]


def test_savepoint_is_found_under_every_name_of_its_scheme(job: Job) -> None:
    with job.store.transaction(JobId(job.taken[1].job_id)) as tx:
        tx.update_checkpoint(replace(job.taken[1], location="s3a://lake/x"), expected=job.taken[1].status)
    assert job.as_of(pointer="s3://lake/x") == [job.taken[1].checkpoint_id]


def test_pointer_that_is_none_of_the_jobs_is_not_found(job: Job) -> None:
    for pointer in (job.taken[0].location, "memory://elsewhere/savepoint-1"):
        with pytest.raises(CheckpointNotFoundError, match=f"at {pointer} of job 'sales', found 2"):
            job.as_of(pointer=pointer)
    with pytest.raises(InvalidConfigurationError, match="a path or a URI"):
        job.as_of(pointer="")


def test_only_one_condition_applies_to_all_operators(job: Job) -> None:
    with pytest.raises(InvalidConfigurationError, match="one of"):
        job.as_of(checkpoint_id=1, pointer=job.taken[1].location)


def test_checkpoint_is_left_out_as_of_a_time_after_its_operator_began_anew(job: Job) -> None:
    abandoned = job.add_operator().checkpoint_id
    job.clock.advance(3600)
    cleared = make_registration(uid="totals", owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
    attempt = job.coordinator.register(cleared).attempt
    began = job.coordinator.describe(job_id_of("sales")).read_at

    assert job.as_of(at=began) == [4]
    assert job.as_of(at=began - timedelta(seconds=1)) == [4, abandoned]
    assert job.as_of(checkpoint_id=abandoned) == [abandoned]

    job.clock.advance(3600)
    restarted = complete_checkpoint(job.coordinator, attempt).checkpoint
    assert restarted is not None
    assert job.as_of(at=restarted.completed_at) == [4, restarted.checkpoint_id]
