"""
Create a `SparkApplication` for the Spark operator of Kubernetes, whose retry resumes.

A driver's pod that Kubernetes starts again restores without a retry. Airflow's provider is an extra of this package:
without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import CheckpointedSparkKubernetesOperator
except ModuleNotFoundError:
    CheckpointedSparkKubernetesOperator = None

APPLICATION = {
    "apiVersion": "sparkoperator.k8s.io/v1beta2",
    "kind": "SparkApplication",
    "spec": {
        "type": "Python",
        "mode": "cluster",
        "image": "{{ params.image }}",
        "mainApplicationFile": "{{ params.script }}",
        "arguments": ["--day", "{{ ds }}"],
        "restartPolicy": {"type": "OnFailure", "onFailureRetries": 2},
        "driver": {"cores": 1, "memory": "2g", "serviceAccount": "spark"},
        "executor": {"instances": 2, "memory": "2g"},
    },
}


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "image": Param("apache/spark-py:latest", type="string", description="Image with Hadoop's client of the store"),
        "script": Param("local:///opt/app/features.py", type="string"),
    },
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_spark_kubernetes() -> None:
    # [START howto_spark_kubernetes]
    CheckpointedSparkKubernetesOperator(
        task_id="features",
        kubernetes_conn_id="kubernetes_default",
        namespace="default",
        template_spec={"spark": APPLICATION},
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # [END howto_spark_kubernetes]


if CheckpointedSparkKubernetesOperator is not None:
    example_spark_kubernetes()
