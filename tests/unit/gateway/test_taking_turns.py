"""Runs of one job that wait for each other."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, FinishAttempt, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnOverlap
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorUnavailableError
from airflow_provider_statecheck.gateway.verbs import registering, taking_turns
from tests.contracts.running_tasks import RunningTasks
from tests.contracts.runs_of_a_job import day
from tests.messages import make_registration
from tests.sqlite_rows import new_store


@pytest.fixture
def coordinator() -> AttemptCoordinator:
    """Return one at which the first day's run is at work."""
    return AttemptCoordinator(new_store(), RunningTasks([day(1).run_id]))


@pytest.fixture
def running(coordinator: AttemptCoordinator) -> AttemptGrant:
    return coordinator.register(make_registration(owner=day(1, label="the first day")))


def test_a_run_that_waits_registers_when_the_other_has_ended(coordinator: Any, running: AttemptGrant) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            coordinator.finish(FinishAttempt(attempt=running.attempt, status=AttemptStatus.FINISHED))

    grant = taking_turns(coordinator.register, 10.0, sleep)(make_registration(owner=day(2)))
    assert grant.attempt.epoch == 2
    assert pauses == [10.0] * 3


def test_a_run_that_waits_says_once_for_whom(coordinator: Any, running: AttemptGrant, caplog: Any) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise TimeoutError

    with caplog.at_level(logging.INFO), pytest.raises(TimeoutError):
        taking_turns(coordinator.register, 10.0, sleep)(make_registration(owner=day(2)))
    assert [r.message for r in caplog.records if "waiting for" in r.message] == [
        "Operator 'aggregate' of job 'sales': waiting for the first day"
    ]
    assert len(coordinator.describe(running.attempt.job_id).attempts) == 1, "who gives up has registered nothing"


def test_a_run_that_does_not_wait_is_refused(coordinator: Any, running: AttemptGrant) -> None:
    with pytest.raises(ConcurrentAttemptError):
        registering(coordinator.register, OnOverlap.FAIL)(make_registration(owner=day(2)))


def test_any_other_error_ends_the_waiting() -> None:
    def fail(request: RegisterAttempt) -> AttemptGrant:
        raise CoordinatorUnavailableError("planned")

    with pytest.raises(CoordinatorUnavailableError):
        registering(fail, OnOverlap.WAIT)(make_registration())
