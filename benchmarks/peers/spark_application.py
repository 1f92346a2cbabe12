"""Submitted application of the peer of R1: the same five steps in one Spark job without intermediate results."""

from __future__ import annotations

import sys
from functools import reduce
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r1_steps import KEYS, with_neighbours


def main(files: str, output: str, marks: str) -> None:
    """Compute all steps."""
    mark(marks, BEGIN)
    spark: Any = SparkSession.builder.getOrCreate()
    frame = reduce(with_neighbours, KEYS, spark.read.parquet(files))
    frame.write.mode("overwrite").parquet(output)
    mark(marks, END)


if __name__ == "__main__":
    main(*sys.argv[1:])
