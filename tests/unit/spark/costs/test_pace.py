"""How soon after a checkpoint the next one may be taken by itself."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.pacing import AutoInterval, FailureHistory, Pace


class Clock:
    def __init__(self) -> None:
        self.seconds = 100.0

    def __call__(self) -> float:
        return self.seconds


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
    [(9, None, "checkpoint_interval"), ("soon", None, "checkpoint_interval"), (None, -1, "min_pause")],
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
