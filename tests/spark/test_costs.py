"""
What checkpointing may cost: steps that are written only where it pays, a budget, room on the disk, and files to read.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from airflow_provider_statecheck.checkpoint.masking import counted
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.spark.auto_snapshots import cached_bytes, is_cached
from airflow_provider_statecheck.spark.context import StageContext
from tests.spark.conftest import PACKAGE_ROOT
from tests.spark.tries import Disk, Tries, ids

PACKAGE = f"{PACKAGE_ROOT / 'airflow_provider_statecheck'}/"


def taking(tries: Tries, name: str, seconds: float, rows: int = 3) -> Callable[[], DataFrame]:
    """A builder that takes some time."""

    def build() -> DataFrame:
        tries.computed.append(name)
        tries.monotonic.seconds += seconds
        return tries.spark.range(rows).coalesce(1)

    return build


def cached_relations(spark: SparkSession) -> bool:
    return not spark._jsparkSession.sharedState().cacheManager().isEmpty()


# Automatic snapshots


def auto(tries: Tries, checkpoint: StageContext) -> list[list[int]]:
    """Three steps; writing each takes a second."""
    return [
        ids(checkpoint.snapshot(name, taking(tries, name, seconds), when="auto"))
        for name, seconds in [("first", 0.1), ("cheap", 1.9), ("costly", 1.8), ("last", 0.2)]
    ]


def test_a_step_is_written_where_computing_it_takes_longer_and_a_retry_decides_the_same(tries, caplog):
    tries.seconds_per_file = 1.0
    with caplog.at_level(logging.INFO), tries.failing() as checkpoint:
        assert auto(tries, checkpoint) == [[0, 1, 2]] * 4
        assert [step.name for step in checkpoint.steps] == ["first", "costly"]
        assert [step.write_seconds for step in checkpoint.steps] == [1.0, 1.0]
    assert tries.take_computed() == ["first", "cheap", "costly", "last"]
    lines = [r.getMessage().partition(" (")[0] for r in caplog.records if "for writing" in r.getMessage()]
    assert lines == [
        "Step cheap is not written: computing took 1.90 s < 2.00 s = 2 x 1.00 s for writing",
        (
            "Step costly is written: computing took 1.80 s and 1.90 s of unwritten steps before it >= 2.00 s = 2 x "
            "1.00 s "
            "for writing"
        ),
        "Step last is not written: computing took 0.20 s < 2.00 s = 2 x 1.00 s for writing",
    ]
    assert "Step first is written: computing took 0.10 s, the time of a write is not known yet" in caplog.text
    caplog.clear()
    with caplog.at_level(logging.INFO), tries.open() as checkpoint:
        assert auto(tries, checkpoint) == [[0, 1, 2]] * 4
    assert tries.take_computed() == ["cheap", "last"]
    assert "Step cheap is not written" in caplog.text
    assert "measured by an earlier attempt" in caplog.text


def test_a_step_that_is_not_written_is_computed_once_in_a_try_and_leaves_no_memory_taken(tries, spark):
    accumulator = spark.sparkContext.accumulator(0)

    def build() -> Any:
        def count(rows):
            for row in rows:
                accumulator.add(1)
                yield row

        return spark.createDataFrame(spark.sparkContext.parallelize([(1,), (2,)], 1).mapPartitions(count), "id long")

    tries.seconds_per_file = 100.0
    with tries.failing() as checkpoint:
        checkpoint.snapshot("first", tries.builder("first"), when="auto")
        frame = checkpoint.snapshot("rows", build, when="auto")
        assert is_cached(frame)
        assert ids(frame) == ids(frame) == [1, 2]
        assert accumulator.value == 2
        assert [step.name for step in checkpoint.steps] == ["first"]
    assert not is_cached(frame)
    assert not cached_relations(spark)


def test_what_the_user_has_cached_stays_cached(tries, spark):
    mine = spark.range(7).persist()
    try:
        with tries.open() as checkpoint:
            assert ids(checkpoint.snapshot("rows", mine, when="auto")) == list(range(7))
        assert is_cached(mine)
    finally:
        mine.unpersist()


def test_the_memory_of_an_item_is_given_back_with_it(tries, spark):
    tries.seconds_per_file = 100.0
    with tries.open() as checkpoint:
        checkpoint.snapshot("first", tries.builder("first"), when="auto")
        for _ in checkpoint.each("items", [1, 2]):
            assert not cached_relations(spark)
            checkpoint.snapshot("rows", tries.builder("rows", rows=5), when="auto")
            assert cached_relations(spark)


def test_a_step_of_an_item_that_is_not_written_is_left_out_where_there_is_too_little_room(tries, caplog):
    tries.free_bytes = 1
    with caplog.at_level(logging.INFO), tries.open() as checkpoint:
        assert ids(checkpoint.snapshot("rows", tries.builder("rows"), when="auto")) == [0, 1, 2]
    assert "Step rows is not written: Expected at least" in caplog.text
    assert tries.snapshots() == 0


@pytest.mark.parametrize("when", ["always", None, 1, "AUTO"])
def test_any_other_choice_is_refused_before_anything_is_computed(tries, when):
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match="True, False or 'auto'"):
        checkpoint.snapshot("rows", tries.builder("rows"), when=when)
    assert tries.take_computed() == []


def test_spark_tells_how_large_a_cached_dataframe_is(spark):
    frame = spark.range(100_000).coalesce(1)
    assert cached_bytes(frame) is None
    cached = frame.persist()
    try:
        frame.write.format("noop").mode("overwrite").save()
        size = cached_bytes(cached)
        assert size is not None
        assert 100_000 < size < 2_000_000
    finally:
        cached.unpersist()


# Budget


def work(tries: Tries, checkpoint: StageContext, items: int, every: int = 1) -> None:
    for _ in checkpoint.each("items", range(items), every=every):
        tries.monotonic.seconds += 1.0


def test_checkpoints_of_a_loop_are_put_off_where_they_would_cost_too_much(tries, caplog):
    tries.seconds_per_file = 1.0
    with caplog.at_level(logging.INFO), tries.open(overhead_budget=0.1) as checkpoint:
        work(tries, checkpoint, 30)
        assert checkpoint.costs.put_off == 26
    # After items 1, 9, 19 and 29, and what is left at the loop's end.
    assert tries.completed() == 5
    assert caplog.text.count("optional checkpoints are postponed") == 1
    postponed = counted(checkpoint.costs.put_off, "checkpoint")
    assert f"Checkpointing took 5.0 s of 35 s (14.3 %), {postponed} postponed" in caplog.text


def test_the_budget_is_one_for_all_tries(tries):
    tries.seconds_per_file = 4.0
    with tries.failing(overhead_budget=0.5) as checkpoint:
        checkpoint.snapshot("rows", taking(tries, "rows", 8.0))
        assert checkpoint.costs.spent_seconds == pytest.approx(4.0, abs=0.01)
        checkpoint.checkpoint()
    with tries.failing(overhead_budget=0.01) as checkpoint:
        assert checkpoint.costs.spent_seconds == pytest.approx(4.0, abs=0.01)
        assert checkpoint.costs.elapsed_seconds >= 16.0
        assert not checkpoint.costs.allow()


def test_what_is_asked_for_is_always_done(tries):
    tries.seconds_per_file = 10.0
    with tries.open(overhead_budget=0.001) as checkpoint:
        checkpoint.snapshot("one", tries.builder("one"))
        checkpoint.snapshot("two", tries.builder("two"))
        assert checkpoint.checkpoint() is not None
        assert checkpoint.costs.put_off == 0
    assert tries.snapshots() == 2


def test_an_automatic_snapshot_is_left_out_when_the_budget_is_used_up(tries, caplog):
    tries.seconds_per_file = 10.0
    with caplog.at_level(logging.INFO), tries.open(overhead_budget=0.1) as checkpoint:
        checkpoint.snapshot("one", tries.builder("one"))
        assert ids(checkpoint.snapshot("two", taking(tries, "two", 50.0), when="auto")) == [0, 1, 2]
        assert checkpoint.costs.put_off == 1
    assert "Step two is not written: overhead_budget is used up" in caplog.text
    assert tries.snapshots() == 1


@pytest.mark.soak
def test_a_refining_loop_without_budget_keeps_its_plans_short_and_saves_at_its_end(tries):
    depths = []

    def step(frame: DataFrame, number: int) -> DataFrame:
        depths.append(len(frame._jdf.queryExecution().analyzed().toString().splitlines()))
        tries.monotonic.seconds += 1.0
        return frame.selectExpr(f"id + {number} AS id")

    tries.seconds_per_file = 10.0
    with tries.failing(overhead_budget=0.1) as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(2), 10, 2, step=step)) == [55, 56]
        assert checkpoint.costs.put_off == 3
        assert tries.completed() == 2
    assert max(depths) <= depths[1] + 2
    with tries.open() as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(2), 10, 2, step=step)) == [55, 56]
    assert len(depths) == 10


@pytest.mark.parametrize("budget", [0, 1.5, True, "much"])
def test_a_budget_out_of_range_is_refused_before_an_attempt_is_registered(tries, budget):
    with pytest.raises(InvalidConfigurationError, match="overhead_budget"):
        StageContext.open(
            tries.spark,
            job="budget",
            checkpoint_dir=str(tries.checkpoints),
            metadata=tries.metadata,
            overhead_budget=budget,
        )
    assert not Path(tries.metadata.removeprefix("sqlite:///")).exists()


# Room


def test_a_full_disk_is_named_and_the_retry_computes_what_could_not_be_written(tries, monkeypatch):
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, tries.failing() as checkpoint:
        patch.setattr(Disk, "write_bytes", full)
        with pytest.raises(StorageError, match=r"No space left on device.*, in file:") as raised:
            checkpoint.snapshot("rows", tries.builder("rows"))
    assert (raised.value.__cause__, tries.snapshots()) == (None, 0)
    with tries.open() as checkpoint:
        assert ids(checkpoint.snapshot("rows", tries.builder("rows"))) == [0, 1, 2]
    assert tries.take_computed() == ["rows", "rows"]


def test_a_step_that_will_not_fit_is_refused_before_it_is_computed(tries):
    tries.free_bytes = 64 * 1024**2 - 1
    with pytest.raises(StorageError, match="the minimum for an unknown size"), tries.open() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows"))
    assert tries.take_computed() == []


def test_a_changed_step_needs_as_much_room_as_its_last_snapshot(tries):
    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows", rows=10), version="1")
        size = checkpoint.steps[0].size_bytes
    tries.take_computed()
    tries.free_bytes = size - 1
    with pytest.raises(StorageError, match=f"at least {size} free bytes"), tries.open() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows", rows=10), version="2")
    assert tries.take_computed() == []
    tries.free_bytes = size
    with tries.open() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows", rows=10), version="2")
    assert tries.take_computed() == ["rows"]


def test_a_restored_step_needs_no_room(tries):
    with tries.failing() as checkpoint:
        checkpoint.snapshot("rows", tries.builder("rows"))
    tries.free_bytes = 0
    with tries.open() as checkpoint:
        assert ids(checkpoint.snapshot("rows", tries.builder("rows"))) == [0, 1, 2]


# Files of the package, each of which a reader of the code must understand


def is_of_import(frame: FrameType | None) -> bool:
    """Return whether a module of the package is being imported in a frame or around it."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_code.co_filename.startswith(PACKAGE):
            return True
        frame = frame.f_back
    return False


@contextmanager
def files_passed() -> Iterator[set[str]]:
    """Collect the files of the package in which a function runs; imports, and what they call, do not count."""
    passed: set[str] = set()

    def note(frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(PACKAGE) and not is_of_import(frame):
            passed.add(file.removeprefix(PACKAGE))

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        yield passed
    finally:
        sys.setprofile(before)


def test_a_step_and_the_life_of_a_stage_pass_few_files_of_the_package(tries, caplog):
    with caplog.at_level(logging.INFO), files_passed() as life:  # with the lines of the log, as in a task
        with tries.failing() as checkpoint, files_passed() as step:
            checkpoint.snapshot("rows", tries.builder("rows"))
        with tries.open() as checkpoint:
            assert ids(checkpoint.snapshot("rows", tries.builder("rows"))) == [0, 1, 2]
    assert len(step) <= 41, sorted(step)
    assert len(life | step) <= 64, sorted(life | step)
