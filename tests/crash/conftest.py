from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.example_data import make_lines
from tests.crash.tries import Tries
from tests.shared_spark import gateway_environment

CORES = 2


@pytest.fixture(scope="session")
def driver_jvm() -> dict[str, str]:
    """Environment with which a child process uses the test session's JVM."""
    return gateway_environment()


@pytest.fixture(scope="module")
def team(driver_jvm: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Tries]]:
    """One zygote for each core; all of their children use one JVM."""
    team = [Tries.start(tmp_path_factory.mktemp("crash") / "work", driver_jvm) for _ in range(CORES)]
    yield team
    for tries in team:
        tries.close()


@pytest.fixture(scope="session")
def lineitem(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Five files with the 60000 lines of TPC-H's orders at a hundredth of its size."""
    return make_lines(tmp_path_factory.mktemp("tpch"), scale="0.01", parts=5)


@pytest.fixture(scope="session")
def few_lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two files with a tenth as many."""
    return make_lines(tmp_path_factory.mktemp("tpch-small"), scale="0.001", parts=2)
