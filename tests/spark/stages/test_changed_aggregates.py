"""A later run of a job that declares other aggregates than the state has."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.plan_digest import expression_text
from airflow_provider_statecheck.spark.stages.stage import Max, Min, Stage, Sum
from airflow_provider_statecheck.state.reading.state_reader import read_state
from tests.messages import make_owner
from tests.spark.stages.stage_tries import StageTries

COLUMNS = "v int, w bigint, purpose string, `a b` double, t timestamp"


def load_day(spark: Any, day: int) -> Any:
    return spark.range(day * 10, day * 10 + 10).selectExpr("id % 2 AS k", "id AS v")


def run_day(tries: StageTries, day: int, settings: DriverSettings | None = None, **declared: Any) -> dict[str, int]:
    """Run the stage of one day over all input until then, and return its state of one key."""
    stage = Stage("stage", max_parallelism=8, parallelism=1).source(DataFrameSource(list(range(1, day + 1)), load_day))
    uid = declared.get("uid", "aggregate")
    tries.run(stage.key_by("k").aggregate(**declared), settings, owner=make_owner(run_key=f"2026-01-0{day}"))
    rows = read_state(tries.completed()[-1].location, "aggregates", uid=uid).read_all().to_pylist()
    (value,) = (row["value"] for row in rows if row["k"] == 0)
    return dict(value)


@pytest.mark.parametrize(
    ("later", "found", "has"),
    [
        ({"x": Min("v")}, "x=min(v)", "x=max(v)"),
        ({"x": Max("v * 100")}, "x=max(v * 100)", "x=max(v)"),
        ({"x": Max("v"), "low": Min("v")}, "low=min(v)", "x=max(v)"),
    ],
    ids=["function", "expression", "added"],
)
def test_changed_or_added_aggregates_are_refused_before_any_job_and_change_nothing(
    tries: StageTries, later: dict[str, Any], found: str, has: str
) -> None:
    run_day(tries, 1, x=Max("v"))
    with pytest.raises(StateMigrationError, match="Declare the aggregates as they were") as refused:
        run_day(tries, 2, **later)
    assert f"found {found}; the state has {has}" in str(refused.value)
    assert run_day(tries, 2, x=Max("v")) == {"x": 28}


def test_renamed_aggregate_goes_on_over_further_runs_and_a_removed_one_is_dropped(tries: StageTries) -> None:
    assert run_day(tries, 1, total=Sum("v * 2"), low=Min("v")) == {"total": 140, "low": 10}
    assert run_day(tries, 2, amount=Sum("(V*2)")) == {"amount": 380}
    assert run_day(tries, 3, sum=Sum("v * 2")) == {"sum": 720}


@pytest.mark.soak
def test_another_uid_aggregates_later_input_only(tries: StageTries) -> None:
    run_day(tries, 1, x=Max("v"))
    settings = DriverSettings(allow_non_restored_state=True)
    assert run_day(tries, 2, settings, uid="least", x=Min("v")) == {"x": 20}


def test_text_of_an_expression_is_that_of_its_meaning(spark: Any) -> None:
    frame = spark.createDataFrame([], COLUMNS)
    alike = [("v * 2", "(V*2)"), ("nullif(purpose, 'x')", "NULLIF(`purpose`,\n'x')"), ("`a b` + 1", "(`A B`)+1")]
    different = ["v", "w", "purpose", "'purpose'", "v * 2", "cast(v as double)", "'a  b'", "'a b'", "`a b`", "t"]
    assert [expression_text(frame, one) == expression_text(frame, other) for one, other in alike] == [True] * len(alike)
    texts = [expression_text(frame, each) for each in different]
    assert len(set(texts)) == len(different)
    wider = spark.createDataFrame([], f"new int, {COLUMNS}")
    assert [expression_text(wider, each) for each in different] == texts
