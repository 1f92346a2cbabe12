"""Stages whose coordinator answers late, as through a mailbox."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.stages.stage import Stage, Sum
from tests.spark.stages.stage_tries import StageTries

PARTS = [1, 2, 3, 4, 5]
EXPECTED = [{"id": 0, "total": sum(PARTS)}]
LONGEST_WAIT = 120.0


class LateTrigger:
    """Answers the first trigger when the stage reads a part."""

    def __init__(self, tries: StageTries, part: int, failing_at: int | None = None) -> None:
        self.loaded: list[int] = []
        self._part = part
        self._failing_at = failing_at
        self._is_read = threading.Event()
        self._trigger = tries.coordinator.trigger
        tries.coordinator.trigger = self.trigger

    def trigger(self, request: Any) -> Any:
        """Wait, and trigger a checkpoint."""
        assert self._is_read.wait(LONGEST_WAIT)
        return self._trigger(request)

    def load(self, spark: Any, part: int) -> Any:
        """Read a part of the input."""
        self.loaded.append(part)
        if part == self._part:
            self._is_read.set()
        if part == self._failing_at:
            self._failing_at = None
            raise ValueError("planned")
        return spark.range(1).selectExpr("id", f"{part} AS amount")


@pytest.fixture
def late(tries: StageTries) -> StageTries:
    tries.require_open = lambda: None
    return tries


def stage_of(tries: StageTries, trigger: LateTrigger, emit: Any = "end") -> Stage:
    rows = Stage("stage").source(DataFrameSource(PARTS, trigger.load)).key_by("id")
    totals = rows.aggregate(emit=emit, total=Sum("amount"))
    return totals.sink(ParquetSink(str(tries.output)))


def last_totals(tries: StageTries) -> list[dict[str, Any]]:
    return [max(tries.rows(), key=lambda row: row["total"])]


def test_increments_go_on_while_the_trigger_of_a_checkpoint_waits(late: StageTries) -> None:
    trigger = LateTrigger(late, part=4)
    result = late.run(stage_of(late, trigger, emit="changes"))
    assert (result.increments, trigger.loaded) == (len(PARTS), PARTS)
    assert last_totals(late) == EXPECTED
    # The increments before part 4 are in the checkpoint of one that began after the answer.
    assert len(late.view().checkpoints) <= 2


def test_a_retry_resumes_after_the_increment_that_ended_with_the_checkpoint(late: StageTries) -> None:
    trigger = LateTrigger(late, part=1, failing_at=4)
    with pytest.raises(ValueError, match="planned"):
        late.run(stage_of(late, trigger))
    saved = late.completed()[-1].counts["splits"]
    assert 1 <= saved <= 3
    trigger.loaded.clear()
    late.run(stage_of(late, trigger))
    assert trigger.loaded == PARTS[saved:]
    assert last_totals(late) == EXPECTED
