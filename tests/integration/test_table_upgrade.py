"""Api-servers that start create and upgrade the tables, and start whatever comes of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, make_url, text

from tests.integration.own_airflow import HEAD, MANAGER, TABLES, Airflow, own_database

pytestmark = [pytest.mark.airflow, pytest.mark.soak]
SQLITE, POSTGRES = "sqlite", pytest.param("postgres", marks=pytest.mark.db)


@pytest.fixture(params=[SQLITE, POSTGRES])
def airflow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Airflow]:
    """Airflow whose database was migrated before this package was installed."""
    airflow = Airflow(tmp_path, own_database(request, tmp_path))
    airflow.run("db", "migrate")
    airflow.run("db-manager", "downgrade", MANAGER, "--to-revision", "base", "--yes")
    assert airflow.tables() == set()
    yield airflow
    airflow.close()


def _health(airflow: Airflow) -> list[str]:
    return [line for line in airflow.output.splitlines() if line.startswith("health ")]


def test_servers_that_start_together_create_the_tables_once(airflow: Airflow) -> None:
    airflow.run("start-api-servers", "3")
    assert (airflow.tables(), airflow.revision()) == (TABLES, HEAD)
    assert _health(airflow) == ["health 200"] * 3, airflow.output
    assert "could not be created" not in airflow.output
    airflow.fill()
    kept = airflow.rows()
    airflow.run("start-api-servers", "1")
    assert airflow.rows() == kept
    airflow.run("db", "check-migrations", "--migration-wait-timeout", "1")


def test_tables_of_a_newer_version_stay_and_the_remedy_is_told(airflow: Airflow) -> None:
    airflow.run("db-manager", "migrate", MANAGER)
    with airflow.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version_statecheck SET version_num = '0009_9_0_0'"))
    airflow.run("start-api-servers", "1")
    assert "found 0009_9_0_0 of a newer version" in " ".join(airflow.output.split())
    assert airflow.revision() == "0009_9_0_0"
    assert airflow.status_of("db-manager", "migrate", MANAGER) != 0
    assert "found 0009_9_0_0 of a newer version" in " ".join(airflow.output.split())


@pytest.mark.parametrize("airflow", [SQLITE], indirect=True)
def test_a_server_creates_nothing_if_that_is_switched_off(airflow: Airflow, tmp_path: Path) -> None:
    url = airflow.engine.url.render_as_string(hide_password=False)
    other = Airflow(tmp_path, url, AIRFLOW__STATECHECK__MIGRATE_ON_START="False")
    try:
        other.run("start-api-servers", "1")
        assert _health(other) == ["health 503"]
        assert other.tables() == set()
    finally:
        other.close()


@pytest.mark.parametrize("airflow", [POSTGRES], indirect=True)
def test_a_user_of_the_database_who_may_not_create_tables_is_told_the_command(airflow: Airflow, tmp_path: Path) -> None:
    url = make_url(str(airflow.engine.url))
    with create_engine(airflow.engine.url).begin() as connection:
        connection.execute(text("CREATE ROLE reader LOGIN"))
        connection.execute(text("GRANT ALL ON ALL TABLES IN SCHEMA public TO reader"))
        connection.execute(text("GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO reader"))
    other = Airflow(tmp_path, url.set(username="reader").render_as_string(hide_password=False))
    try:
        other.run("start-api-servers", "1")
        assert _health(other) == ["health 503"]
        assert "run 'airflow db migrate' as a user" in " ".join(other.output.split())
        assert other.tables() == set()
    finally:
        other.close()
