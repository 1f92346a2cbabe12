"""
Maintain the total spending of every customer across daily runs.

The job has an explicit name, which keeps its state across runs. Each run reads the orders of its day, adds them to the
totals, and writes the new totals of the customers who ordered. The retry of a failed day resumes from its last checkpoint,
and the next day waits for it.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, get_current_context

# [START howto_state_across_runs]
from airflow_provider_statecheck import CheckpointedStageOperator, Count, DataFrameSource, Max, ParquetSink, Stage, Sum

ORDERS, BALANCES = "data/tpch/orders.parquet", "data/balances"


def day_of_the_run() -> list[str]:
    return [get_current_context()["ds"]]


def orders(spark: Any, day: str) -> Any:
    return spark.read.parquet(ORDERS).where(f"o_orderdate = date '{day}'")


stage = (
    Stage("balances", max_parallelism=128)
    .source(DataFrameSource(day_of_the_run, orders))
    .key_by("o_custkey")
    .aggregate(day=Max("o_orderdate"), orders=Count(), spent=Sum("o_totalprice"), emit="changes")
    .sink(ParquetSink(BALANCES))
)


@dag(
    schedule=None,
    start_date=datetime(1992, 1, 1, tzinfo=UTC),
    catchup=False,
    max_active_runs=1,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_running_balances() -> None:
    CheckpointedStageOperator(
        task_id="balances",
        stage=stage,
        job="customer_balances",
        depends_on_past=True,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


# [END howto_state_across_runs]

example_running_balances()
