from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck.metadata.database import open_engine
from tests.unit.api.server import ApiServer
from tests.unit.api.stage import Stage


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with _serving(tmp_path) as api:
        yield api


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage that each test gets a copy of."""
    with _serving(tmp_path_factory.mktemp("stage")) as api:
        return Stage.begin(api)


@pytest.fixture
def stage(prepared: Stage, tmp_path: Path) -> Iterator[Stage]:
    shutil.copy(str(prepared.api.engine.url.database), tmp_path / "state.db")
    with _serving(tmp_path) as api:
        yield prepared.on(api)


def _serving(folder: Path) -> ApiServer:
    return ApiServer(open_engine(f"sqlite:///{folder}/state.db"))
