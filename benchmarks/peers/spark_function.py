"""Peer of K2: a Python function by key with ``transformWithStateInPandas`` of Spark Structured Streaming."""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import SparkSession, functions as F
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.answering import answer
from benchmarks.peers.spark_aggregate import PROVIDERS
from benchmarks.spark_side import BATCH_ROWS, CONF

FIGURES = "total double, n bigint, top double"


class RunningFigures(StatefulProcessor):
    """Aggregate the figures of each key, with pandas for the rows of a batch, which is faster than a loop."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Register the state."""
        self._figures = handle.getValueState("figures", FIGURES)

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:
        """Add the prices of a key."""
        total, count, top = self._figures.get() or (0.0, 0, 0.0)
        for table in rows:
            total += float(table["price"].sum())
            count += len(table)
            top = max(top, float(table["price"].max()))
        self._figures.update((total, count, top))
        yield pd.DataFrame({"key": [key[0]], "total": [total], "n": [count], "top": [top]})

    def close(self) -> None:
        """Do nothing."""


class StreamingFunction:
    """
    Query that runs over its whole input.

    :param work: Folder for checkpoints.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        conf: dict[str, Any] = {**CONF, **PROVIDERS["rocksdb"], BATCH_ROWS: "100000"}
        self._spark = SparkSession.builder.config(map=conf).getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, *, files: str, key: str, output: str | None = None) -> dict[str, Any]:
        """
        Run the query.

        :param files: Folder with the input.
        :param key: Name of the key column.
        :param output: Folder for the results of all batches; by default they are discarded.
        """
        writing = self._given(files, key).writeStream.outputMode("update")
        if output is None:
            writing = writing.format("noop")
        else:
            writing = writing.foreachBatch(lambda frame, number: _append(frame, number, key, output))
        begin = time.perf_counter()
        query = (
            writing.option("checkpointLocation", str(self._work / uuid.uuid4().hex)).trigger(availableNow=True).start()
        )
        query.awaitTermination()
        return {"seconds": time.perf_counter() - begin, "increments": len(query.recentProgress)}

    def _given(self, files: str, key: str) -> Any:
        spark = self._spark
        stream = spark.readStream.schema(spark.read.parquet(files).schema).option("maxFilesPerTrigger", 1)
        prices = stream.parquet(files).select(key, F.col("l_extendedprice").cast("double").alias("price"))
        return prices.groupBy(key).transformWithStateInPandas(
            statefulProcessor=RunningFigures(),
            outputStructType=f"key bigint, {FIGURES}",
            outputMode="Update",
            timeMode="None",
        )


def _append(frame: Any, number: int, key: str, output: str) -> None:
    # A later batch has the later figures of a key, and the larger count.
    frame.withColumnRenamed("key", key).write.mode("append").parquet(output)


def main() -> None:
    """Answer requests until standard input ends."""
    answer(StreamingFunction(Path(sys.argv[1])).run)


if __name__ == "__main__":
    main()
