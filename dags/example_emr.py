"""
Run a script as a step of a cluster of Amazon EMR, or on EMR Serverless, whose retry resumes.

The triggerer waits for both, and relays the calls of their drivers. Airflow's provider is an extra of this package:
without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import CheckpointedEmrAddStepsOperator, CheckpointedEmrServerlessStartJobOperator
except ModuleNotFoundError:
    CheckpointedEmrAddStepsOperator = CheckpointedEmrServerlessStartJobOperator = None


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={
        "script": Param("s3://lake/jobs/features.py", type="string"),
        "cluster": Param("j-1ABC", type="string", description="Cluster on EC2"),
        "application": Param("00f1", type="string", description="Application of EMR Serverless"),
        "role": Param("arn:aws:iam::123456789012:role/jobs", type="string", description="Role of the serverless job"),
    },
    default_args={"retries": 2, "retry_delay": timedelta(minutes=1), "deferrable": True},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_emr() -> None:
    # [START howto_emr]
    words = ["spark-submit", "--deploy-mode", "cluster", "{{ params.script }}", "--day", "{{ ds }}"]
    CheckpointedEmrAddStepsOperator(
        task_id="on_ec2",
        job_flow_id="{{ params.cluster }}",
        steps=[{"Name": "features", "HadoopJarStep": {"Jar": "command-runner.jar", "Args": words}}],
    )
    CheckpointedEmrServerlessStartJobOperator(
        task_id="serverless",
        application_id="{{ params.application }}",
        execution_role_arn="{{ params.role }}",
        job_driver={"sparkSubmit": {"entryPoint": "{{ params.script }}", "entryPointArguments": ["--day", "{{ ds }}"]}},
        configuration_overrides={},
    )
    # [END howto_emr]


if CheckpointedEmrAddStepsOperator is not None:
    example_emr()
