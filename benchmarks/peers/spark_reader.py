"""Peer of W1: Spark reads Parquet files that it wrote."""

from __future__ import annotations

import time
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.answering import answer
from benchmarks.spark_side import CONF


class SparkReader:
    """Reader with a warm session."""

    def __init__(self) -> None:
        self._spark = SparkSession.builder.config(map={**CONF}).getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def read(self, *, files: str) -> dict[str, Any]:
        """Read all files."""
        begin = time.perf_counter()
        self._spark.read.parquet(files).write.format("noop").mode("overwrite").save()
        return {"seconds": time.perf_counter() - begin}


if __name__ == "__main__":
    answer(SparkReader().read)
