"""A task whose first try fails after a step and one item."""

from __future__ import annotations

import os
from datetime import UTC, datetime, timedelta
from pathlib import Path

from airflow.sdk import dag, get_current_context, task

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
}


def note(what: str) -> None:
    with Path(os.environ["STATECHECK_TEST_FOLDER"], "computed").open("a") as notes:
        notes.write(f"{what}\n")


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def resuming():
    @task.checkpointed_spark(job="resuming", config_kwargs=SPARK, retries=1, retry_delay=timedelta(0))
    def work(spark, checkpoint):
        def numbers():
            note("numbers")
            return spark.range(1000)

        found = checkpoint.snapshot("numbers", numbers)
        for item in checkpoint.each("items", ["a", "b"]):
            note(f"item {item}")
            if item == "b" and get_current_context()["ti"].try_number == 1:
                raise RuntimeError("planned")
            checkpoint.state[item] = found.count()
        return sum(checkpoint.state.values())

    work()  # type: ignore[call-arg]


resuming()
