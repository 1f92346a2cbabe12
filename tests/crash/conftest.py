from __future__ import annotations

from pathlib import Path

import pytest

from scripts.example_data import make_lines
from tests.shared_spark import gateway_environment


@pytest.fixture(scope="session")
def driver_jvm() -> dict[str, str]:
    """Environment with which a child process uses the test session's JVM."""
    return gateway_environment()


@pytest.fixture(scope="session")
def lineitem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files with the 60000 lines of TPC-H's orders at a hundredth of its size."""
    return make_lines(tmp_path_factory.mktemp("tpch"), scale="0.01", parts=5)


@pytest.fixture(scope="session")
def few_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with a tenth as many."""
    return make_lines(tmp_path_factory.mktemp("tpch-small"), scale="0.001", parts=2)
