"""Submitted application of our side of R3: the step is a snapshot that is computed part by part."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from airflow_provider_statecheck import StageContext
from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r3_input import parquet_in
from benchmarks.r3_plain import scored


def main(files: str, output: str, marks: str) -> None:
    """
    Compute the parts that are not in a checkpoint.

    The output, for the comparison of rows, is written after the end.
    """
    mark(marks, BEGIN)
    spark: Any = SparkSession.builder.getOrCreate()
    with StageContext.current(spark) as checkpoint:
        frame = spark.read.parquet(parquet_in(Path(files)))
        result = checkpoint.snapshot("scored", partial(scored, files, marks), over=frame)
        # The step is complete and durable here; its snapshot is what the peer writes as its output.
        mark(marks, END)
        result.write.mode("overwrite").parquet(output)


if __name__ == "__main__":
    main(*sys.argv[1:])
