"""The pace of an attempt: as it is configured, or found by what its job remembers."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.costs.pacing import SHORTEST_SECONDS, optimal_interval, pace_of, require_pace
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.spark.costs.test_pace import Clock
from tests.unit.written_stage import WrittenStage

DAY = 24 * 3600.0


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(f"file://{tmp_path}"))


def test_interval_is_found_by_the_costs_and_failures_of_the_job(stage: WrittenStage) -> None:
    attempt, clock = stage.attempt(), Clock()
    stage.clock.advance(8)
    pace = pace_of(attempt, "auto", None, clock)
    pace.completed(4.0)
    clock.seconds += optimal_interval(4.0, DAY + 8) - 1
    assert not pace.allows()
    clock.seconds += 1
    assert pace.allows()


def test_interval_that_is_given_is_taken(stage: WrittenStage) -> None:
    clock = Clock()
    pace = pace_of(stage.attempt(), "5 s", None, clock)
    clock.seconds += 5
    assert pace.allows()


@pytest.mark.parametrize("interval", ["auto", "5 s", None])
def test_what_a_pace_is_made_of_is_checked_before_there_is_an_attempt(interval: str | None) -> None:
    require_pace(interval, None)
    with pytest.raises(InvalidConfigurationError, match="min_pause"):
        require_pace(interval, -1)


def test_loop_finds_its_interval_and_learns_what_its_checkpoints_cost(stage: WrittenStage) -> None:
    clock = Clock()
    with StageContext(None, stage.attempt(), checkpoint_interval="auto", monotonic=clock) as checkpoint:  # type: ignore[arg-type]
        pace = checkpoint._saving.pace
        for number in checkpoint.each("items", range(3)):
            checkpoint.state["number"] = number
            clock.seconds += 5
        # Three items of 5 s are less than the interval of a second's assumed cost: the last one alone was saved. It cost
        # nothing by this clock, which leads to the shortest interval.
        assert len(stage.statuses()) == 1
        assert not pace.allows()
        clock.seconds += SHORTEST_SECONDS
        assert pace.allows()
