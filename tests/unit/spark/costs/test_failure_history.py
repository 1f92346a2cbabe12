"""What a job remembers of its failures and of what its checkpoints took."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    FinishAttempt,
    RequestSavepoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.spark.costs.pacing import FailureHistory, measured_costs
from tests.messages import ManualClock, make_acknowledgement, make_registration
from tests.sqlite_rows import new_store


class Job:
    def __init__(self) -> None:
        self.clock = ManualClock()
        store = new_store(self.clock)
        self.coordinator = AttemptCoordinator(store)
        self.savepoints = JobSavepoints(store)

    def begin(self, uid: str = "aggregate") -> AttemptGrant:
        return self.coordinator.register(make_registration(uid=uid))

    def end(self, grant: AttemptGrant, status: AttemptStatus, after: float) -> None:
        self.clock.advance(after)
        self.coordinator.finish(FinishAttempt(attempt=grant.attempt, status=status))

    def checkpoint(self, grant: AttemptGrant, seconds: float) -> None:
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=grant.attempt, request_key=new_key()))
        self.clock.advance(seconds)
        self.coordinator.acknowledge(make_acknowledgement(grant.attempt, pending.checkpoint_id))

    def history(self, grant: AttemptGrant) -> FailureHistory:
        return FailureHistory.of(self.coordinator.describe(grant.attempt.job_id), grant.attempt.operator_id)


@pytest.fixture
def job() -> Job:
    return Job()


def test_failed_tries_are_counted_and_the_time_of_all_tries_up_to_now(job: Job) -> None:
    job.end(job.begin(), AttemptStatus.FAILED, after=100)
    job.clock.advance(5000)
    job.end(job.begin(), AttemptStatus.FINISHED, after=200)
    current = job.begin()
    job.clock.advance(30)
    assert job.history(current) == FailureHistory(1, 330.0)


def test_a_try_that_was_lost_counts_as_failed_and_up_to_its_last_sign_of_life(job: Job) -> None:
    lost = job.begin()
    job.clock.advance(60)
    job.checkpoint(lost, 1.5)
    job.clock.advance(5000)
    assert job.history(job.begin()) == FailureHistory(1, 61.5)


def test_a_try_that_was_lost_without_any_sign_took_no_time(job: Job) -> None:
    job.begin()
    job.clock.advance(5000)
    assert job.history(job.begin()) == FailureHistory(1, 0.0)


def test_tries_of_other_operators_do_not_count(job: Job) -> None:
    job.end(job.begin("other"), AttemptStatus.FAILED, after=100)
    assert job.history(job.begin()) == FailureHistory(0, 0.0)


def test_a_try_that_was_stopped_with_a_savepoint_did_not_fail(job: Job) -> None:
    stopped = job.begin()
    job.checkpoint(stopped, 1.0)
    key = new_key()
    job.savepoints.request(
        RequestSavepoint(
            job_id=stopped.attempt.job_id,
            operator_id=stopped.attempt.operator_id,
            request_key=key,
            target="memory://savepoints",
            kind=CheckpointType.SAVEPOINT_SUSPEND,
        )
    )
    trigger = TriggerCheckpoint(
        attempt=stopped.attempt, request_key=new_key(), serves=key, savepoint_dir="memory://savepoints"
    )
    pending = job.coordinator.trigger(trigger)
    job.coordinator.acknowledge(make_acknowledgement(stopped.attempt, pending))
    job.end(stopped, AttemptStatus.FAILED, after=10)
    assert job.history(job.begin()) == FailureHistory(0, 11.0)


def test_what_earlier_checkpoints_took_is_known(job: Job) -> None:
    grant = job.begin()
    for seconds in (1.0, 3.0):
        job.checkpoint(grant, seconds)
    view = job.coordinator.describe(grant.attempt.job_id)
    assert measured_costs(view, grant.attempt.operator_id) == (1.0, 3.0)
