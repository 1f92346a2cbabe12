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

from tests.docs.outputs import lines_missing
from tests.docs.pages import PAGES, ROOT, Block, blocks_of, name_of, runs_alone
from tests.docs.runner import MARK, RESULTS
from tests.standalone_cluster import SPARK_HOME

LIMIT_SECONDS = 900
pytestmark = [pytest.mark.spark, pytest.mark.soak]


def python_blocks(page: Path) -> list[str]:
    return [block.name for block in blocks_of(page) if runs_alone(block)]


WITH_PYTHON = [page for page in PAGES if python_blocks(page)]


@pytest.fixture(scope="module")
def results(airflow_db: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What became of each block; one process runs them all, for each Spark takes long to start."""
    work = tmp_path_factory.mktemp("pages")
    with (work / "output.txt").open("w") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.runner", str(work)],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=_environment(work),
            timeout=LIMIT_SECONDS,
            check=False,
        )
    assert done.returncode == 0, (work / "output.txt").read_text()[-4000:]
    found: dict[str, Any] = json.loads((work / RESULTS).read_text())
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


@pytest.mark.parametrize("page", WITH_PYTHON, ids=name_of)
def test_every_block_of_a_page_runs(page: Path, results: dict[str, Any]) -> None:
    for result in results[name_of(page)]:
        said = results["printed"][result["block"]][-3000:]
        assert result["error"] is None, f"{result['block']}:\n{said}\n{result['error']}"
    assert [result["block"] for result in results[name_of(page)]] == python_blocks(page)


def pairs_with_output(page: Path) -> list[tuple[Block, Block]]:
    """Return the blocks that run with the blocks right after them that show what they print."""
    blocks = blocks_of(page)
    pairs = itertools.pairwise(blocks)
    return [(run, shown) for run, shown in pairs if runs_alone(run) and shown.output == "above"]


WITH_OUTPUT = [pair for page in WITH_PYTHON for pair in pairs_with_output(page)]


@pytest.mark.parametrize(("run", "shown"), WITH_OUTPUT, ids=[shown.name for _, shown in WITH_OUTPUT])
def test_a_block_prints_what_the_page_shows(run: Block, shown: Block, results: dict[str, Any]) -> None:
    printed = results["printed"][run.name]

    assert lines_missing(shown.code, printed) == [], printed[-3000:]
