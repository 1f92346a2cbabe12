"""One local Spark for all tests here, and Python processes of their own for those that kill something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_statecheck
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.sessions import start_session
from tests.shared_spark import CONF, shared_session
from tests.spark.tries import Tries

PACKAGE_ROOT = Path(airflow_provider_statecheck.__file__).parents[1]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)


@pytest.fixture(scope="session")
def spark() -> Any:
    return shared_session()


@pytest.fixture
def tries(spark: Any, tmp_path: Path) -> Tries:
    return Tries(spark, tmp_path)


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"file://{tmp_path}")


def child_environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(PACKAGE_ROOT),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "SPARK_CONF": json.dumps(CONF),
        **variables,
    }


@pytest.fixture
def run_child(tmp_path: Path) -> Callable[..., Any]:
    """Run a script in a fresh interpreter and return the last line it prints, as JSON."""

    def run(script: str, **variables: str) -> Any:
        path = tmp_path / "child.py"
        path.write_text(script)
        done = subprocess.run(
            [sys.executable, str(path)],
            env=child_environment(tmp_path, **variables),
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.splitlines()[-1])

    return run


def results_of(module: str, folder: Path, ways: Iterable[str], conf: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """Run a module in a process with a Spark of its own, and return what it has written, by way."""
    done = subprocess.run(
        [sys.executable, "-m", module, str(folder), *ways],
        env=child_environment(folder, SPARK_CONF=json.dumps(dict(conf))),
        cwd=PACKAGE_ROOT,
        capture_output=True,
        text=True,
        check=False,
        timeout=540,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return dict(json.loads((folder / "results.json").read_text()))


def write_results(run: Callable[[Any, Path, str], dict[str, Any]]) -> None:
    """Run a stage in each way that the command line names, and write what it gives for :func:`results_of`."""
    folder, ways = Path(sys.argv[1]), sys.argv[2:]
    spark = start_session(json.loads(os.environ["SPARK_CONF"]))
    spark.sparkContext.setLogLevel("OFF")
    results = {way: run(spark, folder / str(number), way) for number, way in enumerate(ways)}
    (folder / "results.json").write_text(json.dumps(results))
    spark.stop()
