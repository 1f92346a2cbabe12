"""
The contract of a counter of checkpoint ids, as a suite for counts in any database.

Subclass :class:`CheckpointIDCounterContract` and give the fixture ``jobs`` (the rows of jobs).
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import chain

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.state_handles import CheckpointIDCounter
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, job_id_of
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorError,
    InvalidConfigurationError,
    StaleAttemptError,
)
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_leadership,
    make_registration,
)

JOB = job_id_of("sales")
THREADS = 4
DRAWS = 10


class CheckpointIDCounterContract:
    """What holds for every counter of checkpoint ids."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the clock of the rows."""
        return ManualClock()

    @pytest.fixture
    def rows(self, jobs: JobStore) -> AlignedCheckpoints:
        """Return the calls to the rows."""
        return AlignedCheckpoints(jobs)

    @pytest.fixture(autouse=True)
    def _counters(self, jobs: JobStore, rows: AlignedCheckpoints) -> None:
        self.calls = rows
        self.coordinator = AttemptCoordinator(jobs)
        self.leader = rows.lead(make_leadership())

    def new(self, job_id: JobId = JOB) -> CheckpointIDCounter:
        """Return another counter, not started."""
        return CheckpointIDCounter(self.calls, replace(self.leader, job_id=job_id))

    def started(self) -> CheckpointIDCounter:
        """Return another counter of the job, in use."""
        counter = self.new()
        counter.start()
        return counter

    def test_the_first_id_is_one_and_each_is_one_more(self) -> None:
        counter = self.started()
        assert [counter.get_and_increment() for _ in range(3)] == [1, 2, 3]

    def test_get_tells_the_next_id_and_draws_none(self) -> None:
        counter = self.started()
        assert (counter.get(), counter.get(), counter.get_and_increment(), counter.get()) == (1, 1, 1, 2)

    def test_starting_twice_is_starting_once(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        counter.start()
        assert counter.get() == 2

    def test_a_counter_of_a_job_that_never_was_does_not_start(self) -> None:
        counter = self.new(job_id_of("another"))
        with pytest.raises(CheckpointNotFoundError):
            counter.start()
        with pytest.raises(CoordinatorError):
            counter.get()

    def test_a_counter_is_used_between_start_and_shutdown_only(self) -> None:
        counter = self.new()
        calls = (counter.get_and_increment, counter.get, lambda: counter.set_count(5))
        for call in calls:
            with pytest.raises(CoordinatorError, match="start"):
                call()
        counter.start()
        counter.shutdown(JobStatus.SUSPENDED)
        counter.shutdown(JobStatus.SUSPENDED)
        for call in (*calls, counter.start):
            with pytest.raises(CoordinatorError, match="shut down"):
                call()
        assert self.started().get() == 1

    @pytest.mark.parametrize("status", list(JobStatus))
    def test_the_count_outlives_every_end_of_the_job(self, status: JobStatus) -> None:
        counter = self.started()
        counter.get_and_increment()
        counter.shutdown(status)
        assert self.started().get_and_increment() == 2

    def test_the_count_is_raised_at_any_time(self) -> None:
        counter = self.started()
        counter.set_count(5)
        assert counter.get_and_increment() == 5
        counter.set_count(9)
        counter.set_count(9)
        assert counter.get_and_increment() == 9

    def test_a_lower_count_before_the_first_id_gives_no_id_twice(self) -> None:
        self.started().get_and_increment()
        counter = self.started()
        counter.set_count(1)
        assert counter.get_and_increment() == 2

    def test_a_lower_count_after_the_first_id_is_refused(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        with pytest.raises(CoordinatorError, match="before the first trigger"):
            counter.set_count(1)
        assert counter.get() == 2

    @pytest.mark.parametrize("count", [0, -1])
    def test_a_count_below_one_is_refused(self, count: int) -> None:
        with pytest.raises(InvalidConfigurationError):
            self.started().set_count(count)

    def test_a_count_and_the_checkpoints_of_a_job_are_one(self) -> None:
        counter = self.started()
        counter.get_and_increment()
        attempt = self.coordinator.register(make_registration()).attempt
        checkpoint = complete_checkpoint(self.coordinator, attempt).checkpoint
        assert checkpoint is not None
        assert checkpoint.checkpoint_id == 2
        assert counter.get_and_increment() == 3

    def test_a_fenced_leader_draws_no_id(self) -> None:
        counter = self.started()
        self.leader = self.calls.lead(make_leadership())
        with pytest.raises(StaleAttemptError):
            counter.get_and_increment()
        assert self.started().get() == 1

    def test_many_threads_draw_every_id_once(self) -> None:
        counters = [self.started() for _ in range(THREADS)]

        def draw(counter: CheckpointIDCounter) -> list[int]:
            return [counter.get_and_increment() for _ in range(DRAWS)]

        with ThreadPoolExecutor(THREADS) as threads:
            drawn = list(threads.map(draw, counters))
        assert all(ids == sorted(ids) for ids in drawn)
        assert sorted(chain.from_iterable(drawn)) == list(range(1, THREADS * DRAWS + 1))
