"""Submitted application of the peer of R3: the same step without checkpoints."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.r1_marks import BEGIN, END, mark
from benchmarks.r3_input import airports_in, parquet_in
from benchmarks.r3_score import ADDED, score_batches


def scored(files: str, marks: str, frame: Any) -> Any:
    """
    Add the score to the flights.

    :param files: Folder with the input.
    :param marks: File for the progress.
    :param frame: DataFrame of the flights.
    """
    function = partial(score_batches, airports_in(Path(files)), marks)
    return frame.mapInPandas(function, f"{frame.schema.simpleString()[len('struct<') : -1]}, {ADDED}")


def main(files: str, output: str, marks: str) -> None:
    """Compute the step and write the output."""
    mark(marks, BEGIN)
    spark: Any = SparkSession.builder.getOrCreate()
    scored(files, marks, spark.read.parquet(parquet_in(Path(files)))).write.mode("overwrite").parquet(output)
    mark(marks, END)


if __name__ == "__main__":
    main(*sys.argv[1:])
