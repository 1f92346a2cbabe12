"""
Run a script as a batch of Apache Livy, whose retry resumes.

The script asks for its context with `StageContext.current(spark)`. Airflow's provider is an extra of this package:
without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import CheckpointedLivyOperator
except ModuleNotFoundError:
    CheckpointedLivyOperator = None


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={"script": Param("s3a://lake/jobs/features.py", type="string")},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_livy() -> None:
    # [START howto_livy]
    CheckpointedLivyOperator(
        task_id="features",
        livy_conn_id="livy_default",
        file="{{ params.script }}",
        args=["--day", "{{ ds }}"],
        polling_interval=30,
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # [END howto_livy]


if CheckpointedLivyOperator is not None:
    example_livy()
