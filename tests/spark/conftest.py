"""One local Spark for all tests here, and Python processes of their own for those that kill something."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import airflow_provider_statecheck
from airflow_provider_statecheck.spark.session import start_session
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

SPARK_CONF = {
    "spark.master": "local[2]",
    "spark.app.name": "statecheck-tests",
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.memory": "1g",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
}
PACKAGE_ROOT = Path(airflow_provider_statecheck.__file__).parents[1]
HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas"))


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = start_session(SPARK_CONF)
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture
def storage(tmp_path: Path) -> CheckpointStorage:
    return CheckpointStorage.open(f"file://{tmp_path}")


def child_environment(tmp_path: Path, **variables: str) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": str(PACKAGE_ROOT),
        "AIRFLOW_HOME": str(tmp_path / "airflow"),
        "SPARK_CONF": json.dumps(SPARK_CONF),
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
