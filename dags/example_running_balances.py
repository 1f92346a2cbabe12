"""
Maintain the total spending of every customer across daily runs.

The job has an explicit name, which keeps its state across runs. Each run reads the orders of its day, adds them to the
totals, and writes the new totals of the customers who ordered. The retry of a failed day resumes from its last
checkpoint, and the next day waits for it.

The orders are of the years 1992 to 1998. A run that is started by hand without such a date adds the orders of the param
`day`, in a job of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, get_current_context

# [START howto_state_across_runs]
from airflow_provider_statecheck import CheckpointedStageOperator, Count, DataFrameSource, Max, ParquetSink, Stage, Sum

ORDERS, BALANCES = "data/tpch/orders.parquet", "data/balances"


DAY = Param(
    "1992-01-02",
    type="string",
    format="date",
    title="Day",
    description="The day whose orders a run adds that has no date before 1999, such as one that is started by hand "
    "today.",
)
# The runs of the days go on in their order; after a run of today, none of them could run any more.
JOB = "customer_balances{{ '' if dag_run.logical_date and dag_run.logical_date.year < 1999 else '/by_hand' }}"


def day_of_the_run() -> list[str]:
    context = get_current_context()
    date = context["dag_run"].logical_date
    return [context["ds"] if date and date.year < 1999 else context["params"]["day"]]


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
    params={"day": DAY},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_running_balances() -> None:
    CheckpointedStageOperator(
        task_id="balances",
        stage=stage,
        job=JOB,
        depends_on_past=True,
        retries=2,
        retry_delay=timedelta(seconds=1),
    )


# [END howto_state_across_runs]

example_running_balances()
