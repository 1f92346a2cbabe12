"""Peer of K1: ``groupBy.agg`` in one Spark job without state or checkpoints."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession, functions as F

from benchmarks.answering import answer
from benchmarks.spark_side import CONF, prices


class BatchAggregate:
    """Job with a warm session."""

    def __init__(self) -> None:
        self._spark = SparkSession.builder.config(map={**CONF}).getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, *, files: str, key: str, output: str | None = None) -> dict[str, Any]:
        """
        Run the job.

        :param files: Folder with the input.
        :param key: Name of the key column.
        :param output: Folder for the result; by default it is discarded.
        """
        begin = time.perf_counter()
        figures = (F.sum("price").alias("total"), F.count("price").alias("n"), F.max("price").alias("top"))
        frame = prices(key, self._spark, files).groupBy(key).agg(*figures)
        if output is None:
            frame.write.format("noop").mode("overwrite").save()
        else:
            frame.write.parquet(output)
        return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    answer(BatchAggregate().run)
