"""
Dags of the live tests.

Each run has a control folder, named by its conf. The stage notes there what it really computes, stops once at an item
with its processes' ids, and goes on, or fails, as the folder tells it to.
"""

from __future__ import annotations

import json
import os
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
START = datetime(2026, 1, 1, tzinfo=UTC)
RETRIED = {"retries": 3, "retry_delay": timedelta(0)}


class Control:
    """The control folder of a run, or of one instance of a mapped task."""

    def __init__(self, *parts: str) -> None:
        self.folder = Path((get_current_context()["dag_run"].conf or {})["control"], *parts)

    def note(self, what: str) -> None:
        with (self.folder / "computed.log").open("a") as log:
            log.write(f"{what}\n")

    def stop_once(self, spark: Any, item: str) -> None:
        """Say where we are and wait for the release as a stage does, in Spark's jobs; in the first try only."""
        if item != self._stops_at() or (self.folder / "stopped.json").exists():
            return
        self._say("stopped.json", json.dumps(pids()))
        release = self.folder / "release"
        while not release.exists():
            spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 100L)").collect()
        if release.read_text() == "fail":
            raise RuntimeError("planned")

    def _stops_at(self) -> str:
        given = self.folder / "stops_at"
        return given.read_text() if given.exists() else "b"

    def ended(self, error: BaseException) -> None:
        """Leave how the stage ended where a test can read it although nobody listens to this process any more."""
        self._say("error.txt", f"{type(error).__name__}: {error}")

    def _say(self, name: str, text: str) -> None:
        hidden = self.folder / f".{name}"
        hidden.write_text(text)
        hidden.rename(self.folder / name)


def pids() -> dict[str, Any]:
    from airflow_provider_statecheck.spark.driver.session import jvm_pid

    return {"task": os.getpid(), "driver": os.getpid(), "jvm": jvm_pid(), "supervisor": os.getppid()}


def stage(spark: Any, checkpoint: Any, control: Control) -> int:
    def numbers() -> Any:
        control.note("numbers")
        return spark.range(100)

    def doubled() -> Any:
        control.note("doubled")
        return source.selectExpr("id * 2 AS id")

    source = checkpoint.snapshot("numbers", numbers)
    rows = checkpoint.snapshot("doubled", doubled)
    for item in checkpoint.each("items", ["a", "b", "c"]):
        control.note(f"item {item}")
        control.stop_once(spark, item)
        checkpoint.state[item] = rows.agg({"id": "sum"}).first()[0]
    return int(sum(checkpoint.state.values()))


def work(spark: Any, checkpoint: Any) -> int:
    control = Control()
    try:
        return stage(spark, checkpoint, control)
    except BaseException as error:
        control.ended(error)
        raise


def part(spark: Any, checkpoint: Any, name: str) -> str:
    return f"{name} {stage(spark, checkpoint, Control(name))}"


def stage_dag(dag_id: str, **arguments: Any) -> None:
    @dag(dag_id=dag_id, schedule=None, start_date=START, catchup=False)
    def one_stage() -> None:
        CheckpointedPySparkOperator(task_id="work", python_callable=work, config_kwargs=SPARK, **arguments)

    one_stage()


@dag(schedule=None, start_date=START, catchup=False)
def live_mapped() -> None:
    @task
    def parts() -> list[dict[str, Any]]:
        names = json.loads((Control().folder / "names.json").read_text())
        return [{"map_key": name, "op_kwargs": {"name": name}} for name in names]

    CheckpointedPySparkOperator.partial(task_id="work", python_callable=part, config_kwargs=SPARK).expand_kwargs(
        parts()
    )


stage_dag("live_stage", **RETRIED)
stage_dag("live_timed", **RETRIED, execution_timeout=timedelta(seconds=60))
live_mapped()
