"""
Run a script on a new cluster of Databricks, whose retry resumes.

The triggerer waits for the run, and relays the calls of the driver. Airflow's provider is an extra of this package:
without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import CheckpointedDatabricksSubmitRunOperator
except ModuleNotFoundError:
    CheckpointedDatabricksSubmitRunOperator = None


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "script": Param("dbfs:/jobs/features.py", type="string"),
        "node_type": Param("m7g.xlarge", type="string"),
    },
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_databricks() -> None:
    # [START howto_databricks]
    CheckpointedDatabricksSubmitRunOperator(
        task_id="features",
        databricks_conn_id="databricks_default",
        new_cluster={
            "spark_version": "17.3.x-scala2.13",
            "node_type_id": "{{ params.node_type }}",
            "num_workers": 2,
        },
        spark_python_task={"python_file": "{{ params.script }}", "parameters": ["--day", "{{ ds }}"]},
        deferrable=True,
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # [END howto_databricks]


if CheckpointedDatabricksSubmitRunOperator is not None:
    example_databricks()
