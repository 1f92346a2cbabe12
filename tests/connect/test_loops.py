"""Refining loops, automatic snapshots and a budget over Spark Connect do what they do on a session of this process."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import StageContext
from airflow_provider_statecheck.spark.auto_snapshots import cached_bytes, is_cached
from tests.soak import rest_in_soak


def open_stage(spark: Any, work: Path, **settings: Any) -> StageContext:
    return StageContext.open(
        spark, job="j", checkpoint_dir=str(work / "checkpoints"), metadata=f"sqlite:///{work}/state.db", **settings
    )


@pytest.mark.soak
@pytest.mark.parametrize("budget", rest_in_soak([None, 1e-9], None), ids=["saved", "put off"])
def test_a_loop_goes_on_after_its_last_snapshot(spark, tmp_path: Path, budget) -> None:
    steps: list[int] = []

    def run(checkpoint: StageContext, fail_at: int) -> list[int]:
        def step(frame: Any, number: int) -> Any:
            steps.append(number)
            if number == fail_at:
                raise RuntimeError("planned")
            return frame.select((frame.id * 2 + number).alias("id"))

        def is_over(now: Any, before: Any) -> bool:
            return bool(now.where("id > 10000").count() > 0)

        found = checkpoint.iterate("ids", lambda: spark.range(2), 7, 2, step=step, until=is_over)
        return sorted(row.id for row in found.collect())

    with pytest.raises(RuntimeError, match="planned"), open_stage(spark, tmp_path, overhead_budget=budget) as first:
        run(first, fail_at=6)
    with open_stage(spark, tmp_path) as second:
        assert run(second, fail_at=0) == [247, 375]
    # The first snapshot is within any budget, because nothing was spent before.
    begin = 5 if budget is None else 3
    assert steps == [*range(1, 7), *range(begin, 8)]


@pytest.mark.soak
def test_an_automatic_step_is_measured(spark, tmp_path: Path, caplog) -> None:
    with caplog.at_level(logging.INFO), open_stage(spark, tmp_path) as checkpoint:
        first = checkpoint.snapshot("first", lambda: spark.range(5), when="auto")
        assert first.count() == 5
        assert [step.name for step in checkpoint.steps] == ["first"]
        second = checkpoint.snapshot("second", lambda: first.selectExpr("id + 1 AS id"), when="auto")
        assert second.count() == 5
    assert "Step first is written" in caplog.text
    assert "for writing (about" in caplog.text
    assert not is_cached(second)


def test_spark_tells_how_large_a_cached_dataframe_is(spark) -> None:
    frame = spark.range(100_000).persist()
    frame.write.format("noop").mode("overwrite").save()
    assert 100_000 < (cached_bytes(frame) or 0) < 2_000_000
    frame.unpersist()
