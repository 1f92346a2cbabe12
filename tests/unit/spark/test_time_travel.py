"""From a moment of a job to the checkpoint of that moment."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, InvalidConfigurationError
from airflow_provider_statecheck.spark.time_travel import find_checkpoint
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import complete_checkpoint, make_owner, make_registration


class Job:
    """Two runs, each with two checkpoints an hour after each other, of which three are retained."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = AttemptCoordinator(InMemoryJobStore(self.clock))
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
