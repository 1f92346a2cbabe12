"""Which steps of a refining loop are written, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from airflow_provider_statecheck.spark.pacing import Pace
from airflow_provider_statecheck.spark.stage_costs import StageCosts
from airflow_provider_statecheck.spark.step_kinds import Refinement, RefiningLoop


class Frame:
    """A DataFrame as far as a loop that is put off needs one."""

    def localCheckpoint(self) -> Frame:
        return self


class Loop(RefiningLoop):
    """A loop that notes what it would write; a step takes a second."""

    def __init__(self, asked: Refinement, saving: Any) -> None:
        self._refinement = asked
        self._saving = saving
        self.written: list[int] = []

    def _write(self, number: int, frame: Any, stopwatch: Any) -> Any:
        self.written.append(number)
        return frame

    def _save(self, number: int, is_converged: bool) -> None:
        self._saving.pace.completed()


def written(*, pause: str | None, converged_at: int = 0, budget: float | None = None) -> tuple[list[int], int]:
    """Run ten steps and return which were written and how many were put off for their costs."""
    seconds = [0.0]
    costs = StageCosts(budget, lambda: seconds[0])
    costs.spent_seconds = 100.0
    saving = SimpleNamespace(costs=costs, pace=Pace(pause, None, lambda: seconds[0]))
    asked: Any = Refinement(
        initial=lambda: Frame(),  # type: ignore[arg-type,return-value]
        steps=10,
        every=1,
        step=lambda frame, _: frame,
        until=lambda *_: seconds[0] == converged_at,
        version=None,
    )
    loop = Loop(asked, saving)
    for number in range(1, 11):
        seconds[0] += 1.0
        frame: Any = Frame()
        if loop._checkpoint(number, frame, frame, Any)[1]:  # type: ignore[arg-type]
            break
    return loop.written, costs.put_off


def test_without_an_interval_each_border_is_written() -> None:
    assert written(pause=None) == (list(range(1, 11)), 0)


def test_a_step_inside_the_interval_is_not_written_and_the_last_one_always_is() -> None:
    assert written(pause="4 s") == ([4, 8, 10], 0)


def test_a_loop_that_is_over_inside_the_interval_is_written() -> None:
    assert written(pause="4 s", converged_at=6) == ([4, 6], 0)


def test_a_step_inside_the_interval_is_not_counted_as_put_off_for_its_costs() -> None:
    assert written(pause="1 h", budget=0.1) == ([10], 0)
    assert written(pause=None, budget=0.1) == ([10], 9)
