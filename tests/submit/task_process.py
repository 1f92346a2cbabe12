"""One try of a task that submits an application, in a process of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from airflow_provider_statecheck.operators.spark_submit import (
    CheckpointedSparkSubmitOperator,
    CheckpointedStageSubmitOperator,
)
from tests.stand_in_task import TASK_ID, execute_as_a_worker_would


def main() -> None:
    request = json.loads(sys.argv[2])
    kind = CheckpointedStageSubmitOperator if "stage" in request["operator"] else CheckpointedSparkSubmitOperator
    operator = kind(task_id=TASK_ID, **request["operator"])
    execute_as_a_worker_would(operator, Path(sys.argv[1]), request["try_number"], request["max_tries"])


main()
