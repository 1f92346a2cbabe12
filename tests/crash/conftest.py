from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.shared_spark import gateway_environment


@pytest.fixture(scope="session")
def driver_jvm() -> dict[str, str]:
    """Environment with which a child process uses the test session's JVM."""
    return gateway_environment()


@pytest.fixture(scope="session")
def lineitem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files with the 60000 lines of TPC-H's orders at a hundredth of its size."""
    return _lineitem(tmp_path_factory.mktemp("tpch"), "0.01", 5)


@pytest.fixture(scope="session")
def few_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with a tenth as many."""
    return _lineitem(tmp_path_factory.mktemp("tpch-small"), "0.001", 2)


def _lineitem(target: Path, scale: str, parts: int) -> Path:
    tool = str(Path(sys.executable).parent / "tpchgen-cli")
    command = [tool, "parquet", "-s", scale, "--tables=lineitem", f"--parts={parts}", f"--output-dir={target}"]
    subprocess.run(command, check=True, capture_output=True)
    return target / "lineitem"
