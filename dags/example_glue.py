"""
Run a job of AWS Glue, whose retry resumes.

The script asks for its context with `StageContext.current(spark)`, and reads its own arguments as before. Airflow's
provider is an extra of this package: without it, this file has no Dag.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from airflow.sdk import Param, dag

try:
    from airflow_provider_statecheck import CheckpointedGlueJobOperator
except ModuleNotFoundError:
    CheckpointedGlueJobOperator = None


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    params={"job": Param("features", type="string", description="Job that Glue has")},
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_glue() -> None:
    # [START howto_glue]
    CheckpointedGlueJobOperator(
        task_id="features",
        job_name="{{ params.job }}",
        script_args={"--day": "{{ ds }}"},
        stop_job_run_on_kill=True,
        retries=2,
        retry_delay=timedelta(minutes=1),
    )
    # [END howto_glue]


if CheckpointedGlueJobOperator is not None:
    example_glue()
