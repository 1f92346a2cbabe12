"""
Peer of K1: ``groupBy.agg`` in Spark Structured Streaming with one file per batch and the trigger ``availableNow``.
"""

from __future__ import annotations

import sys
import time
import uuid
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession, functions as F

from benchmarks.answering import answer
from benchmarks.spark_side import CONF

STATE_STORE = "org.apache.spark.sql.execution.streaming.state."
PROVIDERS = {
    "rocksdb": {
        "spark.sql.streaming.stateStore.providerClass": f"{STATE_STORE}RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    },
    "hdfs": {"spark.sql.streaming.stateStore.providerClass": f"{STATE_STORE}HDFSBackedStateStoreProvider"},
}


class StreamingAggregate:
    """
    Query that runs over its whole input.

    :param work: Folder for checkpoints.
    :param provider: Provider of the state store.
    """

    def __init__(self, work: Path, provider: str) -> None:
        self._work = work
        self._spark = SparkSession.builder.config(map={**CONF, **PROVIDERS[provider]}).getOrCreate()
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(self, *, files: str, key: str, output: str | None = None) -> dict[str, Any]:
        """
        Run the query.

        :param files: Folder with the input.
        :param key: Name of the key column.
        :param output: Folder for the final state; by default it is not written.
        """
        checkpoints = str(self._work / uuid.uuid4().hex)
        frame = self._stream(files, key)
        begin = time.perf_counter()
        query = (
            frame.writeStream.outputMode("update")
            .format("noop")
            .option("checkpointLocation", checkpoints)
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        seconds = time.perf_counter() - begin
        if output is not None:
            self._write_state(checkpoints, key, output)
        return {"seconds": seconds, "increments": len(query.recentProgress)}

    def _stream(self, files: str, key: str) -> Any:
        spark = self._spark
        stream = spark.readStream.schema(spark.read.parquet(files).schema).option("maxFilesPerTrigger", 1)
        prices = stream.parquet(files).select(key, F.col("l_extendedprice").cast("double").alias("price"))
        return prices.groupBy(key).agg(
            F.sum("price").alias("total"), F.count("price").alias("n"), F.max("price").alias("top")
        )

    def _write_state(self, checkpoints: str, key: str, output: str) -> None:
        state = self._spark.read.format("statestore").load(checkpoints)
        figures = ["value.sum as total", "value.count as n", "value.max as top"]
        state.selectExpr(f"key.{key} as {key}", *figures).write.parquet(output)


def main() -> None:
    """Answer requests until standard input ends."""
    answer(StreamingAggregate(Path(sys.argv[1]), sys.argv[2]).run)


if __name__ == "__main__":
    main()
