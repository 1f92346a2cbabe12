"""Calls that are repeated, and calls of several threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeResult,
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    RegisterAttempt,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnOverlap
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    ConcurrentAttemptError,
    CoordinatorUnavailableError,
    StaleAttemptError,
)
from airflow_provider_statecheck.gateway.verbs import (
    DEFAULT_PAUSES_SECONDS,
    StageGateway,
    registering,
    retrying,
)
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_gateway
from tests.contracts.runs_of_a_job import RunningTasks, day
from tests.messages import complete_checkpoint, make_acknowledgement, make_registration
from tests.sqlite_rows import new_store


class Failing:
    """Fails the first calls of any method and then hands out the coordinator's own answer."""

    def __init__(self, times: int, error: Exception) -> None:
        self.target = AttemptCoordinator(new_store())
        self.calls = 0
        self._times = times
        self._error = error

    def __getattr__(self, name):
        def call(*args):
            self.calls += 1
            if self.calls <= self._times:
                raise self._error
            return getattr(self.target, name)(*args)

        return call


def _retrying(target: Any, pauses: tuple[float, ...] = DEFAULT_PAUSES_SECONDS) -> tuple[Any, list[float]]:
    slept: list[float] = []
    return retrying(target, pauses, slept.append), slept


@pytest.mark.parametrize("error", [CoordinatorUnavailableError("away"), CommitStateUnknownError("lost")])
@pytest.mark.parametrize("times", range(len(DEFAULT_PAUSES_SECONDS) + 1))
def test_a_retryable_failure_is_repeated_after_each_pause_in_turn(error, times, caplog):
    target = Failing(times, error)
    gateway, slept = _retrying(target)
    with caplog.at_level(logging.WARNING):
        assert gateway.jobs() == ()
    assert target.calls == times + 1
    assert slept == list(DEFAULT_PAUSES_SECONDS[:times])
    assert len(caplog.records) == times


@pytest.mark.parametrize("pauses", [(), (1.0, 2.0)])
def test_the_last_error_is_raised_when_the_pauses_are_used_up(pauses):
    target = Failing(100, CoordinatorUnavailableError("away"))
    gateway, slept = _retrying(target, pauses)
    with pytest.raises(CoordinatorUnavailableError, match="away"):
        gateway.jobs()
    assert (target.calls, slept) == (len(pauses) + 1, list(pauses))


@pytest.mark.parametrize("error", [StaleAttemptError("replaced"), CheckpointNotFoundError("none"), OSError("broken")])
def test_any_other_error_is_raised_at_once(error):
    target = Failing(1, error)
    gateway, slept = _retrying(target)
    with pytest.raises(type(error)):
        gateway.jobs()
    assert (target.calls, slept) == (1, [])


def _decline(gateway: StageGateway, attempt: AttemptRef, checkpoint_id: int) -> object:
    reason = CheckpointFailureReason.IO_EXCEPTION
    return gateway.decline(DeclineCheckpoint(attempt=attempt, checkpoint_id=checkpoint_id, reason=reason))


CALLS: dict[str, Callable[[StageGateway, AttemptRef, int], object]] = {
    "confirm_restore": lambda g, a, _: g.confirm_restore(ConfirmRestore(attempt=a, checkpoint_id=1)),
    "report_progress": lambda g, a, _: g.report_progress(ReportProgress(attempt=a, summary=CheckpointSummary())),
    "trigger": lambda g, a, _: g.trigger(TriggerCheckpoint(attempt=a, request_key=new_key())),
    "acknowledge": lambda g, a, i: g.acknowledge(make_acknowledgement(a, i)),
    "decline": _decline,
    "confirm_discards": lambda g, a, i: g.confirm_discards(a, (i,)),
    "confirm_commits": lambda g, a, i: g.confirm_commits(a, (i,)),
    "finish": lambda g, a, _: g.finish(FinishAttempt(attempt=a, status=AttemptStatus.FINISHED)),
    "describe": lambda g, a, _: g.describe(a.job_id),
}


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_every_call_takes_effect_once_although_it_was_made_twice(name, mode):
    coordinator = AttemptCoordinator(new_store())
    attempt = coordinator.register(make_registration()).attempt
    complete_checkpoint(coordinator, attempt)
    pending = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key())).checkpoint_id
    plan = FaultPlan(point=1, mode=mode)
    gateway, slept = _retrying(faulty_gateway(coordinator, plan))
    CALLS[name](gateway, attempt, pending)
    assert plan.calls == [name, name]
    assert slept == [DEFAULT_PAUSES_SECONDS[0]]
    view = coordinator.describe(attempt.job_id)
    assert len(view.checkpoints) == (3 if name == "trigger" else 2)
    assert len(view.attempts) == 1


def test_a_registration_whose_reply_was_lost_draws_no_second_epoch():
    plan = FaultPlan(point=1, mode=FaultMode.REPLY_LOST)
    coordinator = AttemptCoordinator(new_store())
    gateway, _ = _retrying(faulty_gateway(coordinator, plan))
    assert gateway.register(make_registration()).attempt.epoch == 1


def test_an_acknowledgement_whose_reply_was_lost_is_answered_as_a_duplicate():
    coordinator = AttemptCoordinator(new_store())
    attempt = coordinator.register(make_registration()).attempt
    plan = FaultPlan(point=2, mode=FaultMode.REPLY_LOST)
    gateway, _ = _retrying(faulty_gateway(coordinator, plan))
    reply = complete_checkpoint(gateway, attempt)
    assert reply.result is AcknowledgeResult.DUPLICATE
    assert reply.is_completed
    latest = gateway.latest(job_id_of("sales"), operator_id_of("aggregate"))
    assert latest == reply.checkpoint


@pytest.fixture
def tasks() -> RunningTasks:
    """Return the tasks; that of the first day runs."""
    return RunningTasks([day(1).run_id])


@pytest.fixture
def coordinator(tasks: RunningTasks) -> AttemptCoordinator:
    return AttemptCoordinator(new_store(), tasks)


@pytest.fixture
def running(coordinator: AttemptCoordinator) -> AttemptGrant:
    return coordinator.register(make_registration(owner=day(1, label="the first day")))


def test_a_run_that_waits_registers_when_the_other_has_ended(
    coordinator: Any, tasks: RunningTasks, running: AttemptGrant
) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            coordinator.finish(FinishAttempt(attempt=running.attempt, status=AttemptStatus.FINISHED))
            tasks.let_run()

    grant = registering(coordinator.register, OnOverlap.WAIT, sleep)(make_registration(owner=day(2)))
    assert grant.attempt.epoch == 2
    assert pauses == [10.0] * 3


def test_a_run_that_waits_says_once_for_whom(coordinator: Any, running: AttemptGrant, caplog: Any) -> None:
    pauses: list[float] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise TimeoutError

    with caplog.at_level(logging.INFO), pytest.raises(TimeoutError):
        registering(coordinator.register, OnOverlap.WAIT, sleep)(make_registration(owner=day(2)))
    assert [r.message for r in caplog.records if "waiting for" in r.message] == [
        "Operator 'aggregate' of job 'sales': waiting for the earlier run scheduled__2026-01-01"
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
