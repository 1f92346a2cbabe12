"""
An application whose driver calls through a mailbox.

``spark3-submit`` is a program of the test, which runs ``spark-submit`` in a network namespace of its own.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator

CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def mailbox_dag(dag_id: str, **arguments: Any) -> None:
    @dag(dag_id=dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
    def one_application() -> None:
        CheckpointedSparkSubmitOperator(
            task_id="work",
            conn_id="spark_local",
            spark_binary="spark3-submit",
            application="{{ dag_run.conf['application'] }}",
            application_args=["{{ dag_run.conf['control'] }}"],
            conf=CONF,
            driver_memory="512m",
            transport="mailbox",
            checkpoint_dir="{{ dag_run.conf['checkpoint_dir'] }}",
            storage_conn_id="lake",
            retries=3,
            retry_delay=timedelta(0),
            **arguments,
        )

    one_application()


mailbox_dag("live_mailbox")
mailbox_dag("live_mailbox_hasty", checkpoint_timeout_seconds=5)
