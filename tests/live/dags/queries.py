"""A stage with queryable state, and a task that asks for some of it."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_statecheck import (
    CheckpointedStageOperator,
    DataFrameSource,
    KeyedProcessFunction,
    Stage,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook

JOB = "live_balances"
SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def payments(spark: Any, amount: int) -> Any:
    return spark.range(6).selectExpr("concat('a', id % 3) as account", f"{amount} as amount")


class Balance(KeyedProcessFunction[str, Any, Any]):
    """Add up the payments of each account."""

    def open(self, runtime_context: Any) -> None:
        self.balance = runtime_context.get_state(ValueStateDescriptor("balance", int, 0, queryable_name="balances"))

    def process_element(self, value: Any, context: Any) -> Iterable[Any]:
        self.balance.update(self.balance.value() + value.amount)
        yield from ()


stage = (
    Stage("balances", max_parallelism=8)
    .source(DataFrameSource([1, 20], payments))
    .key_by("account")
    .process(Balance(), uid="balance", output="account string")
)


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_queries() -> None:
    work = CheckpointedStageOperator(task_id="work", stage=stage, parallelism=1, job=JOB, config_kwargs=SPARK)

    @task
    def ask() -> dict[str, int]:
        return StatecheckHook().query_states(JOB, "balances", ["a0", "a2", "a9"]).found

    work >> ask()


live_queries()
