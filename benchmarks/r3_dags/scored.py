"""Dags of R3: the same step with our operator and with Spark's operator, with an immediate retry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from benchmarks.r1_job import job_arguments
from benchmarks.r3_score import BATCH_ROWS
from benchmarks.spark_side import BATCH_ROWS as BATCH_ROWS_OPTION

HERE = Path(__file__).parents[1]
ARGUMENTS = job_arguments(**{BATCH_ROWS_OPTION: str(BATCH_ROWS)})

with DAG("r3_ours", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    CheckpointedSparkSubmitOperator(application=str(HERE / "r3_application.py"), ship_package=False, **ARGUMENTS)

with DAG("r3_plain", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    SparkSubmitOperator(application=str(HERE / "r3_plain.py"), **ARGUMENTS)
