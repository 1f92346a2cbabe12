from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.live.deployment import Deployment, running_deployment
from tests.live.report import HEAD, Row
from tests.tables import table_of


@pytest.fixture(scope="package")  # gone when other tests want the machine
def deployment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    with running_deployment(tmp_path_factory.mktemp("live")) as running:
        yield running


@pytest.fixture(scope="session")
def rows(pytestconfig: pytest.Config) -> list[Row]:
    return table_of(pytestconfig, "recovery under a real scheduler", HEAD)
