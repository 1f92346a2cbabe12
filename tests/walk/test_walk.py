"""
Random walks over runs, clears, retries, renames, repairs, restarts and backfills, each row compared with a model.

A failure names its seed and tells what had happened. ``SEED=<seed> make soak ARGS="tests/walk -k <kind>"`` repeats it.
In ``make soak`` the walks take ten minutes, with seeds that are new each time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.seeds import folder_for, named_in_failure, new_seeds
from tests.shared_spark import shared_session
from tests.walk.spark_world import SparkWorld
from tests.walk.world import Habits, World

DAG, TASK = frozenset({"dag_id"}), frozenset({"task_id"})
PLAIN = ("late", "rewrite", "restore")
KINDS = {
    "days": Habits(policies=("fail",), dated=(1.0,), changes=PLAIN, renames=(DAG, TASK)),
    "undated": Habits(policies=("fail",), dated=(0.7, 0.0), changes=PLAIN, renames=(DAG,)),
    "renamed": Habits(policies=("fail",), dated=(1.0,), changes=("late",), renames=(DAG | TASK,)),
    "repaired": Habits(
        policies=("fail",), dated=(1.0,), changes=("late", "archive", "repair", "repair", "restore"), renames=(DAG,)
    ),
    "restarted": Habits(policies=("restart",), dated=(1.0,), changes=(*PLAIN, "restore"), renames=(DAG,)),
    "all": Habits(),
}
"""Walks by what happens in them; those of one kind find what is wrong sooner than those with all."""
ON_SPARK = Habits(policies=("fail",), dated=(1.0,), of_runs=0.0, changes=PLAIN, renames=(DAG, TASK))
STEPS, STEPS_ON_SPARK = 40, 6
SEEDS = dict.fromkeys((*KINDS, "on Spark"), 2) | {"repaired": 0}
"""Seeds of the short walks; each walk meets what its kind is about."""
SOAK_SECONDS = 500.0
SOAK_SECONDS_ON_SPARK = 100.0


def walk(world: World, seed: int, steps: int) -> None:
    """Take steps; a failure tells the seed and what had happened."""
    with named_in_failure(seed, world.history):
        for _ in range(steps):
            world.act()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_what_the_model_says(tmp_path: Path, kind: str) -> None:
    walk(World(tmp_path, SEEDS[kind], KINDS[kind]), SEEDS[kind], STEPS)


def test_a_run_starts_over_before_one_that_had_started_over(tmp_path: Path) -> None:
    seed = 967823949  # earlier runs are cleared and stop half way meanwhile
    walk(World(tmp_path, seed, KINDS["restarted"]), seed, 2 * STEPS)


@pytest.mark.soak
@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_what_the_model_says_after_long_walks(tmp_path: Path, kind: str) -> None:
    def world(seed: int) -> World:
        return World(folder_for(tmp_path, seed), seed, KINDS[kind])

    many(world, SOAK_SECONDS / len(KINDS), 2 * STEPS)


@pytest.mark.spark
def test_each_row_that_spark_writes_is_what_the_model_says(tmp_path: Path) -> None:
    seed = SEEDS["on Spark"]
    walk(SparkWorld(shared_session(), tmp_path, seed, ON_SPARK), seed, STEPS_ON_SPARK)


@pytest.mark.soak
@pytest.mark.spark
def test_each_row_that_spark_writes_is_what_the_model_says_after_long_walks(tmp_path: Path) -> None:
    def world(seed: int) -> World:
        return SparkWorld(shared_session(), folder_for(tmp_path, seed), seed, ON_SPARK)

    many(world, SOAK_SECONDS_ON_SPARK, 2 * STEPS_ON_SPARK)


def many(world: Callable[[int], Any], seconds: float, steps: int) -> None:
    """Walk with one seed after the other."""
    for seed in new_seeds(seconds):
        walk(world(seed), seed, steps)
