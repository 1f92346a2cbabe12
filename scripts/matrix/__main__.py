"""
Chosen tests with other versions of Spark, Airflow and Python.

``python -m scripts.matrix`` runs them in environments below ``.matrix``, which later runs use again, and writes
``scripts/matrix/results.json``, from which ``python -m scripts.docs`` makes the table of the page on compatibility.
"""

from __future__ import annotations

import argparse
import sys
from concurrent.futures import ThreadPoolExecutor

from scripts.matrix.cells import CELLS, SHORT, Cell
from scripts.matrix.environments import InterpreterMissing, environment
from scripts.matrix.runs import Result, record, run


def main(arguments: list[str] | None = None) -> int:
    """Run cells and return the exit status."""
    given = _parser().parse_args(arguments)
    cells = [SHORT] if given.short else [cell for cell in CELLS if given.only in cell.name]
    results: dict[str, Result] = {}
    not_run: dict[str, str] = {}
    with ThreadPoolExecutor(1) as ahead:
        # An environment is created while the tests of the cell before it run.
        for cell, python in [(cell, ahead.submit(environment, cell)) for cell in cells]:
            try:
                results[cell.name] = run(cell, python.result())
            except InterpreterMissing as error:
                not_run[cell.name] = str(error)
                continue
            if not given.short and not results[cell.name].failed:
                record({cell.name: results[cell.name]})  # at once: a run may be interrupted
    return _summary(cells, results, not_run)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m scripts.matrix", description="Run tests with other versions.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--short", action="store_true", help="only one pair, without a record of its result")
    which.add_argument("--only", default="", metavar="TEXT", help="only the cells with this text in their names")
    return parser


def _summary(cells: list[Cell], results: dict[str, Result], not_run: dict[str, str]) -> int:
    """Print a line for each cell, and return 1 if a test failed or nothing ran."""
    print()
    for cell in cells:
        result = results.get(cell.name)
        print(f"{cell.name}: {_line(result) if result else f'not run, {not_run[cell.name]}'}")
    return 0 if results and not any(result.failed for result in results.values()) else 1


def _line(result: Result) -> str:
    skipped = sum(result.skipped.values())
    return f"{result.passed} passed, {result.failed} failed, {skipped} skipped in {result.seconds} s"


if __name__ == "__main__":
    sys.exit(main())
