"""Table of the versions that run together, from the results of ``make matrix``."""

from __future__ import annotations

from scripts.docs.tables import table
from scripts.matrix.cells import CELLS
from scripts.matrix.runs import Result, recorded


def versions_table() -> str:
    """Return the versions of each cell of the matrix that ran, and how many of its tests passed."""
    results = recorded()
    rows = [_row(results[cell.name]) for cell in CELLS if cell.name in results]
    return table(["Spark", "Spark Connect", "Airflow", "Python", "Java", "Tests passed", "Left out"], rows)


def _row(result: Result) -> list[str]:
    connect = "yes" if result.has_client else ""
    versions = [result.spark, connect, result.airflow, result.python, result.java]
    return [*versions, str(result.passed), str(sum(result.skipped.values()))]
