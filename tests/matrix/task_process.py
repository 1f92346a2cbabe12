"""One try of the pipeline's task, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from tests.matrix.stage import run_stage
from tests.stand_in_task import TASK_ID, execute_as_a_worker_would

WORK = Path(sys.argv[1])


def stage(spark: Any, checkpoint: Any) -> None:
    run_stage(spark, checkpoint, WORK)


def operator_of(request: dict[str, Any]) -> Any:
    """Make the operator that the mode asks for."""
    if request["is_submitted"]:
        return CheckpointedSparkSubmitOperator(task_id=TASK_ID, **request["operator"])
    return CheckpointedPySparkOperator(task_id=TASK_ID, python_callable=stage, **request["operator"])


def main() -> None:
    request = json.loads(sys.argv[2])
    execute_as_a_worker_would(operator_of(request), WORK, request["try_number"], 2)


main()
