"""A stage of functions of single rows computes many increments in one job, and commits each of them once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.stages.split_plans import SplitPlan
from airflow_provider_statecheck.spark.stages.stage import Stage
from airflow_provider_statecheck.state.functions.user_functions import BoundedOneInput, MapFunction
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_partial_state import BrokenRows

ROWS = 50


class Counting(MapFunction[Any, tuple[int]], BoundedOneInput):
    """Passes rows on, and has an end."""

    def map(self, value: Any) -> tuple[int]:
        return (value.id,)

    def end_input(self) -> Iterator[Any]:
        return iter(())


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Note the number of increments of each job over several."""
    noted: list[int] = []
    plan = SplitPlan.of_frames

    def planned(self: SplitPlan, frames: Any, records: str) -> Any:
        noted.append(len(frames))
        return plan(self, frames, records)

    monkeypatch.setattr(SplitPlan, "of_frames", planned)
    return noted


def files(tries: StageTries, count: int) -> None:
    tries.write_input(*({"id": list(range(number * ROWS, (number + 1) * ROWS))} for number in range(count)))


def doubling(tries: StageTries, function: Any = lambda row: (2 * row.id,)) -> Stage:
    stage = Stage("stage", parallelism=2).source(ParquetSource(str(tries.input), files_per_increment=1))
    return stage.map(function, uid="doubled", output="id bigint").sink(ParquetSink(str(tries.output)))


def doubled(count: int) -> list[int]:
    return [2 * number for number in range(count * ROWS)]


def ids(tries: StageTries) -> list[int]:
    return sorted(row["id"] for row in tries.rows())


def test_increments_without_state_are_one_job(tries: StageTries, jobs: list[int]) -> None:
    files(tries, 5)
    result = tries.run(doubling(tries))
    assert (result.increments, result.rows) == (5, 5 * ROWS)
    assert jobs == [5]
    assert ids(tries) == doubled(5)
    assert list(tries.output.rglob("*.staged")) == []


def test_output_before_a_failure_is_committed_and_not_computed_again(tries: StageTries, jobs: list[int]) -> None:
    files(tries, 5)
    obstacle, checkpoints = tries.folder / "obstacle", tries.folder / "checkpoints"
    obstacle.touch()

    def double(row: Any) -> tuple[int]:
        if row.id >= 3 * ROWS and obstacle.exists():
            next(iter(BrokenRows(checkpoints, records=3)(())))
        return (2 * row.id,)

    with pytest.raises(Exception, match="broken"):
        tries.run(doubling(tries, double))
    # The third file is not known to be complete without a record of the fourth.
    assert ids(tries) == doubled(2)
    obstacle.unlink()
    assert tries.run(doubling(tries, double)).rows == 3 * ROWS
    assert ids(tries) == doubled(5)
    assert jobs == [5, 3]


def test_functions_with_an_end_keep_a_job_for_each_increment(tries: StageTries, jobs: list[int]) -> None:
    files(tries, 3)
    tries.run(doubling(tries, Counting()))
    assert ids(tries) == list(range(3 * ROWS))
    assert jobs == []
