"""A stage whose error contains a secret of a connection."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from airflow.sdk import dag
from airflow.sdk.bases.hook import BaseHook

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

SMALL = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.driver.memory": "512m",
    "spark.sql.shuffle.partitions": "1",
}


def log_in(spark: Any, checkpoint: Any) -> None:
    checkpoint.snapshot("numbers", lambda: spark.range(10))
    ledger = BaseHook.get_connection("ledger")
    raise ValueError(f"cannot log in as {ledger.login} with {ledger.password}")


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_secrets() -> None:
    CheckpointedPySparkOperator(task_id="work", python_callable=log_in, config_kwargs=SMALL)


live_secrets()
