"""
Declared aggregates of each function, type and setting, compared with plain Spark.

A failure names its seed; ``SEED=<seed> make soak ARGS="tests/spark/stages -k aggregate_cases"`` repeats it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.stages.stage import Stage, Sum
from airflow_provider_statecheck.state.reading.state_reader import read_state
from tests.seeds import folder_for, new_seeds
from tests.soak import rest_in_soak
from tests.spark.stages.aggregate_cases import LARGE, Case, LocalRows, aggregates_of, case_of, compare
from tests.spark.stages.stage_tries import StageTries

SEEDS = (3,)
SOAK_SECONDS = 600.0


@pytest.mark.parametrize("is_ansi", rest_in_soak([True, False], True))
@pytest.mark.parametrize("combines", rest_in_soak([True, False], True))
def test_each_function_of_each_type_is_that_of_spark(tries: StageTries, is_ansi: bool, combines: bool) -> None:
    compare(tries, case_of(is_ansi=is_ansi, combines=combines))


@pytest.mark.parametrize(
    ("is_ansi", "combines"), rest_in_soak([(a, c) for a in (True, False) for c in (True, False)], (False, True))
)
def test_sum_that_is_too_large_is_what_spark_makes_of_it(tries: StageTries, is_ansi: bool, combines: bool) -> None:
    compare(tries, case_of(is_ansi=is_ansi, combines=combines, aggregates=aggregates_of(LARGE)))


@pytest.mark.parametrize("seed", SEEDS)
def test_drawn_stages_with_failures_over_runs_give_the_rows_of_spark(tries: StageTries, seed: int) -> None:
    compare(tries, Case.of(seed))


def repartitioned(spark: Any, split: int) -> Any:
    return spark.range(100).selectExpr("id", f"{split} AS v").repartition(2, "id")


def test_each_partition_of_one_job_has_rows_of_one_increment_although_they_are_partitioned_alike(
    tries: StageTries,
) -> None:
    rows = Stage("stage", parallelism=2).source(LocalRows([1, 2, 3], repartitioned)).key_by("id")
    tries.run(rows.aggregate(total=Sum("v")))
    state = read_state(tries.completed()[-1].location, "aggregates").read_all()
    assert state.column("value").combine_chunks().field("total").to_pylist() == [6] * 100


@pytest.mark.soak
def test_drawn_stages_give_the_rows_of_spark_for_long(spark: Any, tmp_path: Path) -> None:
    for seed in new_seeds(SOAK_SECONDS):
        compare(StageTries(spark, folder_for(tmp_path, seed)), Case.of(seed))
