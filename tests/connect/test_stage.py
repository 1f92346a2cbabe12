"""A stage on a Spark Connect server, whose functions are in modules that only the client has."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck import DataFrameSource, ParquetSink, Stage
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from tests.spark.stages.stage_tries import StageTries

pytestmark = pytest.mark.soak

FUNCTIONS = """
from typing import Any

import rates_of_the_client
from airflow_provider_statecheck import KeyedProcessFunction, ValueStateDescriptor


def priced(amount: int) -> int:
    return rates_of_the_client.RATE * amount


class Balance(KeyedProcessFunction[int, Any, Any]):
    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0))

    def process_element(self, value: Any, context: Any) -> Any:
        self.balance.update(self.balance.value() + priced(value.id))
        yield value.account, self.balance.value()
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
