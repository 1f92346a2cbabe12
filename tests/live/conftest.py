from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.deployment import Deployment, running_deployment
from tests.live.report import Row, lines_of

_ROWS = pytest.StashKey[list[Row]]()


@pytest.fixture(scope="package")  # gone when other tests want the machine
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with running_deployment(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[Row]:
    return pytestconfig.stash.setdefault(_ROWS, [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    rows = config.stash.get(_ROWS, [])
    if rows:
        terminalreporter.section("recovery under a real scheduler")
        for line in lines_of(rows):
            terminalreporter.write_line(line)
