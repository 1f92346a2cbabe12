"""An application whose driver calls through a mailbox, in a batch of Livy for which its task defers."""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

from airflow.sdk import dag

from airflow_provider_statecheck.operators.livy import CheckpointedLivyOperator

CONF = {
    "spark.log.level": "WARN",
    "spark.pyspark.python": sys.executable,
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_mailbox_deferred() -> None:
    CheckpointedLivyOperator(
        task_id="work",
        livy_conn_id="isolated_livy",
        file="{{ dag_run.conf['application'] }}",
        args=["{{ dag_run.conf['control'] }}"],
        conf=CONF,
        polling_interval=1,
        deferrable=True,
        checkpoint_dir="{{ dag_run.conf['checkpoint_dir'] }}",
        retries=3,
        retry_delay=timedelta(0),
    )


live_mailbox_deferred()
