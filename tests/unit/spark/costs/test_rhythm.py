from __future__ import annotations

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.costs.rhythm import Rhythm, require_every
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
    rhythm = Rhythm(every, None, StageCosts(None, clock), clock)
    assert run(rhythm, clock, 7) == expected
    assert rhythm.unsaved == 7 - max(expected, default=0)


def test_a_checkpoint_is_due_when_the_last_one_is_old(clock):
    rhythm = Rhythm(100, 10.0, StageCosts(None, clock), clock)
    assert run(rhythm, clock, 7, seconds=4.0) == [3, 6]


def test_a_due_checkpoint_waits_for_budget_and_is_taken_with_the_first_item_that_has_it(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 0.65
    rhythm = Rhythm(2, None, costs, clock)
    assert run(rhythm, clock, 9, seconds=1.0) == [7, 9]
    assert costs.put_off == 3


def test_a_checkpoint_that_waits_for_budget_is_counted_once_for_each_time_it_was_due(clock):
    costs = StageCosts(0.1, clock)
    costs.spent_seconds = 100.0
    rhythm = Rhythm(100, 10.0, costs, clock)
    assert run(rhythm, clock, 25, seconds=2.0) == []
    assert (costs.put_off, rhythm.unsaved) == (5, 25)


@pytest.mark.parametrize("every", [0, -1, 1.5, True, "2", None])
def test_a_rhythm_that_is_no_whole_number_of_at_least_one_is_refused(every):
    with pytest.raises(InvalidConfigurationError, match="every to be at least 1"):
        require_every(every)
