"""A step is computed in parts only if its plan shows that its rows do not depend on each other."""

from __future__ import annotations

import pytest
from pyspark.sql import functions as F

from airflow_provider_statecheck.spark.parts.row_wise_plan import marked, require_row_wise
from tests.row_wise_cases import (
    ACCEPTED,
    REFUSED,
    REFUSED_STEPS,
    Accepted,
    Refused,
    cases_of,
    check_accepted,
    check_refused,
    other_frame,
    over_frame,
    random_step,
    refuse,
)
from tests.soak import every_nth


@pytest.fixture(autouse=True)
def _without_cached_frames(spark):
    yield
    spark.catalog.clearCache()


@pytest.mark.parametrize("case", cases_of("classic", REFUSED, every=8))
def test_step_that_needs_more_than_one_row_is_refused_by_the_name_of_the_operation(spark, case: Refused):
    check_refused(spark, case)


@pytest.mark.parametrize("case", cases_of("classic", ACCEPTED, every=12))
def test_accepted_step_gives_the_same_rows_in_parts(spark, case: Accepted):
    check_accepted(spark, case.build)


@pytest.mark.soak
@pytest.mark.parametrize("seed", every_nth(range(15), 15))
def test_random_row_wise_step_is_accepted_and_gives_the_same_rows_in_parts(spark, seed: int):
    check_accepted(spark, random_step(seed))


@pytest.mark.parametrize("seed", every_nth(range(2 * len(REFUSED_STEPS)), 4))
def test_one_operation_over_several_rows_anywhere_in_a_random_step_is_enough_to_refuse_it(spark, seed: int):
    refuse(spark, random_step(seed, is_refused=True))


def test_operations_that_made_the_input_are_not_judged(spark):
    over = over_frame(spark).distinct().withColumn("r", F.rand()).limit(9)
    frame, marker = marked(over)
    require_row_wise(frame.where("id > 3"), marker, "days")


def test_cached_input_is_accepted(spark):
    over = over_frame(spark).cache()
    frame, marker = marked(over)
    require_row_wise(frame.alias("other").where("id > 3"), marker, "days")


def test_right_side_that_reads_the_cached_input_is_refused(spark):
    over = over_frame(spark).cache()
    error = refuse(spark, lambda session, frame, other: frame.join(over.select("k"), "k", "semi"))
    assert error.operation == "a cached DataFrame"


def test_files_on_the_right_side_are_accepted(spark, tmp_path):
    other_frame(spark).write.parquet(f"{tmp_path}/other")
    check_accepted(spark, lambda session, frame, other: frame.join(session.read.parquet(f"{tmp_path}/other"), "k"))


def test_judging_a_step_runs_no_job(spark):
    tracker = spark.sparkContext.statusTracker()
    spark.sparkContext.setJobGroup("judged", "judged")
    try:
        frame, marker = marked(over_frame(spark))
        require_row_wise(frame.join(other_frame(spark), "k"), marker, "days")
        assert list(tracker.getJobIdsForGroup("judged")) == []
        frame.count()
        assert list(tracker.getJobIdsForGroup("judged")) != []
    finally:
        spark.sparkContext.setLocalProperty("spark.jobGroup.id", None)
