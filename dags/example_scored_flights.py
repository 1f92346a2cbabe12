"""
Score a year of flights with a scikit-learn model, in parts; a retry computes only the parts that are missing.

A model learns from every tenth day which flights arrive late, and estimates the risk of each flight with `mapInPandas`.
Parts are some files of the flights; each checkpoint saves the finished ones. The coefficients of the model are a
snapshot with plain numbers: nothing is pickled into a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow.sdk import dag, task

FLIGHTS, CARRIERS = "data/flights/flights.csv", "data/late_carriers"
FEATURES = ["departure", "length", "season"]
SCORED = "carrier string, flight int, origin string, dest string, month int, day int, late boolean, risk double"


@dag(
    schedule=None,
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,
    doc_md=__doc__,
    tags=["example", "statecheck"],
)
def example_scored_flights() -> None:
    # [START howto_parts]
    @task.checkpointed_spark(retries=2, retry_delay=timedelta(seconds=1))
    def late_carriers(spark: Any, checkpoint: Any) -> int:
        import numpy as np
        from pyspark.sql import functions as F
        from sklearn.linear_model import LogisticRegression

        def planned() -> Any:
            flown = spark.read.csv(FLIGHTS, header=True, inferSchema=True, nullValue="NA")
            features = flown.withColumns(
                {
                    "departure": F.col("hour") / 24,
                    "length": F.col("distance") / 1000,
                    "season": F.cos(F.col("month") * np.pi / 6),
                    "late": F.col("arr_delay") > 15,
                }
            )
            columns = ["carrier", "flight", "origin", "dest", "month", "day", "late", *FEATURES]
            # A part has at least as many files as Spark has cores; more files make smaller parts.
            return features.select(columns).repartition(24)

        flights = checkpoint.snapshot("flights", planned)

        def trained() -> Any:
            sample = flights.where("day % 10 = 0 and late is not null").toPandas()
            model = LogisticRegression().fit(sample[FEATURES].to_numpy(), sample["late"].to_numpy(dtype=bool))
            return spark.createDataFrame(
                [(model.coef_[0].tolist(), model.intercept_.tolist())], "slopes array<double>, intercept array<double>"
            )

        slopes, intercept = checkpoint.snapshot("model", trained).first()

        def with_risk(batches: Iterator[Any]) -> Iterator[Any]:
            model = LogisticRegression()
            model.classes_ = np.array([False, True])
            model.coef_, model.intercept_ = np.array([slopes]), np.array(intercept)
            for rows in batches:
                rows["risk"] = model.predict_proba(rows[FEATURES].to_numpy())[:, 1]
                yield rows.drop(columns=FEATURES)

        scored = checkpoint.snapshot(
            "scored",
            lambda rows: rows.mapInPandas(with_risk, SCORED),
            over=flights,
            # Values that a function captures are not part of its fingerprint: another model is another version.
            version=f"{slopes} {intercept}",
        )
        carriers = checkpoint.snapshot(
            "carriers",
            lambda: scored.groupBy("carrier").agg(
                F.count(F.lit(1)).alias("flights"),
                F.avg("risk").alias("expected"),
                F.avg(F.col("late").cast("int")).alias("late"),
            ),
        )
        carriers.orderBy(F.desc("expected")).coalesce(1).write.mode("overwrite").parquet(CARRIERS)
        return int(scored.count())

    # [END howto_parts]

    late_carriers()


example_scored_flights()
