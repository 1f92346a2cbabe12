"""Submitted application of our side of R1: four of the five steps are snapshots, and the fifth is the output."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext
from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r1_steps import KEYS, with_neighbours


def main(files: str, output: str, marks: str) -> None:
    """Compute the steps that are not in a checkpoint."""
    mark(marks, BEGIN)
    spark: Any = SparkSession.builder.getOrCreate()
    with StageContext.current(spark) as checkpoint:
        frame = spark.read.parquet(files)
        for key in KEYS[:-1]:
            frame = checkpoint.snapshot(key, partial(with_neighbours, frame, key))
            mark(marks, key)
        with_neighbours(frame, KEYS[-1]).write.mode("overwrite").parquet(output)
    mark(marks, END)


if __name__ == "__main__":
    main(*sys.argv[1:])
