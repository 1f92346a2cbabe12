"""When a loop takes its checkpoints."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.pacing import Pace, Rhythm, require_every
from airflow_provider_statecheck.spark.costs.stage_costs import StageCosts


class Clock:
    def __init__(self) -> None:
        self.seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


@pytest.fixture
def clock() -> Clock:
    return Clock()


def run(rhythm: Rhythm, clock: Clock, items: int, *, seconds: float = 0.0) -> list[int]:
    """Return after which items a checkpoint was taken, each item taking some seconds."""
    taken = []
    for item in range(1, items + 1):
        clock.seconds += seconds
        if rhythm.is_time():
            taken.append(item)
            rhythm.taken()
    return taken


@pytest.mark.parametrize(("every", "expected"), [(1, [1, 2, 3, 4, 5, 6, 7]), (3, [3, 6]), (8, [])])
def test_a_checkpoint_is_due_after_so_many_items(clock, every, expected):
    rhythm = Rhythm(every, None, StageCosts(None, clock), Pace(None, None, clock), clock)
    assert run(rhythm, clock, 7) == expected
    assert rhythm.unsaved == 7 - max(expected, default=0)


def test_a_checkpoint_is_due_when_the_last_one_is_old(clock):
    rhythm = Rhythm(100, 10.0, StageCosts(None, clock), Pace(None, None, clock), clock)
    assert run(rhythm, clock, 7, seconds=4.0) == [3, 6]


def test_a_due_checkpoint_waits_for_budget_and_is_taken_with_the_first_item_that_has_it(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 0.65
    rhythm = Rhythm(2, None, costs, Pace(None, None, clock), clock)
    assert run(rhythm, clock, 9, seconds=1.0) == [7, 9]
    assert costs.put_off == 3


def test_a_checkpoint_that_waits_for_budget_is_counted_once_for_each_time_it_was_due(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 100.0
    rhythm = Rhythm(100, 10.0, costs, Pace(None, None, clock), clock)
    assert run(rhythm, clock, 25, seconds=2.0) == []
    assert (costs.put_off, rhythm.unsaved) == (5, 25)


def run_paced(rhythm: Rhythm, pace: Pace, clock: Clock, items: int) -> list[int]:
    """Return after which items a checkpoint was completed, each item taking a second."""
    taken = []
    for item in range(1, items + 1):
        clock.seconds += 1.0
        if rhythm.is_time():
            taken.append(item)
            pace.completed()
            rhythm.taken()
    return taken


def test_a_due_checkpoint_waits_for_the_interval_since_the_last_one(clock):
    pace = Pace("4 s", None, clock)
    rhythm = Rhythm(1, None, StageCosts(None, clock), pace, clock)
    assert run_paced(rhythm, pace, clock, 10) == [4, 8]
    assert rhythm.unsaved == 2


def test_a_checkpoint_that_was_due_in_the_pause_is_taken_with_the_first_item_behind_it(clock):
    pace = Pace(None, "6 s", clock)
    rhythm = Rhythm(3, 5.0, StageCosts(None, clock), pace, clock)
    assert run_paced(rhythm, pace, clock, 16) == [3, 9, 15]


def test_a_pause_is_no_checkpoint_put_off_for_its_costs(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 100.0
    pace = Pace("1 h", None, clock)
    assert run_paced(Rhythm(1, None, costs, pace, clock), pace, clock, 5) == []
    assert costs.put_off == 0


def test_a_checkpoint_that_somebody_asked_for_begins_the_pause_anew(clock):
    pace = Pace("4 s", None, clock)
    rhythm = Rhythm(1, None, StageCosts(None, clock), pace, clock)
    assert run_paced(rhythm, pace, clock, 3) == []
    pace.completed()
    assert run_paced(rhythm, pace, clock, 4) == [4]


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2", None])
def test_a_rhythm_that_is_no_whole_number_of_at_least_one_is_refused(every):
    with pytest.raises(InvalidConfigurationError, match="every to be a whole number of at least 1"):
        require_every(every)
