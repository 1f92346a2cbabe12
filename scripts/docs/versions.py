"""Table of the versions that run together, from the results of ``make matrix``."""

from __future__ import annotations

from scripts.docs.tables import table
from scripts.matrix.cells import CELLS, Cell
from scripts.matrix.runs import Result, recorded


def versions_table() -> str:
    """Return the versions of each cell of the matrix, and how many of its tests passed, if it ran."""
    results = recorded()
    rows = [_row(results[cell.name]) if cell.name in results else _not_run(cell) for cell in CELLS]
    return table(["Spark", "Spark Connect", "Airflow", "Python", "Java", "Tests passed", "Left out"], rows)


def _not_run(cell: Cell) -> list[str]:
    return [cell.spark.version, "", cell.airflow, cell.python, "", "not run yet", ""]


def _row(result: Result) -> list[str]:
    connect = "yes" if result.has_client else ""
    versions = [result.spark, connect, result.airflow, result.python, result.java]
    return [*versions, str(result.passed), str(sum(result.skipped.values()))]
