"""
Rank airports by incoming flights with PageRank; a retry resumes from the last checkpoint of the iteration.

The links are the flights of an aircraft from New York to an airport, and its return for the next departure. `iterate`
refines the ranks, takes a checkpoint after every fifth step, and ends when the ranks converge.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

FLIGHTS, RANKS = "data/flights/flights.csv", "data/airport_ranks"
DAMPING, ENOUGH = 0.85, 0.001


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_pagerank() -> None:
    # [START howto_iterate]
    @task.checkpointed_spark(retries=2, retry_delay=timedelta(seconds=1))
    def airport_ranks(spark: Any, checkpoint: Any) -> int:
        from pyspark.sql import Window, functions as F

        def flown() -> Any:
            flights = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA").where(
                "tailnum is not null"
            )
            legs = Window.partitionBy("tailnum").orderBy("time_hour", "sched_dep_time", "flight")
            out = flights.select("origin", "dest")
            back = flights.select("dest", F.lead("origin").over(legs)).dropna()
            links = out.union(back).toDF("src", "dst").groupBy("src", "dst").count()
            return links.withColumn("share", F.col("count") / F.sum("count").over(Window.partitionBy("src")))

        links = checkpoint.snapshot("links", flown)

        def equal_ranks() -> Any:
            return links.select(F.col("dst").alias("airport"), F.lit(1.0).alias("rank")).distinct()

        def follow_links(ranks: Any, step: int) -> Any:
            given = links.join(ranks, links.src == ranks.airport)
            received = F.sum(F.col("rank") * F.col("share"))
            return given.groupBy(F.col("dst").alias("airport")).agg((1 - DAMPING + DAMPING * received).alias("rank"))

        def is_settled(ranks: Any, before: Any) -> bool:
            both = ranks.join(before.withColumnRenamed("rank", "old"), "airport")
            return bool(both.where(F.abs(F.col("rank") - F.col("old")) > ENOUGH).isEmpty())

        ranks = checkpoint.iterate("ranks", equal_ranks, 100, every=5, step=follow_links, until=is_settled)
        ranks.orderBy(F.desc("rank")).coalesce(1).write.mode("overwrite").parquet(RANKS)
        return int(ranks.count())

    # [END howto_iterate]

    airport_ranks()


example_pagerank()
