"""
Two tasks of two Dags. Each proves to the coordinator who it is, and then waits until a file says go on.

What they send and get in the exchange is noted in a file of their name, as an attacker might have learnt it.
"""

from __future__ import annotations

import json
import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from airflow.sdk import dag, get_current_context, task

from airflow_provider_statecheck.gateway.http import HttpClient

SPARK = {"spark.master": "local[1]", "spark.ui.enabled": "false", "spark.driver.memory": "512m"}
FOLDER = Path(os.environ["STATECHECK_TEST_FOLDER"])
LIMIT_SECONDS = 300

_post = HttpClient.post


def post_and_note(self: HttpClient, path: str, body: Any, token: str | None = None) -> Any:
    answer = _post(self, path, body, token)
    note({"path": path, "sent": body, "answer": answer})
    return answer


def note(what: dict[str, Any]) -> None:
    with (FOLDER / get_current_context()["dag"].dag_id).open("a") as notes:
        notes.write(f"{json.dumps(what)}\n")


def wait() -> None:
    note({"path": "waits", "sent": {}, "answer": {}})
    deadline = time.monotonic() + LIMIT_SECONDS
    while not (FOLDER / "go on").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)


HttpClient.post = post_and_note  # type: ignore[method-assign]
DAG: dict[str, Any] = {"schedule": None, "start_date": datetime(2026, 1, 1, tzinfo=UTC), "catchup": False}


@dag(**DAG)
def exchange_of_victim():
    @task.checkpointed_spark(job="victim", config_kwargs=SPARK)
    def work(spark, checkpoint):
        checkpoint.snapshot("numbers", lambda: spark.range(10))
        wait()
        return checkpoint.snapshot("doubled", lambda: spark.range(20)).count()

    work()  # type: ignore[call-arg]


@dag(**DAG)
def exchange_of_attacker():
    @task
    def work():
        from airflow_provider_statecheck import StatecheckHook

        found = [job.name for job in StatecheckHook().jobs()]
        wait()
        return found

    work()


exchange_of_victim()
exchange_of_attacker()
