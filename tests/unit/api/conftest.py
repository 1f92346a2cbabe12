from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from tests.sqlite_rows import engine_on, new_engine
from tests.unit.api.action_page import USERS, Permit, airflow_app, log_in
from tests.unit.api.served_stage import ServedStage
from tests.unit.api.server import ApiServer
from tests.unit.api.stage import Stage


@pytest.fixture
def api(tmp_path: Path) -> Iterator[ApiServer]:
    with ApiServer(new_engine(tmp_path / "state.db")) as api:
        yield api


@pytest.fixture(scope="session")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Stage:
    """A stage that each test gets a copy of."""
    with ApiServer(new_engine(tmp_path_factory.mktemp("stage") / "state.db")) as api:
        return Stage.begin(api)


@pytest.fixture
def stage(prepared: Stage, tmp_path: Path) -> Iterator[Stage]:
    with copy_of(prepared, tmp_path) as stage:
        yield stage


@contextmanager
def copy_of(prepared: Stage, folder: Path) -> Iterator[Stage]:
    """Serve a copy of a stage."""
    shutil.copy(str(prepared.api.engine.url.database), folder / "state.db")
    with ApiServer(engine_on(folder / "state.db")) as api:
        yield prepared.on(api)


@pytest.fixture(scope="module")
def sqlite_airflow(airflow_db: Path) -> Engine:
    """Airflow's own database."""
    from airflow import settings

    engine: Engine = settings.get_engine()
    assert str(airflow_db) in str(engine.url), "a test must never write to somebody's database"
    return engine


@pytest.fixture(scope="module")
def engine(sqlite_airflow: Engine) -> Engine:
    return sqlite_airflow


@pytest.fixture(scope="module")
def airflow(engine: Engine, airflow_db: Path) -> Iterator[TestClient]:
    """Airflow's api-server in this process."""
    with airflow_app(USERS, airflow_db) as client:
        yield client


@pytest.fixture(scope="module")
def tokens(airflow: TestClient) -> dict[str, str]:
    return {name: log_in(airflow, name) for name in USERS}


@pytest.fixture
def permit(monkeypatch: pytest.MonkeyPatch) -> Permit:
    """Returns a function that lets another one decide in place of Airflow's auth manager who may do what with a Dag."""
    from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager

    return lambda decide: monkeypatch.setattr(SimpleAuthManager, "is_authorized_dag", staticmethod(decide))


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ServedStage]:
    """A stage whose state is served to a read token."""
    served = ServedStage(tmp_path)
    with served.api:
        yield served
    served.close()
