"""Every Python block of every page runs."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from _pytest.mark import ParameterSet

from tests.docs.outputs import lines_missing
from tests.docs.pages import FOR_USERS, PAGES, ROOT, Block, blocks_of, name_of, runs_alone
from tests.docs.runner import MARK, RESULTS
from tests.standalone_cluster import SPARK_HOME

Results = dict[str, Any]
LIMIT_SECONDS = 900
pytestmark = pytest.mark.spark


def python_blocks(page: Path) -> list[str]:
    return [block.name for block in blocks_of(page) if runs_alone(block)]


WITH_PYTHON = [page for page in PAGES if python_blocks(page)]
IN_SOAK = [page for page in WITH_PYTHON if page not in FOR_USERS]


def of_page(page: Path, *values: Block, of: str) -> ParameterSet:
    return pytest.param(page, *values, id=of, marks=pytest.mark.soak if page in IN_SOAK else ())


@pytest.fixture(scope="module")
def results_for_users(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run([page for page in WITH_PYTHON if page in FOR_USERS], tmp_path_factory.mktemp("pages"))


@pytest.fixture(scope="module")
def results_in_soak(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    return run(IN_SOAK, tmp_path_factory.mktemp("pages"))


@pytest.fixture
def results(request: pytest.FixtureRequest, page: Path) -> Results:
    found: Results = request.getfixturevalue("results_in_soak" if page in IN_SOAK else "results_for_users")
    return found


def run(pages: list[Path], work: Path) -> Results:
    """Return what became of each block of pages; one process runs them all, for Spark takes long to start."""
    with (work / "output.txt").open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.runner", str(work), *map(str, pages)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(work),
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert done.returncode == 0, (work / "output.txt").read_text()[-4000:]
    found: Results = json.loads((work / RESULTS).read_text())
    return found | {"printed": _by_block((work / "output.txt").read_text())}


def _by_block(output: str) -> dict[str, str]:
    parts = (part.partition("\n") for part in f"\n{output}".split(f"\n{MARK}")[1:])
    return {name: text for name, _, text in parts}


def _environment(work: Path) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "PATH": f"{SPARK_HOME / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW__CORE__DAGS_FOLDER": str(work / "dags"),
        "AIRFLOW__STATECHECK__CHECKPOINT_DIR": f"file://{work}/checkpoints",
        "AIRFLOW_CONN_SPARK_LOCAL": json.dumps({"conn_type": "spark", "host": "local[2]"}),
    }


@pytest.mark.parametrize("page", [of_page(page, of=name_of(page)) for page in WITH_PYTHON])
def test_every_block_of_a_page_runs(page: Path, results: Results) -> None:
    for result in results[name_of(page)]:
        said = results["printed"][result["block"]][-3000:]
        assert result["error"] is None, f"{result['block']}:\n{said}\n{result['error']}"
    assert [result["block"] for result in results[name_of(page)]] == python_blocks(page)


def pairs_with_output(page: Path) -> list[tuple[Block, Block]]:
    """Return the blocks that run with the blocks right after them that show what they print."""
    blocks = blocks_of(page)
    pairs = itertools.pairwise(blocks)
    return [(ran, shown) for ran, shown in pairs if runs_alone(ran) and shown.output == "above"]


@pytest.mark.parametrize(
    ("page", "ran", "shown"),
    [of_page(page, *pair, of=pair[1].name) for page in WITH_PYTHON for pair in pairs_with_output(page)],
)
def test_a_block_prints_what_the_page_shows(page: Path, ran: Block, shown: Block, results: Results) -> None:
    printed = results["printed"][ran.name]

    assert lines_missing(shown.code, printed) == [], printed[-3000:]
