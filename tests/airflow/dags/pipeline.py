"""
Dags of the Airflow tests whose tasks are the stages of one job: a mapped one, one that reads it, and one after that.
"""

from __future__ import annotations

import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import DAG

from airflow_provider_statecheck import CheckpointedStageOperator
from tests.airflow.dags.account_reports import audit_stage, load_stage, report_stage

SPARK = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "1"}
COUNTRIES = ("de", "fr")


def pipeline(name: str, **arguments: Any) -> DAG:
    """
    Return a Dag with a job and outputs of its own.

    :param arguments: Further arguments of each task.
    """
    folder = Path(os.environ.get("STAGE_WORK", ""))
    output, common = folder / name, {"job": name, "config_kwargs": SPARK} | arguments
    with DAG(name, schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), params={"pointer": ""}) as dag:
        load = CheckpointedStageOperator.partial(task_id="load", **common).expand_kwargs(
            [{"stage": load_stage(folder, output, country), "map_key": country} for country in COUNTRIES]
        )
        report = CheckpointedStageOperator(task_id="report", stage=report_stage(folder, output), **common)
        load >> report >> CheckpointedStageOperator(task_id="audit", stage=audit_stage(folder, output), **common)
    return dag


undisturbed = pipeline("undisturbed")
disturbed = pipeline("disturbed")
suspended = pipeline("suspended")
rehearsal = pipeline(
    "rehearsal",
    from_savepoint="{{ params.pointer }}",
    allow_non_restored_state=True,
    # The state names the directory of the first job's output.
    allowed_locations=Path(os.environ.get("STAGE_WORK", "")).absolute().as_uri(),
)
