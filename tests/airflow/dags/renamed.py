"""A Dag whose one stage gets other arguments, and whose id and task group change, from version to version."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from datetime import UTC, datetime
from typing import Any

from airflow.sdk import TaskGroup, dag

from airflow_provider_statecheck import CheckpointedStageOperator, DataFrameSource, ParquetSink, Stage

SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false"}


def numbers(spark: Any, part: int) -> Any:
    return spark.range(10 * part, 10 * part + 10)


def counting() -> Stage:
    parts = json.loads(os.environ.get("STAGE_PARTS", "[]"))
    folder = os.environ.get("STAGE_WORK", "")
    return Stage("counting").source(DataFrameSource(parts, numbers)).sink(ParquetSink(f"{folder}/numbers"))


@dag(os.environ.get("STAGE_DAG", "renamed"), schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def renamed() -> None:
    arguments = json.loads(os.environ.get("STAGE_ARGUMENTS", "{}"))
    group = os.environ.get("STAGE_GROUP")
    with TaskGroup(group) if group else nullcontext():
        CheckpointedStageOperator(task_id="count", job="numbers", stage=counting(), config_kwargs=SPARK, **arguments)


renamed()
