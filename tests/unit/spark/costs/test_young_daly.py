"""How much time lies between two checkpoints, from what one costs and how often the job fails."""

from __future__ import annotations

import logging
import math
import random

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.pacing import AutoInterval, FailureHistory, Pace, optimal_interval

HOUR = 3600.0


def lost_share(interval: float, cost: float, mean_time: float) -> float:
    """Return the expected time per second of work under failures without memory: Daly's complete model, restart free."""
    return mean_time * math.expm1((interval + cost) / mean_time) / interval


@pytest.mark.parametrize(
    ("cost", "mean_time", "expected"),
    [
        (1.0, 86_400.0, 414.7),  # the square root of 2 * 1 * 86400, 415.7, nearly all of it
        (60.0, 86_400.0, 3179.8),
        (300.0, 3600.0, 1276.5),
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


def test_where_a_checkpoint_costs_more_than_failures_leave_the_interval_is_the_time_between_them() -> None:
    assert optimal_interval(100.0, 50.0) == 50.0
    assert optimal_interval(200.0, 50.0) == 50.0


def test_a_free_checkpoint_is_taken_all_the_time() -> None:
    assert optimal_interval(0.0, HOUR) == 0.0


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
        (
            FailureHistory(900, 2 * HOUR),
            [0.01],
            "every 10 s (lower limit): checkpoint cost 0.0 s, 900 failures in 2 h",
        ),
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
    interval = AutoInterval(FailureHistory(failures, seconds), costs, shortest=20.0, longest=50.0)
    assert 20.0 <= interval.seconds <= 50.0


@pytest.mark.parametrize(("shortest", "longest"), [(0.0, 1.0), (2.0, 1.0)])
def test_bounds_that_leave_nothing_are_refused(shortest: float, longest: float) -> None:
    with pytest.raises(InvalidConfigurationError, match="shortest"):
        AutoInterval(FailureHistory(), shortest=shortest, longest=longest)


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


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


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
