"""Which steps of a refining loop are written, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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


@pytest.mark.parametrize(
    ("asked", "steps", "put_off"),
    [
        pytest.param({"pause": None}, list(range(1, 11)), 0, id="each border without an interval"),
        pytest.param({"pause": "4 s"}, [4, 8, 10], 0, id="one per interval and the last"),
        pytest.param({"pause": "4 s", "converged_at": 6}, [4, 6], 0, id="a loop that is over inside the interval"),
        pytest.param({"pause": None, "budget": 0.1}, [10], 9, id="put off for its costs"),
        pytest.param({"pause": "1 h", "budget": 0.1}, [10], 0, id="inside the interval and so not for its costs"),
    ],
)
def test_a_step_is_written_at_the_interval_within_the_costs_and_at_the_end(
    asked: dict[str, Any], steps: list[int], put_off: int
) -> None:
    assert written(**asked) == (steps, put_off)
