"""A stage on a Spark Connect server, whose functions are in modules that only the client has."""

from __future__ import annotations

import importlib
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import DataFrameSource, ParquetSink, Stage
from airflow_provider_statecheck.exceptions import StateMigrationError
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from airflow_provider_statecheck.spark.plan_digest import expression_text
from airflow_provider_statecheck.spark.stages.stage import Sum
from tests.messages import make_owner
from tests.spark.stages.stage_tries import StageTries

pytestmark = pytest.mark.soak

FUNCTIONS = """
from typing import Any

import rates_of_the_client
from airflow_provider_statecheck import (
    BoundedOneInput,
    CheckpointedFunction,
    FlatMapFunction,
    KeyedProcessFunction,
    ListStateDescriptor,
    ValueStateDescriptor,
)


def priced(amount: int) -> int:
    return rates_of_the_client.RATE * amount


class Balance(KeyedProcessFunction[int, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))

    def process_element(self, value: Any, context: Any) -> Any:
        self.balance.update(self.balance.value() + priced(value.id))
        yield value.account, self.balance.value()


class Held(FlatMapFunction[Any, Any], CheckpointedFunction, BoundedOneInput):
    def initialize_state(self, context: Any) -> None:
        self.state = context.get_operator_state_store().get_list_state(ListStateDescriptor("held", int))
        self.held = list(self.state.get())

    def snapshot_state(self, context: Any) -> None:
        self.state.update(self.held)

    def flat_map(self, value: Any) -> Any:
        self.held.append(value.id)
        return ()

    def end_input(self) -> Any:
        emitted, self.held = self.held, []
        return [(each,) for each in emitted]
"""


@pytest.fixture
def functions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    folder = tmp_path / "dags"
    folder.mkdir()
    (folder / "functions_of_the_client.py").write_text(FUNCTIONS)
    (folder / "rates_of_the_client.py").write_text("RATE = 10\n")
    monkeypatch.syspath_prepend(str(folder))
    yield importlib.import_module("functions_of_the_client")
    for name in ("functions_of_the_client", "rates_of_the_client"):
        del sys.modules[name]


def load(spark: Any, part: int) -> Any:
    return spark.range(4 * part, 4 * part + 4).selectExpr("id", "id % 2 as account")


def test_functions_of_modules_beside_the_dags_reach_the_server(spark: Any, functions: Any, tmp_path: Path) -> None:
    tries = StageTries(spark, tmp_path)
    make_ready(spark, tries.storage)
    stage = Stage(parallelism=2).source(DataFrameSource([0, 1], load)).key_by("account", order_by="id")
    stage = stage.process(functions.Balance(), output="account bigint, balance bigint")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    last = {row["account"]: row["balance"] for row in sorted(tries.rows(), key=lambda row: row["balance"])}
    assert last == {0: 10 * (0 + 2 + 4 + 6), 1: 10 * (1 + 3 + 5 + 7)}


def test_each_subtask_on_the_server_ends_its_input(spark: Any, functions: Any, tmp_path: Path) -> None:
    tries = StageTries(spark, tmp_path)
    make_ready(spark, tries.storage)
    stage = Stage(parallelism=3).source(DataFrameSource([0, 1], load)).map(functions.Held(), output="id bigint")
    tries.run(stage.sink(ParquetSink(str(tries.output))))
    assert [row["id"] for row in tries.rows()] == list(range(8))


def test_aggregates_are_compared_as_the_server_analyzes_them(spark: Any, tmp_path: Path) -> None:
    frame = spark.createDataFrame([], "v int, purpose string")
    alike = ["v * 2", "(V*2)", "`v`\n* 2"]
    assert len({expression_text(frame, each) for each in alike}) == 1
    different = ["v", "v * 2", "cast(v as double)", "purpose", "'purpose'", "v + length(purpose)"]
    assert len({expression_text(frame, each) for each in different}) == len(different)
    tries = StageTries(spark, tmp_path)
    make_ready(spark, tries.storage)
    stage = Stage(parallelism=2).source(DataFrameSource([0, 1], load)).key_by("account")
    tries.run(stage.aggregate(total=Sum("id * 2")))
    with pytest.raises(StateMigrationError, match=r"found sum=sum\(id\); the state has total=sum\(id \* 2\)"):
        tries.run(
            replace(stage, input=DataFrameSource([0, 1, 2], load)).aggregate(sum=Sum("id")),
            owner=make_owner(run_key="another run"),
        )
