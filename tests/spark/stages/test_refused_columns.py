"""Columns of keys, orders and aggregates that Spark tasks cannot compare as Spark does, refused before any work."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.stages.planning import StagePlanner, vertices_of
from airflow_provider_statecheck.spark.stages.stage import Aggregate, Count, Max, Min, Stage, Sum
from airflow_provider_statecheck.state.functions.user_functions import KeyedProcessFunction
from tests.shared_spark import needs_spark, setting

pytestmark = needs_spark("4.0", "a collation")

COLUMNS = [
    "id",
    "collate(cast(id AS string), 'UNICODE_CI') AS name",
    "id > 1 AS flag",
    "parse_json(cast(id AS string)) AS json",
    "map(id, id) AS pairs",
]
COLLATED = "found string collate UNICODE_CI, and tasks have no collations"


class Nothing(KeyedProcessFunction[Any, Any, Any]):
    """Emits nothing."""

    def process_element(self, value: Any, context: Any) -> Any:
        return ()


OUTPUT = "id long, name string collate UNICODE_CI, flag boolean, json variant, pairs map<long, long>"


def as_it_is(stage: Stage) -> Stage:
    return stage


def mapped(stage: Stage) -> Stage:
    return stage.map(lambda row: row)


def with_output(stage: Stage) -> Stage:
    return stage.map(lambda row: row, output=OUTPUT)


def plan(spark: Any, *columns: str, **how: Any) -> Any:
    frame = spark.range(3).selectExpr(*COLUMNS)
    stage = Stage("stage").source(DataFrameSource([1], lambda spark, _: frame))
    keyed = how.pop("before", as_it_is)(stage).key_by(*columns, order_by=how.pop("order_by", ()))
    keyed = keyed.aggregate(**how) if how else keyed.process(Nothing())
    return StagePlanner(spark, "stage").plan(vertices_of(keyed), frame.schema)


@pytest.mark.parametrize(
    ("aggregate", "reason"),
    [
        (Max("name"), COLLATED),
        (Min("struct(id, name)"), "and tasks have no collations"),
        (Max("array(name)"), "and tasks have no collations"),
        (Max("null"), "found void, with void"),
        (Max("make_ym_interval(1, 2)"), "found interval year to month"),
        (Sum("make_ym_interval(1, 2)"), "found interval year to month"),
        (Max("struct(id, id)"), "repeats their names"),
        (Max("array(struct())"), "lacks fields"),
    ],
    ids=lambda value: value.text if isinstance(value, Aggregate) else "",
)
def test_aggregate_that_tasks_compare_otherwise_is_refused_by_its_type(
    spark: Any, aggregate: Aggregate, reason: str
) -> None:
    with pytest.raises(UnsupportedStateError) as refused:
        plan(spark, "id", x=aggregate)
    assert f"Expected the aggregate x={aggregate.text} of 'aggregate'" in str(refused.value)
    assert reason in str(refused.value)


@needs_spark("4.1", "the type time")
def test_largest_time_of_day_is_refused_by_its_type(spark: Any) -> None:
    allowed, refused = setting(spark, "spark.sql.timeType.enabled", "true"), pytest.raises(UnsupportedStateError)
    with allowed, refused as error:
        plan(spark, "id", x=Max("cast('12:00:00' AS time)"))
    assert "found time" in str(error.value)


@pytest.mark.parametrize(
    "aggregate",
    [
        Max("json"),
        Max("pairs"),
        Min("struct(pairs)"),
        Max("make_interval(1)"),
        Sum("flag"),
        Sum("missing"),
        Count("DISTINCT id"),
        Sum("sum(id)"),
        Max("rand()"),
    ],
    ids=lambda value: value.text,
)
def test_aggregate_that_spark_refuses_is_refused_with_its_declaration(spark: Any, aggregate: Aggregate) -> None:
    with pytest.raises(InvalidConfigurationError, match="that Spark can compute, found x=") as refused:
        plan(spark, "id", x=aggregate)
    assert aggregate.text in str(refused.value)


@pytest.mark.parametrize("column", ["name", "json", "pairs"])
@pytest.mark.parametrize("before", [as_it_is, mapped, with_output])
def test_key_and_order_that_tasks_compare_otherwise_are_refused(spark: Any, column: str, before: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=f"found {column} "):
        plan(spark, column, before=before)
    with pytest.raises(UnsupportedStateError, match=f"found {column} with .*; order by another column"):
        plan(spark, "id", before=before, order_by=column)
