"""Aggregates of the results of aggregates, over increments and runs of one job."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.stages.stage import Count, Max, Min, Stage, Sum
from airflow_provider_statecheck.state.reading.state_reader import read_state
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.spark.stages.stage_tries import StageTries


def load_day(spark: Any, day: int) -> Any:
    """Return a payment of each of four users of two countries."""
    return spark.range(4).selectExpr("id AS user", "id div 2 AS country", f"{day} * (id + 1) AS amount")


def totals(tries: StageTries, uid: str) -> dict[int, dict[str, int]]:
    rows = read_state(tries.completed()[-1].location, "aggregates", uid=uid).read_all().to_pylist()
    return {row[next(iter(row.keys() - {"key_group", "value"}))]: dict(row["value"]) for row in rows}


def run_days(tries: StageTries, days: int, emit: Any) -> None:
    stage = Stage("stage", max_parallelism=8, parallelism=2).source(DataFrameSource(list(range(1, days + 1)), load_day))
    stage = stage.key_by("user", "country").aggregate(uid="users", emit=emit, total=Sum("amount"), n=Count())
    # The number of payments of a user is a key that it leaves when it pays again.
    stage = stage.map(lambda row: row).key_by("n")
    stage = stage.aggregate(uid="numbers", users=Count(), rows=Sum("n"), least=Min("total"), most=Max("total"))
    stage = stage.key_by("users").aggregate(uid="all", numbers=Count(), rows=Sum("rows"))
    tries.run(stage, owner=make_owner(run_key=f"2026-01-0{days}"))


@pytest.mark.parametrize("emit", rest_in_soak(["changes", "end"], "changes"))
def test_later_runs_replace_the_earlier_results_and_do_not_add_to_them(tries: StageTries, emit: str) -> None:
    # The first run has two increments, so that results change within it.
    for days, total in ((2, 3), (3, 6)):
        run_days(tries, days, emit)
        assert totals(tries, "numbers") == {
            days: {"users": 4, "rows": 4 * days, "least": total, "most": 4 * total},
        }
        assert totals(tries, "all") == {4: {"numbers": 1, "rows": 4 * days}}
