"""Loops that refine a DataFrame: equal to a plain loop, resumed in the middle, with short plans and few bytes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.sql import DataFrame, functions as F

from airflow_provider_statecheck.checkpoint.records import OnClear
from airflow_provider_statecheck.exceptions import DuplicateNameError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.spark.context import StageContext
from tests.soak import rest_in_soak
from tests.spark.tries import PlannedError, Tries, ids

EDGES = [(1, 2), (1, 3), (2, 3), (3, 1), (4, 3), (4, 1), (5, 6), (6, 5)]


def doubling(tries: Tries, fail_at: int | None = None) -> Callable[[DataFrame, int], DataFrame]:
    """A step that shows its number in the data and can fail."""

    def step(frame: DataFrame, number: int) -> DataFrame:
        tries.computed.append(f"step {number}")
        if number == fail_at:
            raise PlannedError
        return frame.select((frame.id * 2 + number).alias("id"))

    return step


def doubled(rows: int, steps: int) -> list[int]:
    values = list(range(rows))
    for number in range(1, steps + 1):
        values = [value * 2 + number for value in values]
    return values


def numbers(*found: int) -> list[str]:
    return [f"step {number}" for number in found]


# Results


@pytest.mark.soak
def test_page_rank_equals_a_plain_loop(tries, spark):
    edges = spark.createDataFrame(EDGES, "src long, dst long").coalesce(1)
    degrees = edges.groupBy("src").agg(F.count("*").alias("degree"))
    links = edges.join(degrees, "src").localCheckpoint()
    start = edges.select(F.col("src").alias("id")).distinct().select("id", F.lit(1.0).alias("rank"))

    def spread(ranks: DataFrame, number: int) -> Any:
        shares = links.join(ranks, links.src == ranks.id).select(
            "dst", (F.col("rank") / F.col("degree")).alias("share")
        )
        received = shares.groupBy("dst").agg(F.sum("share").alias("sum")).withColumnRenamed("dst", "id")
        received = start.select("id").join(received, "id", "left").na.fill(0.0, ["sum"])
        return received.select("id", (0.15 + 0.85 * F.col("sum")).alias("rank"))

    with tries.open() as checkpoint:
        found = checkpoint.iterate("ranks", start, 6, 2, step=spread)
        ranks = {row["id"]: row["rank"] for row in found.collect()}
    assert ranks == pytest.approx(plain_page_rank(6))


def plain_page_rank(steps: int) -> dict[int, float]:
    ranks = {src: 1.0 for src, _ in EDGES}
    degrees = {node: sum(src == node for src, _ in EDGES) for node in ranks}
    for _ in range(steps):
        ranks = {
            node: 0.15 + 0.85 * sum(ranks[src] / degrees[src] for src, dst in EDGES if dst == node) for node in ranks
        }
    return ranks


@pytest.mark.soak
def test_label_propagation_ends_where_nothing_changes_any_more(tries, spark):
    path = [(1, 2), (2, 3), (3, 4), (7, 8)]
    edges = spark.createDataFrame([*path, *((b, a) for a, b in path)], "a long, b long").coalesce(1)

    def start() -> Any:
        return edges.select(F.col("a").alias("id"), F.col("a").alias("label")).distinct()

    def spread(labels: DataFrame, number: int) -> Any:
        tries.computed.append(f"step {number}")
        heard = edges.join(labels, edges.a == labels.id).select(F.col("b").alias("id"), "label")
        return heard.unionByName(labels).groupBy("id").agg(F.min("label").alias("label"))

    def is_stable(now: DataFrame, before: DataFrame) -> bool:
        return now.exceptAll(before).isEmpty()

    with tries.open() as checkpoint:
        found = checkpoint.iterate("labels", start, 50, step=spread, until=is_stable)
        labels = {row["id"]: row["label"] for row in found.collect()}
    assert labels == {1: 1, 2: 1, 3: 1, 4: 1, 7: 7, 8: 7}
    assert tries.take_computed() == numbers(1, 2, 3, 4)


@pytest.mark.soak
@pytest.mark.parametrize(("steps", "every", "snapshots"), [(7, 3, 3), (6, 3, 2), (2, 5, 1), (3, 1, 3), (1, 1, 1)])
def test_the_result_does_not_depend_on_the_rhythm(tries, steps, every, snapshots):
    with tries.failing() as checkpoint:
        found = checkpoint.iterate("ids", tries.spark.range(3), steps, every, step=doubling(tries))
        assert ids(found) == doubled(3, steps)
        assert tries.completed() == snapshots
    assert tries.take_computed() == numbers(*range(1, steps + 1))


# Retries


def test_a_retry_goes_on_after_the_last_snapshotted_step(tries):
    with tries.failing() as checkpoint:
        checkpoint.iterate("ids", tries.builder("start"), 10, 3, step=doubling(tries, fail_at=7))
    assert tries.take_computed() == ["start", *numbers(1, 2, 3, 4, 5, 6, 7)]
    with tries.failing() as checkpoint:
        found = checkpoint.iterate("ids", tries.builder("start"), 10, 3, step=doubling(tries))
        assert ids(found) == doubled(3, 10)
        assert [(s.name, s.is_restored) for s in checkpoint.steps] == [("ids", False)]
    assert tries.take_computed() == numbers(7, 8, 9, 10)
    with tries.open() as checkpoint:
        found = checkpoint.iterate("ids", tries.builder("start"), 10, 3, step=doubling(tries))
        assert ids(found) == doubled(3, 10)
        assert [(s.name, s.is_restored) for s in checkpoint.steps] == [("ids", True)]
    assert tries.take_computed() == []


def test_a_loop_that_had_converged_is_not_asked_again(tries):
    def stage(checkpoint: StageContext) -> list[int]:
        def is_over(now: DataFrame, before: DataFrame) -> bool:
            tries.computed.append("asked")
            return not now.where("id > 20").isEmpty()

        return ids(checkpoint.iterate("ids", tries.spark.range(3), 100, 2, step=doubling(tries), until=is_over))

    with tries.failing() as checkpoint:
        assert stage(checkpoint) == doubled(3, 4)
    assert tries.take_computed() == ["step 1", "step 2", "asked", "step 3", "step 4", "asked"]
    with tries.open() as checkpoint:
        assert stage(checkpoint) == doubled(3, 4)
    assert tries.take_computed() == []


def test_more_steps_go_on_and_fewer_begin_anew(tries, caplog):
    def run(checkpoint: StageContext, steps: int) -> list[int]:
        return ids(checkpoint.iterate("ids", tries.spark.range(3), steps, 2, step=doubling(tries)))

    with tries.failing() as checkpoint:
        run(checkpoint, 4)
    tries.take_computed()
    with tries.failing() as checkpoint:
        assert run(checkpoint, 6) == doubled(3, 6)
    assert tries.take_computed() == numbers(5, 6)
    with caplog.at_level(logging.WARNING), tries.open() as checkpoint:
        assert run(checkpoint, 3) == doubled(3, 3)
    assert tries.take_computed() == numbers(1, 2, 3)
    assert "restarts: its snapshot is of step 6, but steps is 3" in caplog.text


CODE = """
def loop(computed):
    def step(frame, number):
        computed.append(number)
        return frame.select((frame.id + {constant}).alias("id"))
    return step
def over(now, before):
    return now.where("id > {limit}").isEmpty() is False
"""


def written_down(tries: Tries, constant: int, limit: int = 10**6) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "user_code"}
    exec(CODE.format(constant=constant, limit=limit), names)
    return {"step": names["loop"](tries.computed), "until": names["over"]}


@pytest.mark.soak
def test_changed_code_is_computed_from_the_beginning(tries):
    def run(checkpoint: StageContext, every: int = 2, **code: Any) -> list[int]:
        return ids(checkpoint.iterate("ids", tries.spark.range(2), 4, every, **code))

    with tries.failing() as checkpoint:
        assert run(checkpoint, **written_down(tries, 1)) == [4, 5]
    with tries.failing() as checkpoint:
        assert run(checkpoint, **written_down(tries, 1)) == [4, 5]
    assert tries.take_computed() == [1, 2, 3, 4]
    with tries.failing() as checkpoint:
        assert run(checkpoint, **written_down(tries, 5)) == [20, 21]
    with tries.failing() as checkpoint:
        assert run(checkpoint, **written_down(tries, 5, limit=12)) == [20, 21]
    # Where until is looked at decides where a loop ends.
    with tries.failing() as checkpoint:
        assert run(checkpoint, every=3, **written_down(tries, 5, limit=12)) == [15, 16]
    with tries.failing(on_clear=OnClear.RESUME) as checkpoint:
        assert run(checkpoint, every=3, **written_down(tries, 7)) == [15, 16]
    assert tries.take_computed() == [*(1, 2, 3, 4), *(1, 2, 3, 4), *(1, 2, 3)]


def test_a_step_inside_is_computed_again_when_what_comes_before_it_changed(tries):
    """
    Where snapshots of the loop are put off, the plan inside begins at rows of which nothing tells where they are from.
    """
    tries.seconds_per_file = 100.0

    def refine(checkpoint: StageContext, initial: DataFrame, *, fails: bool) -> list[int]:
        def step(frame: DataFrame, number: int) -> DataFrame:
            if number == 3 and fails:
                raise PlannedError
            inner = checkpoint.snapshot("heavy", lambda: frame) if number == 2 else frame
            return inner.select((inner.id * 2 + number).alias("id"))

        checkpoint.snapshot("first", tries.builder("first"))
        return ids(checkpoint.iterate("ids", initial, 4, step=step))

    with tries.failing(overhead_budget=0.01) as checkpoint:
        refine(checkpoint, tries.spark.range(2), fails=True)
    with tries.open(overhead_budget=0.01) as checkpoint:
        assert refine(checkpoint, tries.spark.range(3), fails=False) == doubled(3, 4)


def test_more_steps_begin_anew_where_until_would_compare_frames_too_near(tries):
    def never(now: DataFrame, before: DataFrame) -> bool:
        tries.computed.append(f"until {ids(before)[0]}")
        return False

    def refine(steps: int) -> None:
        with tries.failing() as checkpoint:
            checkpoint.iterate("ids", tries.spark.range(1), steps, 2, step=doubling(tries), until=never)

    refine(3)
    tries.take_computed()
    refine(4)
    assert tries.take_computed() == [*numbers(1, 2), "until 0", *numbers(3, 4), "until 4"]


def test_another_rhythm_alone_computes_nothing_again(tries):
    with tries.failing() as checkpoint:
        checkpoint.iterate("ids", tries.spark.range(3), 10, 3, step=doubling(tries, fail_at=8))
    tries.take_computed()
    with tries.open() as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(3), 10, 4, step=doubling(tries))) == doubled(3, 10)
    assert tries.take_computed() == numbers(7, 8, 9, 10)


def test_what_is_built_on_a_loop_is_computed_anew_when_it_has_more_steps(tries):
    def run(checkpoint: StageContext, steps: int) -> list[int]:
        refined = checkpoint.iterate("ids", tries.spark.range(3), steps, 2, step=doubling(tries))

        def total() -> DataFrame:
            tries.computed.append("total")
            return refined.agg(F.sum("id").alias("id"))

        return ids(checkpoint.snapshot("total", total))

    for steps, computed in [(2, ["step 1", "step 2", "total"]), (2, []), (3, ["step 3", "total"])]:
        with tries.failing() as checkpoint:
            assert run(checkpoint, steps) == [sum(doubled(3, steps))]
        assert tries.take_computed() == computed


def test_a_name_that_was_a_loop_is_no_step_half_way(tries):
    with tries.failing() as checkpoint:
        checkpoint.iterate("ids", tries.spark.range(3), 4, 2, step=doubling(tries, fail_at=3))
    with tries.failing(on_clear=OnClear.RESUME) as checkpoint:
        assert ids(checkpoint.snapshot("ids", tries.builder("plain", rows=2))) == [0, 1]
    with tries.open(on_clear=OnClear.RESUME) as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(3), 1, step=doubling(tries))) == doubled(3, 1)


def test_a_loop_in_an_item_goes_on_in_it_and_is_dropped_with_it(tries):
    def stage(checkpoint: StageContext, fail_at: int | None) -> list[list[int]]:
        return [
            ids(
                checkpoint.iterate(
                    "ids", tries.spark.range(day), 4, 2, step=doubling(tries, fail_at if day == 2 else None)
                )
            )
            for day in checkpoint.each("days", [1, 2])
        ]

    with tries.failing() as checkpoint:
        stage(checkpoint, fail_at=4)
    assert tries.take_computed() == numbers(1, 2, 3, 4, 1, 2, 3, 4)
    with tries.open(num_retained=1) as checkpoint:
        assert stage(checkpoint, fail_at=None) == [doubled(2, 4)]
    assert tries.take_computed() == numbers(3, 4)
    assert tries.snapshots() == 0


@pytest.mark.soak
def test_steps_may_have_snapshots_and_loops_of_their_own(tries):
    def stage(checkpoint: StageContext, fail_at: int | None) -> list[int]:
        def step(frame: DataFrame, number: int) -> DataFrame:
            more = checkpoint.snapshot("more", tries.builder(f"more {number}", rows=number))
            for item in checkpoint.each("items", [1, 2]):
                tries.computed.append(f"item {item} of {number}")
            if number == fail_at:
                raise PlannedError
            return frame.unionByName(more)

        return ids(checkpoint.iterate("ids", tries.spark.range(1), 3, 2, step=step))

    with tries.failing() as checkpoint:
        stage(checkpoint, fail_at=3)
    assert tries.take_computed() == [f"{what}{n}" for n in (1, 2, 3) for what in ("more ", "item 1 of ", "item 2 of ")]
    # What belonged to the steps before the last border went with them.
    assert tries.view().checkpoints[-1].counts == {"snapshots": 2, "items": 2}
    with tries.open() as checkpoint:
        assert stage(checkpoint, fail_at=None) == [0, 0, 0, 0, 1, 1, 2]
    assert tries.take_computed() == []


# Plans and bytes


def depth(frame: DataFrame) -> int:
    """Return how many nodes the plan of a DataFrame has."""
    return len(frame._jdf.queryExecution().analyzed().toString().splitlines())


def test_plans_grow_for_so_many_steps_only(tries):
    depths = []

    def step(frame: DataFrame, number: int) -> DataFrame:
        depths.append(depth(frame))
        return frame.withColumn("id", F.col("id") + number)

    with tries.open() as checkpoint:
        found = checkpoint.iterate("ids", tries.spark.range(3), 12, 3, step=step)
        assert depth(found) == depths[3]
    assert depths[0:3] != depths[3:6]
    assert depths[3:6] == depths[6:9] == depths[9:12]
    assert depths[3] < depths[4] < depths[5]


@pytest.mark.soak
@pytest.mark.parametrize("retained", rest_in_soak([1, 2], 2))
def test_storage_holds_as_many_snapshots_as_checkpoints_are_retained(tries, retained):
    seen = []

    def step(frame: DataFrame, number: int) -> DataFrame:
        seen.append(tries.snapshots())
        return doubling(tries, fail_at=7 if fails else None)(frame, number)

    fails = True
    with tries.failing(num_retained=retained) as checkpoint:
        checkpoint.iterate("ids", tries.spark.range(3), 8, step=step)
    assert seen == [min(written, retained) for written in range(7)]
    fails = False
    with tries.open(num_retained=retained) as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(3), 12, step=step)) == doubled(3, 12)
    # The checkpoint that a try started from stays until it ends.
    assert max(seen) <= retained + 1
    assert tries.snapshots() == retained


def test_the_frame_before_can_be_read_by_until_when_one_checkpoint_is_retained(tries):
    found = []

    def until(now: DataFrame, before: DataFrame) -> bool:
        found.append((ids(before), ids(now)))
        return False

    with tries.open(num_retained=1) as checkpoint:
        checkpoint.iterate("ids", tries.spark.range(2), 6, 2, step=doubling(tries), until=until)
    assert found == [(doubled(2, n), doubled(2, n + 2)) for n in (0, 2, 4)]


def test_a_snapshot_is_never_taken_for_another_step_when_until_fails(tries):
    def until(now: DataFrame, before: DataFrame) -> bool:
        raise PlannedError

    with tries.failing() as checkpoint:
        with pytest.raises(PlannedError):
            checkpoint.iterate("ids", tries.spark.range(2), 6, 2, step=doubling(tries), until=until)
        checkpoint.checkpoint()
    tries.take_computed()
    with tries.open(on_clear=OnClear.RESUME) as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(2), 6, 2, step=doubling(tries))) == doubled(2, 6)
    assert tries.take_computed() == numbers(3, 4, 5, 6)


def test_a_loop_that_would_fill_the_disk_is_refused_before_its_next_snapshot(tries):
    def step(frame: DataFrame, number: int) -> DataFrame:
        if number == 4:
            tries.free_bytes = 100
        return doubling(tries)(frame, number)

    tries.free_bytes = 2**30
    with (
        pytest.raises(StorageError, match=r"its known or estimated size.* found 100 bytes"),
        tries.open() as checkpoint,
    ):
        checkpoint.iterate("ids", tries.spark.range(3), 8, 2, step=step)
    tries.free_bytes = None
    tries.take_computed()
    with tries.open() as checkpoint:
        assert ids(checkpoint.iterate("ids", tries.spark.range(3), 8, 2, step=doubling(tries))) == doubled(3, 8)


# Arguments


def test_a_name_is_used_once(tries):
    with tries.failing() as checkpoint:
        checkpoint.iterate("ids", tries.spark.range(1), 1, step=doubling(tries))
        with pytest.raises(DuplicateNameError, match="'ids' is used twice"):
            checkpoint.iterate("ids", tries.builder("never"), 1, step=doubling(tries))
    assert tries.take_computed() == numbers(1)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps": 0}, "steps to be a whole number of at least 1, found 0"),
        ({"steps": True}, "steps to be a whole number"),
        ({"steps": [1, 2]}, "steps to be a whole number"),
        ({"every": 0}, "every to be a whole number of at least 1"),
        ({"step": None}, "step to be a function"),
        ({"until": 3}, "until to be a function"),
        ({"initial": 3}, "Expected a function or a DataFrame for a step"),
    ],
)
def test_bad_arguments_are_refused_before_anything_is_computed(tries, changes, expected):
    arguments = {"initial": tries.builder("start"), "steps": 2, "every": 1, "step": doubling(tries)} | changes
    with tries.failing() as checkpoint, pytest.raises(InvalidConfigurationError, match=expected):
        checkpoint.iterate("ids", **arguments)
    assert tries.take_computed() == []


def test_a_step_that_gives_no_dataframe_and_an_end_that_is_no_truth_value_are_refused(tries):
    with tries.failing() as checkpoint:
        with pytest.raises(InvalidConfigurationError, match="Spark DataFrame"):
            checkpoint.iterate("nothing", tries.spark.range(1), 1, step=lambda frame, number: None)
        with pytest.raises(InvalidConfigurationError, match="until to return True or False, found DataFrame"):
            checkpoint.iterate("rows", tries.spark.range(1), 1, step=doubling(tries), until=lambda now, before: now)
