"""A stage of three steps; each says that it begins, and waits until the control folder lets it go on."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import Param, dag, get_current_context

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}


def steps(spark: Any, checkpoint: Any) -> int:
    context = get_current_context()
    control, factor = Path((context["dag_run"].conf or {})["control"]), context["params"].get("factor", 2)

    def step(name: str, compute: Callable[[], Any]) -> Any:
        return checkpoint.snapshot(name, lambda: let_begin(spark, control, name) and compute())

    numbers = step("numbers", lambda: spark.range(1000))
    doubled = step("doubled", lambda: numbers.selectExpr(f"id * {factor} AS id"))
    total = step("total", lambda: doubled.agg({"id": "sum"}).toDF("total"))
    return int(total.first()[0])


def let_begin(spark: Any, control: Path, name: str) -> bool:
    """Say that a step begins, with the ids of the processes, and wait as a stage does, in Spark's jobs."""
    hidden = control / f".{name}"
    hidden.write_text(json.dumps(pids()))
    hidden.rename(control / f"{name}.json")
    with (control / "computed.log").open("a") as log:
        log.write(f"{name}\n")
    while not (control / f"release_{name}").exists():
        spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 100L)").collect()
    return True


def pids() -> dict[str, Any]:
    from airflow_provider_statecheck.spark.driver.session import jvm_pid

    return {"task": os.getpid(), "driver": os.getpid(), "jvm": jvm_pid(), "supervisor": os.getppid()}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_steps() -> None:
    CheckpointedPySparkOperator(
        task_id="work", python_callable=steps, config_kwargs=SPARK, retries=3, retry_delay=timedelta(0)
    )


PARAMS = {"control": "", "job": "live_actions", "from_checkpoint": "", "factor": Param(2, type="integer", minimum=1)}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False, params=PARAMS)
def live_actions() -> None:
    """Run the steps in a job that outlives its runs, so that users can act on its state."""
    CheckpointedPySparkOperator(
        task_id="work",
        python_callable=steps,
        config_kwargs=SPARK,
        job="{{ params.job }}",
        from_checkpoint="{{ params.from_checkpoint }}",
        num_retained=5,
        retries=3,
        retry_delay=timedelta(0),
    )


live_steps()
live_actions()
