"""
Forks one process for each try, with everything imported already.

It has no thread and no connection of its own, so that a fork is safe; every child connects to the one JVM whose port
and secret are in the environment. Commands and answers are lines of JSON.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from pyspark import SparkConf, SparkContext
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.crash import part_pipeline, pipeline, sink_pipeline, stage_pipeline
from tests.crash.sink_steps import StepPlan

FAILED = 3


def connect() -> SparkSession:
    """Return a session on the JVM that runs already."""
    gateway = launch_gateway()
    jvm = gateway.jvm
    java_context = jvm.org.apache.spark.api.java.JavaSparkContext.fromSparkContext(
        jvm.org.apache.spark.SparkContext.getOrCreate()
    )
    conf = SparkConf(_jvm=jvm, _jconf=java_context.getConf())
    return SparkSession(SparkContext(gateway=gateway, jsc=java_context, conf=conf))


def make_plan(command: dict[str, Any]) -> FaultPlan:
    """Return where a try fails; the pipelines have plans of their own kinds."""
    if command.get("pipeline") == "sink":
        return sink_pipeline.plan_of(command)
    kind = stage_pipeline.SharedPlan if command.get("pipeline") in ("stage", "parts") else FaultPlan
    mode = FaultMode(command.get("mode", "error"))
    return kind(point=command.get("point"), mode=mode, times=command.get("times", 1))


def run_try(command: dict[str, Any]) -> int:
    """Run one try in this process and return its exit status."""
    work = Path(command["work"])
    plan = make_plan(command)
    try:
        if isinstance(plan, StepPlan):
            result = sink_pipeline.run(connect(), work, plan, command)
        elif command.get("pipeline") == "parts":
            result = part_pipeline.run(connect(), work, plan)
        elif isinstance(plan, stage_pipeline.SharedPlan):
            result = stage_pipeline.run(connect(), work, plan, command)
        else:
            result = pipeline.run(connect(), work, plan, command.get("fail_at"))
    except Exception:
        (work / "error.txt").write_text(traceback.format_exc())
        return FAILED
    pipeline.write_result(work, result, plan)
    return 0


def main() -> None:
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            with (Path(json.loads(line)["work"]) / "try.log").open("a") as log:
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
            os._exit(run_try(json.loads(line)))
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)  # noqa: T201 - the answer


if __name__ == "__main__":
    main()
