"""A task with an operator of a service, in a process of its own: a try, or its part after a deferral."""

from __future__ import annotations

import json
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from airflow.sdk.exceptions import TaskDeferred
from airflow.sdk.serde import deserialize, serialize

import airflow_provider_statecheck
from tests.stand_in_task import TASK_ID, execute_as_a_worker_would

DEFERRED = 100
"""Exit status of a task that has deferred."""


def main() -> None:
    work, request = Path(sys.argv[1]), json.loads(sys.argv[2])
    operator = getattr(airflow_provider_statecheck, request["operator"])(task_id=TASK_ID, **request["arguments"])
    resume = work / "resume.json"
    given: Any = deserialize(json.loads(resume.read_text())) if request["is_resumed"] else None
    try:
        execute_as_a_worker_would(operator, work, request["try_number"], request["max_tries"], given)
    except TaskDeferred as deferred:
        (work / "deferral.json").write_text(json.dumps(serialize(deferral_of(deferred))))
        sys.exit(DEFERRED)


def deferral_of(deferred: TaskDeferred) -> dict[str, Any]:
    classpath, kwargs = deferred.trigger.serialize()
    timeout = deferred.timeout
    assert timeout is None or isinstance(timeout, int | float | timedelta)
    return {
        "classpath": classpath,
        "trigger_kwargs": kwargs,
        "next_method": deferred.method_name,
        "next_kwargs": deferred.kwargs or {},
    }


if __name__ == "__main__":
    main()
