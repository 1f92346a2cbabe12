"""Spark Structured Streaming: a Python function by key with ``transformWithStateInPandas``."""

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
    """Keeps the figures of each key; what it gets of a key is added up by pandas, which is the faster way."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Ask for the state."""
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
        """Have nothing to close."""


class StreamingFunction:
    """
    Runs a query from nothing to the end of its input.

    :param work: Where checkpoints go.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        conf: dict[str, Any] = {**CONF, **PROVIDERS["rocksdb"], BATCH_ROWS: "100000"}
        self._spark = SparkSession.builder.config(map=conf).getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, *, files: str, key: str, output: str | None = None) -> dict[str, Any]:
        """
        Run it.

        :param output: Where all that is given goes, with the number of the batch; by default nowhere.
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
    """Answer until there is nothing more to do."""
    answer(StreamingFunction(Path(sys.argv[1])).run)


if __name__ == "__main__":
    main()
