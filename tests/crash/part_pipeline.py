"""A stage whose step is computed in parts; each row that its function gets is written down."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from airflow_provider_statecheck.testing.faults import FaultPlan
from tests.crash.pipeline import open_stage

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# What a try needs is imported before the fork, not in each try.
import_module("pandas")

FILES, ROWS_OF_A_FILE = 3, 4
ROWS = FILES * ROWS_OF_A_FILE
SCORED = {number: 3 * number for number in range(ROWS)}


def run(spark: SparkSession, work: Path, plan: FaultPlan) -> dict[str, Any]:
    """Run the stage to its end and return the rows of its steps."""
    rows = spark.read.parquet(write_input(work))
    score = functools.partial(scored, str(work / "calls"))
    with open_stage(spark, work, plan) as checkpoint:
        scores = checkpoint.snapshot(
            "scores", lambda part: part.mapInArrow(score, "number long, score long"), over=rows
        )
        odd = checkpoint.snapshot("odd", lambda part: part.where("number % 2 = 1").select("score"), over=scores)
        return {
            "scores": sorted([row.number, row.score] for row in scores.collect()),
            "odd": sorted(row.score for row in odd.collect()),
        }


def scored(calls: str, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Score rows, and write down their numbers; one write of a short line is atomic."""
    for batch in batches:
        numbers = batch.column(0).to_pylist()
        with Path(calls).open("a") as file:
            file.write(f"{' '.join(map(str, numbers))}\n")
        yield pa.RecordBatch.from_pydict({"number": numbers, "score": [3 * number for number in numbers]})


def write_input(work: Path) -> str:
    """Write the input of the stage once."""
    folder = work / "input"
    if not folder.exists():
        staged = work / "staged"
        staged.mkdir(exist_ok=True)
        for number in range(FILES):
            rows = range(number * ROWS_OF_A_FILE, (number + 1) * ROWS_OF_A_FILE)
            pq.write_table(pa.table({"number": pa.array(rows, pa.int64())}), staged / f"{number}.parquet")
        staged.rename(folder)
    return str(folder)


def called(work: Path) -> Counter[int]:
    """Return how often each row was given to the function so far, over all tries."""
    log = work / "calls"
    return Counter(int(number) for number in log.read_text().split()) if log.exists() else Counter()
