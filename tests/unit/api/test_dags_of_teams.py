"""Permissions on the Dags of teams, by Airflow's own tables and its simple auth manager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models.dagbundle import DagBundleModel
from airflow.models.team import Team, dag_bundle_team_association_table
from sqlalchemy import delete, insert
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api import airflow_access
from airflow_provider_statecheck.api.airflow_access import PermittedDags
from tests.unit.api.airflow_rows import add_dag, remove_dag

OF_A_TEAM, OF_NO_TEAM, DELETED = "dag-of-red-team", "dag-of-no-team", "dag-that-was-deleted"
RED = SimpleAuthManagerUser(username="ann", role="user", teams=["red"])
BLUE = SimpleAuthManagerUser(username="bob", role="user", teams=["blue"])
ADMIN = SimpleAuthManagerUser(username="eve", role="admin", teams=[])


@pytest.fixture(autouse=True)
def dags(airflow_db: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    from airflow import settings

    engine: Engine = settings.get_engine()
    assert str(airflow_db) in str(engine.url), "a test must never write to somebody's database"
    monkeypatch.setattr(airflow_access, "get_auth_manager", SimpleAuthManager)
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "true")
    for dag_id in (OF_A_TEAM, OF_NO_TEAM):
        add_dag(engine, dag_id)
    owned = {"dag_bundle_name": f"bundle-of-{OF_A_TEAM}", "team_name": "red"}
    with engine.begin() as connection:
        connection.execute(insert(Team).values(name="red"))
        connection.execute(insert(dag_bundle_team_association_table).values(**owned))
    yield
    with engine.begin() as connection:
        connection.execute(delete(dag_bundle_team_association_table))
        connection.execute(delete(Team))
    for dag_id in (OF_A_TEAM, OF_NO_TEAM):
        remove_dag(engine, dag_id)
    with engine.begin() as connection:
        connection.execute(delete(DagBundleModel).where(DagBundleModel.name.contains("-team")))


@pytest.mark.parametrize(
    ("user", "readable"),
    [(RED, {OF_A_TEAM, OF_NO_TEAM}), (BLUE, {OF_NO_TEAM}), (ADMIN, {OF_A_TEAM, OF_NO_TEAM})],
    ids=["of the team", "of another team", "admin"],
)
@pytest.mark.parametrize("method", ["GET", "PUT"])
def test_a_deleted_dag_is_permitted_to_no_team(user: SimpleAuthManagerUser, readable: set[str], method: str) -> None:
    dags = PermittedDags(user, method)  # type: ignore[arg-type]
    assert dags.among((OF_A_TEAM, OF_NO_TEAM, DELETED)) == readable


def test_without_teams_the_permission_on_a_deleted_dag_is_that_on_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__CORE__MULTI_TEAM", "false")
    assert PermittedDags(RED).among((DELETED,)) == {DELETED}
