"""
Every way in which a token travels, side by side: to a stage, to a submitted driver and to a deferred sensor.

What travels is noted in a file that the search leaves out. A secret that is no token is planted in every place where
the search looks, to see that it would find one.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.operators.pyspark import CheckpointedPySparkOperator
from airflow_provider_statecheck.operators.spark_submit import CheckpointedSparkSubmitOperator
from airflow_provider_statecheck.sensors.checkpoint import CheckpointSensor

log = logging.getLogger(__name__)

SMALL = {"spark.driver.memory": "512m", "spark.ui.port": "0", "spark.sql.shuffle.partitions": "1"}

_post = HttpClient.post


def post_and_note(self: HttpClient, path: str, body: Any, token: str | None = None) -> Any:
    answer = _post(self, path, body, token)
    given = answer.get("token") if isinstance(answer, dict) else None
    secrets = Path(os.environ["AIRFLOW_HOME"]).parent / "secrets"
    with secrets.open("a") as noted:
        noted.writelines(f"{each}\n" for each in (token, body.get("secret"), given) if each)
    return answer


HttpClient.post = post_and_note  # type: ignore[method-assign]


def conf() -> dict[str, str]:
    return dict(get_current_context()["dag_run"].conf or {})


@contextmanager
def command_line_with(text: str) -> Iterator[None]:
    with subprocess.Popen([sys.executable, "-c", "input()", text], stdin=subprocess.PIPE) as process:
        yield
        process.communicate(b"\n")


def environment_pages(spark: Any) -> str:
    """Return the pages that show what this driver was started with, the second as the first one's script reads it."""
    context = spark.sparkContext
    return (
        f"{context.uiWebUrl}/environment/\n{context.uiWebUrl}/api/v1/applications/{context.applicationId}/environment"
    )


def stage(spark: Any, checkpoint: Any) -> str:
    planted, control = conf()["planted"], Path(conf()["control"])
    checkpoint.snapshot("numbers", lambda: spark.range(10))
    log.info("planted in the log: %s", planted)
    hidden = control / ".stage"
    hidden.write_text(environment_pages(spark))
    with command_line_with(planted):
        hidden.rename(control / "stage")
        while not (control / "release").exists():
            spark.range(1).selectExpr("java_method('java.lang.Thread', 'sleep', 100L)").collect()
    checkpoint.state["is released"] = True
    return planted


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def live_leaks() -> None:
    CheckpointedPySparkOperator(
        task_id="stage",
        python_callable=stage,
        config_kwargs={**SMALL, "spark.master": "local[1]", "spark.test.planted": "{{ dag_run.conf['planted'] }}"},
    )
    CheckpointedSparkSubmitOperator(
        task_id="submit",
        conn_id="spark_local",
        application="{{ dag_run.conf['control'] }}/application.py",
        application_args=["{{ dag_run.conf['control'] }}"],
        conf=SMALL,
    )
    CheckpointSensor(
        task_id="sensor",
        job="live_leaks/{{ dag_run.logical_date.isoformat() }}",
        uid="stage",
        at_least=3,
        deferrable=True,
        poke_interval=1,
        timeout=600,
    )

    @task
    def reads() -> list[str]:
        from airflow_provider_statecheck import StatecheckHook

        return [job.name for job in StatecheckHook().jobs()]

    reads()


live_leaks()
