"""Dags of the Airflow tests; what goes wrong in which try is said by the environment."""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from airflow.sdk import dag, task

from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator

SPARK = {"spark.master": "local[2]", "spark.ui.enabled": "false", "spark.sql.shuffle.partitions": "2"}
START = datetime(2026, 1, 1, tzinfo=UTC)


def note(what: str) -> None:
    with (Path(os.environ["STAGE_WORK"]) / "computed.log").open("a") as log:
        log.write(f"{what}\n")


def tries_so_far() -> int:
    log = Path(os.environ["STAGE_WORK"]) / "tries.log"
    with log.open("a") as file:
        file.write("try\n")
    return len(log.read_text().splitlines())


def trouble(spark: Any) -> None:
    """Go wrong in the way that the environment names."""
    from airflow_provider_statecheck.spark.driver.session import jvm_pid

    kind = os.environ.get("STAGE_TROUBLE")
    if kind == "kill the JVM":
        os.kill(jvm_pid() or 0, signal.SIGKILL)
    if kind == "stop with a savepoint":
        ask_to_stop()
    if kind == "raise":
        raise RuntimeError("planned")
    if kind in ("run into the timeout", "wait for a signal"):
        note("waiting")
        spark.range(10**15).selectExpr("sum(id % 7)").collect()


def ask_to_stop() -> None:
    """Ask for what the command ``airflow statecheck savepoint --stop suspend`` asks for."""
    from airflow_provider_statecheck.checkpoint.ids import new_key
    from airflow_provider_statecheck.checkpoint.messages import RequestSavepoint
    from airflow_provider_statecheck.checkpoint.properties import CheckpointType
    from airflow_provider_statecheck.hooks.transport import maintenance_gateway, savepoint_gateway

    gateway = maintenance_gateway()
    view = gateway.describe(gateway.jobs()[0].job_id)
    kind, operator = CheckpointType.SAVEPOINT_SUSPEND, view.operators[0].operator_id
    savepoint_gateway().request(
        RequestSavepoint(job_id=view.job.job_id, operator_id=operator, request_key=new_key(), kind=kind)
    )


def stage(spark: Any, checkpoint: Any) -> int:
    attempt = tries_so_far()

    def numbers() -> Any:
        note("numbers")
        return spark.range(100)

    source = checkpoint.snapshot("numbers", numbers)
    for item in checkpoint.each("items", ["a", "b", "c"]):
        note(f"item {item}")
        if item == "b" and attempt == 1:
            trouble(spark)
        checkpoint.state[item] = source.count()
    return int(sum(checkpoint.state.values()))


def work(spark: Any, checkpoint: Any) -> int:
    return stage(spark, checkpoint)


@dag(schedule=None, start_date=START, catchup=False)
def decorated() -> None:
    stage_task: Any = task.checkpointed_spark(
        task_id="work",
        retries=1,
        retry_delay=timedelta(0),
        config_kwargs=SPARK,
        from_savepoint=os.environ.get("FROM_SAVEPOINT"),
        execution_timeout=timedelta(seconds=30 if os.environ.get("STAGE_TROUBLE") == "run into the timeout" else 600),
    )(work)
    stage_task()


@dag(schedule=None, start_date=START, catchup=False)
def classic() -> None:
    CheckpointedPySparkOperator(task_id="work", python_callable=work, config_kwargs=SPARK, num_retained=1)


@dag(schedule=None, start_date=START, catchup=False)
def shared_uid() -> None:
    first = CheckpointedPySparkOperator(task_id="one", python_callable=work, config_kwargs=SPARK, job="j", uid="same")
    second = CheckpointedPySparkOperator(task_id="two", python_callable=work, config_kwargs=SPARK, job="j", uid="same")
    first >> second


@dag(schedule=None, start_date=START, catchup=False)
def mapped() -> None:
    def part(spark: Any, checkpoint: Any, name: str) -> str:
        return f"{name} {stage(spark, checkpoint)}"

    task.checkpointed_spark(task_id="work", config_kwargs=SPARK)(part).expand(name=["x"])


decorated()
classic()
shared_uid()
mapped()
