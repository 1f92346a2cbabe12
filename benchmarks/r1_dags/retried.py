"""Dags of R1: the same work with our operator and with Spark's operator, with an immediate retry."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.sdk import DAG

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from benchmarks.r1_job import job_arguments

HERE = Path(__file__).parents[1]
ARGUMENTS = job_arguments()

with DAG("r1_ours", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    CheckpointedSparkSubmitOperator(application=str(HERE / "r1_application.py"), ship_package=False, **ARGUMENTS)

with DAG("r1_peer", schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC)):
    SparkSubmitOperator(application=str(HERE / "peers" / "spark_application.py"), **ARGUMENTS)
