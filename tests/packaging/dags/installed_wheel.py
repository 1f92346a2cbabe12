"""A stage of two steps, as a user writes it who has installed the wheel."""

from __future__ import annotations

from datetime import UTC, datetime

from airflow.sdk import dag, task

SPARK = {
    "spark.master": "local[1]",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    "spark.driver.memory": "512m",
}


@dag(schedule=None, start_date=datetime(2026, 1, 1, tzinfo=UTC), catchup=False)
def installed_wheel():
    @task.checkpointed_spark(job="numbers_of_the_wheel", config_kwargs=SPARK)
    def work(spark, checkpoint):
        numbers = checkpoint.snapshot("numbers", lambda: spark.range(1000))
        return checkpoint.snapshot("doubled", lambda: numbers.selectExpr("id * 2 AS id")).count()

    work()  # type: ignore[call-arg]


installed_wheel()
