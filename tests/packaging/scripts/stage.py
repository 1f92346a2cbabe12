"""A script with a stage for ``spark-submit``, which fails at its second day when it runs for the first time."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_statecheck import (
    DataFrameSource,
    KeyedProcessFunction,
    ParquetSink,
    Stage,
    ValueStateDescriptor,
    run_stage,
)

WORK = Path(sys.argv[1])


class RunningTotal(KeyedProcessFunction[Any, Any, Any]):
    """Adds the numbers of each key, in Python workers of executors."""

    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", int, 0))

    def process_element(self, value, context):
        total = self.total.value() + value.number
        self.total.update(total)
        yield value.key, value.number, total


def rows_of(spark, day):
    with (WORK / "computed").open("a") as notes:
        notes.write(f"day {day}\n")
    if day == 2 and not (WORK / "failed").exists():
        (WORK / "failed").touch()
        raise RuntimeError("planned")
    return spark.range(100 * day, 100 * day + 100).selectExpr("id % 4 AS key", "id AS number")


stage = (
    Stage("totals", max_parallelism=8, parallelism=2)
    .source(DataFrameSource([1, 2, 3], rows_of))
    .key_by("key", order_by="number")
    .process(RunningTotal(), output="key bigint, number bigint, total bigint")
    .sink(ParquetSink(str(WORK / "totals")))
)
spark = SparkSession.builder.getOrCreate()
run_stage(spark, stage, job="stage", checkpoint_dir=str(WORK / "checkpoints"), metadata=f"sqlite:///{WORK}/state.db")
written = spark.read.parquet(str(WORK / "totals"))
with (WORK / "computed").open("a") as notes:
    notes.write(f"result {written.count()} rows, {written.groupBy('key').agg({'total': 'max'}).count()} keys\n")
assert "airflow" not in sys.modules
