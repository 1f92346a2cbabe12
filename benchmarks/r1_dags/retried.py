"""Dags of R1: the same work with our operator and with Spark's operator, with an immediate retry."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from benchmarks.r1_marks import TRY, mark
from benchmarks.spark_side import CONF

HERE = Path(__file__).parents[1]
MARKS = os.environ["R1_MARKS"]


def begin_try(context: Any) -> None:
    """Record the start of a try."""
    mark(MARKS, TRY)


ARGUMENTS: dict[str, Any] = {
    "task_id": "job",
    "application_args": [os.environ["R1_FILES"], os.environ["R1_OUTPUT"], MARKS],
    "conf": {name: value for name, value in CONF.items() if name not in ("spark.master", "spark.driver.memory")},
    "driver_memory": CONF["spark.driver.memory"],
    "retries": 1,
    "retry_delay": timedelta(0),
    "pre_execute": begin_try,
}

with DAG("r1_ours", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    CheckpointedSparkSubmitOperator(application=str(HERE / "r1_application.py"), ship_package=False, **ARGUMENTS)

with DAG("r1_peer", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    SparkSubmitOperator(application=str(HERE / "peers" / "spark_application.py"), **ARGUMENTS)
