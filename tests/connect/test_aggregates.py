"""Declared aggregates of a stage on a Spark Connect server, compared with those of the server itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from airflow_provider_statecheck.spark.stages.stage import Max, Sum
from tests.spark.stages.aggregate_cases import LARGE, aggregates_of, case_of, compare
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_refused_columns import plan

pytestmark = pytest.mark.soak


@pytest.fixture
def tries(spark: Any, tmp_path: Path) -> StageTries:
    made = StageTries(spark, tmp_path)
    make_ready(spark, made.storage)
    return made


@pytest.mark.parametrize("is_ansi", [True, False])
def test_each_function_of_each_type_is_that_of_spark(tries: StageTries, is_ansi: bool) -> None:
    compare(tries, case_of(is_ansi=is_ansi, combines=True))


@pytest.mark.parametrize("is_ansi", [True, False])
@pytest.mark.parametrize("combines", [True, False])
def test_sum_that_is_too_large_is_what_spark_makes_of_it(tries: StageTries, is_ansi: bool, combines: bool) -> None:
    compare(tries, case_of(is_ansi=is_ansi, combines=combines, aggregates=aggregates_of(LARGE)))


def test_aggregates_are_refused_before_any_work(spark: Any) -> None:
    with pytest.raises(UnsupportedStateError, match="tasks have no collations"):
        plan(spark, "id", x=Max("name"))
    with pytest.raises(InvalidConfigurationError, match="that Spark can compute, found x="):
        plan(spark, "id", x=Sum("DISTINCT id"))
