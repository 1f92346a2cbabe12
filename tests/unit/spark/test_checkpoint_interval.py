"""
When checkpoints are taken: the least time between them, and the interval that follows from their cost and failures.
"""

from __future__ import annotations

import logging
import math
import random
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, FinishAttempt, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from airflow_provider_statecheck.spark.checkpoint_interval import (
    LONGEST_SECONDS,
    SHORTEST_SECONDS,
    AutoInterval,
    FailureHistory,
    Pace,
    Rhythm,
    measured_costs,
    optimal_interval,
    pace_of,
)
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.stage_costs import StageCosts
from tests.messages import ManualClock, make_acknowledgement, make_registration, make_savepoint_request
from tests.sqlite_rows import new_store
from tests.unit.spark.conftest import Clock
from tests.unit.written_stage import WrittenStage


@pytest.mark.parametrize(
    ("interval", "pause", "before_the_first", "between"),
    [
        (None, None, 0.0, 0.0),
        ("5 s", None, 5.0, 5.0),
        (None, "5 s", 0.0, 5.0),
        (2000, 5000, 2.0, 5.0),
        (timedelta(seconds=5), timedelta(seconds=2), 5.0, 5.0),
    ],
)
def test_the_interval_counts_from_the_beginning_and_the_pause_from_a_completed_checkpoint(
    interval: Any, pause: Any, before_the_first: float, between: float
) -> None:
    clock = Clock()
    pace = Pace(interval, pause, clock)
    for wait in (before_the_first, between, between):
        assert pace.allows() is (wait == 0)
        clock.seconds += wait - 0.001 if wait else 0.0
        assert pace.allows() is (wait == 0)
        clock.seconds += 0.001
        assert pace.allows()
        pace.completed()


@pytest.mark.parametrize(
    ("interval", "pause", "name"),
    [(9, None, "checkpoint_interval"), ("soon", None, "checkpoint_interval"), (None, -1, "min_pause to")],
)
def test_a_duration_out_of_range_is_refused_by_its_name(interval: Any, pause: Any, name: str) -> None:
    with pytest.raises(InvalidConfigurationError, match=f"Expected {name}"):
        Pace(interval, pause, Clock())


def test_what_a_checkpoint_took_changes_the_time_after_it_but_not_when_that_begins() -> None:
    clock = Clock()
    auto = AutoInterval(FailureHistory(failures=1, seconds=3600.0))
    pace = Pace(auto, None, clock)
    pace.completed()
    clock.seconds += 30.0
    pace.observed(8.0)
    clock.seconds += auto.seconds - 30.001
    assert not pace.allows()
    clock.seconds += 0.002
    assert pace.allows()


DAY = 24 * 3600.0


def test_interval_is_found_by_the_costs_and_failures_of_the_job(stage: WrittenStage) -> None:
    attempt, clock = stage.attempt(), Clock()
    stage.clock.advance(8)
    pace = pace_of(attempt, "auto", None, clock)
    pace.completed(4.0)
    clock.seconds += optimal_interval(4.0, DAY + 8) - 1
    assert not pace.allows()
    clock.seconds += 1
    assert pace.allows()


def test_costs_that_are_given_decide_about_the_first_interval(stage: WrittenStage) -> None:
    pace = pace_of(stage.attempt(), "auto", None, Clock(), [9.0])
    assert pace.interval_seconds == pytest.approx(optimal_interval(9.0, DAY))


def test_interval_that_is_given_is_taken(stage: WrittenStage) -> None:
    clock = Clock()
    pace = pace_of(stage.attempt(), "5 s", None, clock)
    clock.seconds += 5
    assert pace.allows()


def test_loop_finds_its_interval_and_learns_what_its_checkpoints_cost(stage: WrittenStage) -> None:
    clock = Clock()
    with StageContext(None, stage.attempt(), checkpoint_interval="auto", monotonic=clock) as checkpoint:  # type: ignore[arg-type]
        for number in checkpoint.each("items", range(3)):
            checkpoint.state["number"] = number
            clock.seconds += 5
        # Three items of 5 s are less than the interval of a second's assumed cost: the last one alone was saved. It
        # cost nothing by this clock, which leads to the shortest interval.
        assert len(stage.statuses()) == 1
        for number in checkpoint.each("shorter items", range(3)):
            assert len(stage.statuses()) == (1, 1, 2)[number]
            clock.seconds += SHORTEST_SECONDS / 2
        assert len(stage.statuses()) == 3


def run(rhythm: Rhythm, clock: Clock, items: int, *, seconds: float = 1.0, pace: Pace | None = None) -> list[int]:
    """Return after which items a checkpoint was completed, each item taking some seconds."""
    taken = []
    for item in range(1, items + 1):
        clock.seconds += seconds
        if rhythm.is_time():
            taken.append(item)
            if pace is not None:
                pace.completed()
            rhythm.taken()
    return taken


def test_a_due_checkpoint_waits_for_budget_and_is_taken_with_the_first_item_that_has_it(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 0.65
    rhythm = Rhythm(2, None, costs, Pace(None, None, clock), clock)
    assert run(rhythm, clock, 9) == [7, 9]
    assert costs.put_off == 3


def test_a_checkpoint_that_waits_for_budget_is_counted_once_for_each_time_it_was_due(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 100.0
    rhythm = Rhythm(100, 10.0, costs, Pace(None, None, clock), clock)
    assert run(rhythm, clock, 25, seconds=2.0) == []
    assert (costs.put_off, rhythm.unsaved) == (5, 25)


def test_a_due_checkpoint_waits_for_the_interval_since_the_last_one(clock):
    pace = Pace("4 s", None, clock)
    rhythm = Rhythm(1, None, StageCosts(None, clock), pace, clock)
    assert run(rhythm, clock, 10, pace=pace) == [4, 8]
    assert rhythm.unsaved == 2


def test_a_checkpoint_that_was_due_in_the_pause_is_taken_with_the_first_item_behind_it(clock):
    pace = Pace(None, "6 s", clock)
    rhythm = Rhythm(3, 5.0, StageCosts(None, clock), pace, clock)
    assert run(rhythm, clock, 16, pace=pace) == [3, 9, 15]


def test_a_pause_is_no_checkpoint_put_off_for_its_costs(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 100.0
    pace = Pace("1 h", None, clock)
    assert run(Rhythm(1, None, costs, pace, clock), clock, 5, pace=pace) == []
    assert costs.put_off == 0


def test_a_checkpoint_that_somebody_asked_for_begins_the_pause_anew(clock):
    pace = Pace("4 s", None, clock)
    rhythm = Rhythm(1, None, StageCosts(None, clock), pace, clock)
    assert run(rhythm, clock, 3, pace=pace) == []
    pace.completed()
    assert run(rhythm, clock, 4, pace=pace) == [4]


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
    suspend, target = CheckpointType.SAVEPOINT_SUSPEND, "memory://savepoints"
    asked = job.savepoints.request(make_savepoint_request(stopped.attempt, target=target, kind=suspend))
    trigger = TriggerCheckpoint(
        attempt=stopped.attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=target
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


HOUR = 3600.0


def lost_share(interval: float, cost: float, mean_time: float) -> float:
    """
    Return the expected time per second of work under failures without memory: Daly's complete model, restart free.
    """
    return mean_time * math.expm1((interval + cost) / mean_time) / interval


@pytest.mark.parametrize(
    ("cost", "mean_time", "expected"),
    [
        (1.0, 86_400.0, 414.7),  # the square root of 2 * 1 * 86400, 415.7, nearly all of it
        (60.0, 86_400.0, 3179.8),
        (300.0, 3600.0, 1276.5),
        # Where a checkpoint costs more than failures leave, the interval is the time between them.
        (100.0, 50.0, 50.0),
        (200.0, 50.0, 50.0),
        (0.0, 3600.0, 0.0),
    ],
)
def test_the_interval_is_dalys(cost: float, mean_time: float, expected: float) -> None:
    assert optimal_interval(cost, mean_time) == pytest.approx(expected, rel=2e-3)


@given(st.floats(0.001, 100.0), st.floats(1e4, 1e7))
def test_a_cheap_checkpoint_is_taken_at_nearly_youngs_interval(cost: float, mean_time: float) -> None:
    young = math.sqrt(2 * cost * mean_time)
    assert optimal_interval(cost, mean_time) == pytest.approx(young, rel=math.sqrt(cost / mean_time))


@given(st.floats(0.01, 500.0), st.floats(500.0, 1e6))
def test_no_other_interval_loses_noticeably_less(cost: float, mean_time: float) -> None:
    chosen = optimal_interval(cost, mean_time)
    least = min(lost_share(chosen * factor, cost, mean_time) for factor in (0.5, 0.7, 0.9, 1.1, 1.4, 2.0))
    assert lost_share(chosen, cost, mean_time) <= least * 1.005


@pytest.mark.parametrize(("cost", "mean_time"), [(-1.0, 10.0), (1.0, 0.0)])
def test_a_cost_below_zero_or_no_time_between_failures_is_refused(cost: float, mean_time: float) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected a cost"):
        optimal_interval(cost, mean_time)


def test_one_failure_a_day_is_assumed_of_a_job_without_history() -> None:
    assert FailureHistory().mean_time_between_failures == 24 * HOUR
    assert FailureHistory(2, 31 * HOUR).mean_time_between_failures == 55 * HOUR / 3
    assert FailureHistory(99, 76 * HOUR).mean_time_between_failures == HOUR


def test_the_reason_names_cost_and_failures() -> None:
    interval = AutoInterval(FailureHistory(2, 31 * HOUR), [1.2])
    assert interval.seconds == pytest.approx(optimal_interval(1.2, 55 * HOUR / 3))
    assert interval.reason == "every 7 min: checkpoint cost 1.2 s, 2 failures in 31 h"


@pytest.mark.parametrize(
    ("history", "costs", "reason"),
    [
        (FailureHistory(), [], "every 7 min: assumed checkpoint cost 1.0 s, assumed 1 failure in 24 h"),
        (FailureHistory(0, 31 * HOUR), [2.0], "every 15 min: checkpoint cost 2.0 s, 0 failures in 31 h"),
        (FailureHistory(1, HOUR / 2), [30.0], "every 27 min: checkpoint cost 30 s, 1 failure in 30 min"),
        (
            FailureHistory(0, 1000 * HOUR),
            [120.0],
            "every 60 min (upper limit): checkpoint cost 2 min, 0 failures in 42 d",
        ),
        (FailureHistory(900, 2 * HOUR), [0.01], "every 10 s (lower limit): checkpoint cost 0.0 s, 900 failures in 2 h"),
    ],
)
def test_the_reason_says_what_is_assumed_and_where_a_bound_was_met(
    history: FailureHistory, costs: list[float], reason: str
) -> None:
    assert AutoInterval(history, costs).reason == reason


def test_newer_costs_count_more_and_one_outlier_does_not_decide() -> None:
    interval = AutoInterval(FailureHistory(), [1.0] * 20)
    before = interval.seconds
    interval.observe(100.0)
    assert before < interval.seconds < AutoInterval(FailureHistory(), [100.0]).seconds
    for _ in range(30):
        interval.observe(1.0)
    assert interval.seconds == pytest.approx(before, rel=0.01)


@given(st.lists(st.floats(0.0, 1e5)), st.integers(0, 10**6), st.floats(0.0, 1e9))
def test_the_interval_stays_within_its_bounds(costs: list[float], failures: int, seconds: float) -> None:
    interval = AutoInterval(FailureHistory(failures, seconds), costs)
    assert SHORTEST_SECONDS <= interval.seconds <= LONGEST_SECONDS


def test_with_it_a_simulated_job_ends_sooner_than_with_a_fixed_interval_far_from_it() -> None:
    cost, mean_time, work = 5.0, 1800.0, 20 * HOUR

    def duration(interval: float) -> float:
        draw = random.Random(7)
        total, done = 0.0, 0.0
        failure = draw.expovariate(1 / mean_time)
        while done < work:
            step = min(interval, work - done) + cost
            if failure < step:
                total += failure
                failure = draw.expovariate(1 / mean_time)
            else:
                total, failure, done = total + step, failure - step, done + step - cost
        return total

    chosen = duration(AutoInterval(FailureHistory(47, 24 * HOUR), [cost]).seconds)
    assert chosen < min(duration(15.0), duration(1200.0))


def test_a_pace_waits_for_the_interval_as_it_is_after_each_measured_cost() -> None:
    clock = Clock()
    auto = AutoInterval(FailureHistory(), [1.0])
    pace = Pace(auto, None, clock)
    for cost in (50.0, 50.0, None):
        wait = auto.seconds
        clock.seconds += wait - 0.001
        assert not pace.allows()
        clock.seconds += 0.002
        assert pace.allows()
        pace.completed(cost)
        assert (auto.seconds > wait) is (cost is not None)


def test_a_pause_lengthens_an_interval_that_is_found_by_itself() -> None:
    clock = Clock()
    auto = AutoInterval(FailureHistory(), [0.0])
    pace = Pace(auto, "1 min", clock)
    pace.completed(0.0)
    clock.seconds += 59.9
    assert not pace.allows()
    clock.seconds += 0.2
    assert pace.allows()


def test_the_reason_is_logged_at_first_and_when_the_interval_has_changed_much(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    pace = Pace(AutoInterval(FailureHistory(), [1.0]), None, Clock())
    pace.completed(1.01)
    assert caplog.messages == ["Checkpoints are taken every 7 min: checkpoint cost 1.0 s, assumed 1 failure in 24 h."]
    pace.completed(100.0)
    assert len(caplog.messages) == 2
