from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import Engine

from tests.sqlite_rows import engine_on, new_engine
from tests.unit.api.action_page import USERS, Permit
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
    from airflow.api_fastapi.app import create_app, purge_cached_app

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS", ",".join(f"{n}:{r}" for n, r in USERS.items()))
        passwords = airflow_db / "passwords_of_actions.json"
        passwords.write_text(json.dumps({name: f"password of {name}" for name in USERS}))
        patch.setenv("AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE", str(passwords))
        patch.setenv("AIRFLOW__API_AUTH__JWT_SECRET", "x" * 64)
        purge_cached_app()
        yield TestClient(create_app(apps="core"), raise_server_exceptions=False)
        purge_cached_app()


@pytest.fixture(scope="module")
def tokens(airflow: TestClient) -> dict[str, str]:
    def token(name: str) -> str:
        reply = airflow.post("/auth/token", json={"username": name, "password": f"password of {name}"})
        return str(reply.json()["access_token"])

    return {name: token(name) for name in USERS}


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
