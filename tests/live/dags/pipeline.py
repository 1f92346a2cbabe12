"""A stage of three steps, each built on the one before; a test changes the second between two tries."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def note(what: str) -> None:
    folder = Path((get_current_context()["dag_run"].conf or {})["control"])
    with (folder / "computed.log").open("a") as log:
        log.write(f"{what}\n")


def steps(spark: Any, checkpoint: Any) -> int:
    def numbers() -> Any:
        note("numbers")
        return spark.range(100)

    def scaled() -> Any:
        note("scaled")
        return first.selectExpr("id * 2 AS id")

    def summed() -> Any:
        note("summed")
        return second.agg({"id": "sum"}).toDF("total")

    first = checkpoint.snapshot("numbers", numbers)
    second = checkpoint.snapshot("scaled", scaled)
    total = checkpoint.snapshot("summed", summed)
    if get_current_context()["ti"].try_number == 1:
        raise RuntimeError("planned")
    return int(total.first()[0])


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_pipeline() -> None:
    CheckpointedPySparkOperator(task_id="work", python_callable=steps, config_kwargs=SPARK)


live_pipeline()
