"""
Build delay features for a year of flights; a retry resumes from the last completed checkpoint.

Five steps are snapshots, and the twelve months of the report are items of a loop. Kill the driver at any point: the
retry restores the finished steps and months, and computes the others.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import Param, dag, task


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
    params={
        "source": Param("data/flights", type="string", description="Folder with flights, weather and planes as CSV."),
        "report": Param(
            "data/flights_report", type="string", description="Folder for the report, one subfolder per month."
        ),
    },
)
def example_resume_flights() -> None:
    # [START howto_checkpointed_spark]
    @task.checkpointed_spark(retries=2, retry_delay=timedelta(seconds=1))
    def delay_features(spark: Any, checkpoint: Any, params: dict[str, Any]) -> int:
        from pyspark.sql import Window, functions as F

        def read(name: str) -> Any:
            return spark.read.csv(f"{params['source']}/{name}.csv", header=True, inferSchema=True, nullValue="NA")

        flights = checkpoint.snapshot("flights", lambda: read("flights").dropDuplicates())
        weather = checkpoint.snapshot(
            "weather",
            lambda: (
                read("weather")
                .groupBy("origin", "time_hour")
                .agg(F.avg("wind_speed"), F.avg("visib"))
                .toDF("origin", "time_hour", "wind_speed", "visibility")
            ),
        )
        legs = Window.partitionBy("tailnum").orderBy("time_hour", "sched_dep_time", "flight")
        rotations = checkpoint.snapshot(
            "rotations",
            lambda: flights.withColumn("previous_delay", F.lag("arr_delay").over(legs)).withColumn(
                "flights_so_far", F.count(F.lit(1)).over(legs)
            ),
        )
        fleet = checkpoint.snapshot(
            "fleet",
            lambda: rotations.join(
                read("planes").select("tailnum", F.col("year").alias("built"), "seats"), "tailnum", "left"
            ),
        )
        features = checkpoint.snapshot("features", lambda: fleet.join(weather, ["origin", "time_hour"], "left"))

        checkpoint.state.setdefault("rows", 0)
        for month in checkpoint.each("months", range(1, 13)):
            report = (
                features.where(F.col("month") == month)
                .groupBy("origin", "dest", "carrier")
                .agg(
                    F.count(F.lit(1)).alias("flights"),
                    F.round(F.avg("dep_delay"), 3).alias("mean_delay"),
                    F.expr("percentile(dep_delay, 0.9)").alias("p90_delay"),
                    F.round(F.avg("previous_delay"), 3).alias("mean_inherited"),
                    F.round(F.avg("wind_speed"), 3).alias("mean_wind"),
                )
                .orderBy("origin", "dest", "carrier")
            )
            report.coalesce(1).write.mode("overwrite").json(f"{params['report']}/month={month:02d}")
            checkpoint.state["rows"] += report.count()
        return int(checkpoint.state["rows"])

    # [END howto_checkpointed_spark]

    delay_features()


example_resume_flights()
