"""The Dag of the test without an api-server."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def submitted() -> None:
    CheckpointedSparkSubmitOperator(
        task_id="work",
        application=str(Path(__file__).parents[1] / "application.py"),
        application_args=[os.environ["STAGE_WORK"], "kill driver"],
        conf={"spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"},
        driver_memory="512m",
        retries=1,
        retry_delay=timedelta(0),
    )


submitted()
