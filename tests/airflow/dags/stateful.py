"""Dags of the Airflow tests whose tasks are stages with state."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag

from airflow_provider_statecheck import CheckpointedStageOperator, DataFrameSource, MapFunction, ParquetSink, Stage

SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
START = datetime(2026, 1, 1, tzinfo=UTC)
TROUBLE = os.environ.get("STAGE_TROUBLE")


class Doubled(MapFunction[Any, Any]):
    """Spark's tasks cannot find it: Airflow loads the file of a Dag under a name of its own."""

    def map(self, value: Any) -> Any:
        return value.id, 2 * value.id


def numbers(spark: Any, part: int) -> Any:
    return spark.range(10 * part, 10 * part + 10)


def doubling() -> Stage:
    folder = os.environ.get("STAGE_WORK", "")
    stage = Stage().source(DataFrameSource([1, 2], numbers)).map(Doubled(), output="id bigint, twice bigint")
    return stage.sink(ParquetSink(f"{folder}/doubled"))


@dag(schedule=None, start_date=START, catchup=False)
def stateful() -> None:
    balances = CheckpointedStageOperator(
        task_id="work",
        stage="payments:stage",
        config_kwargs=SPARK,
        retries=1,
        retry_delay=timedelta(0),
        execution_timeout=timedelta(seconds=60 if TROUBLE == "run into the timeout" else 600),
    )
    balances >> CheckpointedStageOperator(
        task_id="own_file", stage=doubling(), config_kwargs=SPARK, checkpoint_interval="auto"
    )


stateful()
