"""
An application whose driver calls through a mailbox, in the task or on a cluster.

``spark3-submit`` is a program of the test, which runs ``spark-submit`` in a network namespace of its own.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag

from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator

CONF = {
    "spark.log.level": "WARN",
    "spark.ui.enabled": "false",
    "spark.pyspark.python": sys.executable,
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


ON_CLUSTER = {
    "executor_memory": "512m",
    "executor_cores": 1,
    "total_executor_cores": 1,
    "package_dir": "{{ dag_run.conf['control'] }}/packages",
}


def mailbox_dag(dag_id: str, conn_id: str = "spark_local", **arguments: Any) -> None:
    @dag(dag_id=dag_id, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
    def one_application() -> None:
        CheckpointedSparkSubmitOperator(
            task_id="work",
            conn_id=conn_id,
            spark_binary="spark3-submit",
            application="{{ dag_run.conf['application'] }}",
            application_args=["{{ dag_run.conf['control'] }}"],
            driver_memory="512m",
            transport="mailbox",
            checkpoint_dir="{{ dag_run.conf['checkpoint_dir'] }}",
            storage_conn_id="lake",
            retries=3,
            retry_delay=timedelta(0),
            conf=CONF,
            **arguments,
        )

    one_application()


mailbox_dag("live_mailbox")
mailbox_dag("live_mailbox_hasty", checkpoint_timeout_seconds=5)
mailbox_dag("live_mailbox_cluster", "isolated_cluster", **ON_CLUSTER)
