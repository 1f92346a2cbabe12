"""How far a stage has come, as lines of its log."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.spark.status_log import SmoothedRate, StageProgress, readable_seconds

GIB = 1 << 30


class Clock:
    def __init__(self) -> None:
        self.seconds = 50.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records]


@pytest.fixture(autouse=True)
def _all_lines(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)


def test_a_line_has_percent_rows_rate_and_the_time_to_go(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 10 * GIB, monotonic=clock)
    clock.seconds += 20
    progress.advance(2 * GIB, 5_000_000)
    assert said(caplog) == ["Stage balances: 20 %, 5,000,000 rows, 250,000 rows/s, about 80 s left"]


def test_after_a_restore_it_says_what_was_kept_and_counts_it_for_the_part_but_not_for_the_rate(
    clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    progress = StageProgress("balances", 1000, restored=610, monotonic=clock)
    clock.seconds += 10
    progress.advance(90, 400)
    assert said(caplog) == [
        "Stage balances resumes: 61 % restored",
        "Stage balances: 70 %, 400 rows, 40 rows/s, 61 % restored, about 33 s left",
    ]


def test_lines_come_no_sooner_than_every_few_seconds(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 1000, monotonic=clock)
    for _ in range(100):
        clock.seconds += 1
        progress.advance(1, 1)
    assert len(said(caplog)) == 10


def test_a_hundred_percent_is_said_at_the_end_only(clock: Clock) -> None:
    progress = StageProgress("balances", 1000, monotonic=clock)
    progress.advance(999, 1)
    assert progress.percent == 99
    progress.advance(1, 1)
    assert progress.percent == 100


def test_an_input_of_unknown_size_has_neither_percent_nor_end(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", None, restored=3, monotonic=clock)
    clock.seconds += 10
    progress.advance(1, 10)
    assert (progress.percent, progress.seconds_left) == (None, None)
    assert said(caplog) == [
        "Stage balances resumes: earlier progress restored",
        "Stage balances: 10 rows, 1 rows/s, earlier progress restored",
    ]


def test_an_input_without_bytes_is_done(clock: Clock) -> None:
    assert StageProgress("balances", 0, monotonic=clock).percent == 100


def test_an_input_that_grows_has_a_new_total(clock: Clock) -> None:
    progress = StageProgress("balances", 100, monotonic=clock)
    clock.seconds += 10
    progress.advance(50, 1, total=200)
    assert progress.percent == 25
    assert progress.seconds_left == pytest.approx(30)


def test_reading_more_than_was_promised_is_never_more_than_all(clock: Clock) -> None:
    progress = StageProgress("balances", 100, monotonic=clock)
    clock.seconds += 10
    progress.advance(150, 1)
    assert (progress.percent, progress.seconds_left) == (100, 0.0)


def test_nobody_can_tell_the_end_before_any_time_has_passed(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    progress = StageProgress("balances", 100, monotonic=clock)
    progress.advance(0, 0)
    assert progress.seconds_left is None
    assert said(caplog) == ["Stage balances: 0 %, 0 rows, 0 rows/s"]


@pytest.mark.parametrize(("restored", "tail"), [(0, ""), (610, ", 61 % restored")])
def test_the_last_line_says_what_this_try_has_done(
    clock: Clock, caplog: pytest.LogCaptureFixture, restored: int, tail: str
) -> None:
    progress = StageProgress("balances", 1000, restored=restored, monotonic=clock)
    clock.seconds += 20
    progress.advance(1000 - restored, 5000)
    progress.finished()
    assert said(caplog)[-1] == f"Stage balances finished: 5,000 rows in 20 s, 250 rows/s{tail}"


def test_a_stage_without_anything_to_do_is_done_in_no_time(clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    StageProgress("balances", 0, monotonic=clock).finished()
    assert said(caplog) == ["Stage balances finished: 0 rows in 0.0 s, 0 rows/s"]


def test_the_rate_follows_a_change_and_evens_out_a_single_slow_step() -> None:
    rate = SmoothedRate(60)
    for _ in range(100):
        rate.observe(10, 1)
    assert rate.per_second == pytest.approx(10)
    rate.observe(0, 5)
    assert 9 < rate.per_second < 10
    for _ in range(300):
        rate.observe(50, 1)
    assert rate.per_second == pytest.approx(50, rel=0.02)


@given(st.lists(st.tuples(st.integers(0, 1000), st.floats(0.01, 1000.0)), min_size=1))
def test_the_rate_lies_between_the_slowest_and_the_fastest_seen(steps: list[tuple[int, float]]) -> None:
    rate = SmoothedRate(60)
    for amount, seconds in steps:
        rate.observe(amount, seconds)
    rates = [amount / seconds for amount, seconds in steps]
    assert min(rates) * 0.999 <= rate.per_second <= max(rates) * 1.001


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (0.0, "0.0 s"),
        (1.24, "1.2 s"),
        (9.96, "10 s"),
        (119.4, "119 s"),
        (120, "2 min"),
        (240, "4 min"),
        (119 * 60, "119 min"),
        (120 * 60, "2 h"),
        (31 * 3600, "31 h"),
        (72 * 3600, "3 d"),
    ],
)
def test_a_duration_is_said_in_its_fitting_unit(seconds: float, shown: str) -> None:
    assert readable_seconds(seconds) == shown
