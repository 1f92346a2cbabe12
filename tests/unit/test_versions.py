"""The matrix of versions: its cells, the results of its runs, and what they say of the supported versions."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from pathlib import Path

import pytest
import yaml

from scripts.matrix.cells import CELLS, FLOOR, NEWEST, SHORT, Cell
from scripts.matrix.runs import recorded, result_of

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
VERSIONS = {"spark": "4.1.3", "airflow": "3.3.2", "python": "3.13.0", "java": "17", "has_client": True}
WITH_SPARK = """
SKIPPED [2] tests/spark/test_a.py:10: the type time is new in Spark 4.1
SKIPPED [1] tests/spark/test_b.py: the type time is new in Spark 4.1
=========== 40 passed, 3 skipped, 7 deselected in 61.20s (0:01:01) ===========
Without Spark:
"""
OTHERS = "========= 12 passed, 1 failed, 2 errors in 3.10s ========\n"


def pythons() -> set[str]:
    """Return the versions of Python that the classifiers name."""
    prefix = "Programming Language :: Python :: "
    return {text.removeprefix(prefix) for text in PROJECT["classifiers"] if text.startswith(prefix)}


@pytest.mark.parametrize("part", ["spark", "airflow", "python"])
def test_each_version_occurs_at_least_twice(part: str) -> None:
    assert min(Counter(getattr(cell, part) for cell in CELLS).values()) >= 2


def test_the_short_form_has_none_of_the_versions_of_the_constraints() -> None:
    assert f"pyspark=={SHORT.spark.version}\n" not in (ROOT / "constraints.txt").read_text()
    assert SHORT.airflow == FLOOR


@pytest.mark.parametrize("cell", CELLS, ids=lambda cell: cell.name)
def test_the_tests_of_a_cell_exist(cell: Cell) -> None:
    assert [name for name in cell.tests if not (ROOT / name).exists()] == []


def test_the_recorded_results_are_those_of_cells_without_a_failure() -> None:
    results = recorded()
    assert set(results) <= {cell.name for cell in CELLS}
    assert [name for name, result in results.items() if result.failed or not result.passed] == []


@pytest.mark.parametrize("cell", [cell for cell in CELLS if cell.name in recorded()], ids=lambda cell: cell.name)
def test_the_result_of_a_cell_has_its_versions(cell: Cell) -> None:
    result = recorded()[cell.name]
    newest = re.search(r"^apache-airflow==(.*)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE)
    assert newest is not None
    assert result.spark == cell.spark.version
    assert result.airflow == (newest[1] if cell.airflow == NEWEST else cell.airflow)
    assert result.python.rpartition(".")[0] == cell.python


def test_classifiers_name_the_versions_of_python_that_ran() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "checks.yaml").read_text())
    whole_suite = workflow["jobs"]["checks"]["strategy"]["matrix"]["python"]
    assert pythons() == {*whole_suite, *(result.python.rpartition(".")[0] for result in recorded().values())}


def test_the_readme_names_the_oldest_and_newest_versions() -> None:
    where = (ROOT / "README.md").read_text().partition("## Where it runs")[2].partition("\n## ")[0]
    sparks = [cell.spark.version.rpartition(".")[0] for cell in CELLS]
    wanted = [f"Airflow {FLOOR.rpartition('.')[0]}", *sparks, *pythons()]
    assert [version for version in wanted if version not in where] == []


def test_a_result_counts_both_runs_and_the_reasons_of_tests_that_were_left_out() -> None:
    result = result_of(WITH_SPARK + OTHERS, VERSIONS, 70)
    assert (result.passed, result.failed, result.seconds) == (52, 3, 70)
    assert result.skipped == {"the type time is new in Spark 4.1": 3}


def test_a_run_that_breaks_off_is_a_failure() -> None:
    assert result_of(WITH_SPARK, VERSIONS, 70).failed == 1


def test_a_run_without_tests_is_no_failure() -> None:
    assert result_of(WITH_SPARK + "794 deselected in 3.20s\n", VERSIONS, 70).failed == 0
