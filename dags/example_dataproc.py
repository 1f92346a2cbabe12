"""
Run a script on a cluster of Google Dataproc, or as a serverless batch, whose retry resumes.

The triggerer waits for both, and relays the calls of their drivers. Airflow's provider is an extra of this package:
without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import (
        CheckpointedDataprocCreateBatchOperator,
        CheckpointedDataprocSubmitJobOperator,
    )
except ModuleNotFoundError:
    CheckpointedDataprocCreateBatchOperator = CheckpointedDataprocSubmitJobOperator = None


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "script": Param("gs://lake/jobs/features.py", type="string"),
        "project": Param("shop", type="string"),
        "region": Param("europe-west1", type="string"),
        "cluster": Param("nightly", type="string"),
    },
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "deferrable": True},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_dataproc() -> None:
    # [START howto_dataproc]
    script = {"main_python_file_uri": "{{ params.script }}", "args": ["--day", "{{ ds }}"]}
    place = {"project_id": "{{ params.project }}", "region": "{{ params.region }}"}
    CheckpointedDataprocSubmitJobOperator(
        task_id="on_cluster",
        job={"placement": {"cluster_name": "{{ params.cluster }}"}, "pyspark_job": script},
        **place,
    )
    CheckpointedDataprocCreateBatchOperator(task_id="serverless", batch={"pyspark_batch": script}, **place)
    # [END howto_dataproc]


if CheckpointedDataprocSubmitJobOperator is not None:
    example_dataproc()
