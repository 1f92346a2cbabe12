"""Airflow's database commands with our tables: what they make, keep and drop, on each database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.own_airflow import EVERYTHING, HEAD, MANAGER, TABLES, Airflow, own_database

pytestmark = [pytest.mark.airflow, pytest.mark.soak]


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.db)])
def airflow(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Airflow]:
    airflow = Airflow(tmp_path, own_database(request, tmp_path))
    yield airflow
    airflow.close()


def test_migrate_keeps_rows_downgrade_drops_its_own_and_reset_drops_all(airflow: Airflow) -> None:
    airflow.run("db", "migrate")
    assert (airflow.tables(), airflow.revision()) == (TABLES, HEAD)
    airflow.fill()

    airflow.run("db", "migrate")
    airflow.run("db", "check-migrations", "--migration-wait-timeout", "1")
    assert airflow.rows() == EVERYTHING, "what is up to date stays as it is"

    airflow.run("db-manager", "downgrade", MANAGER, "--to-revision", "base", "--yes")
    assert (airflow.tables(), airflow.revision()) == (set(), None)
    assert airflow.keeps_its_own()
    assert airflow.status_of("db", "check-migrations", "--migration-wait-timeout", "0") != 0

    airflow.run("db-manager", "migrate", MANAGER)
    assert airflow.revision() == HEAD
    assert airflow.rows() == dict.fromkeys(TABLES, 0)
    assert airflow.keeps_its_own()

    airflow.run("db", "reset", "--yes")
    assert airflow.revision() == HEAD
    assert airflow.rows() == dict.fromkeys(TABLES, 0)
    assert not airflow.keeps_its_own()


def test_uninstall_leaves_nothing_of_ours_and_migrate_begins_anew(airflow: Airflow) -> None:
    airflow.run("db", "migrate")
    airflow.fill()
    assert airflow.status_of("statecheck", "uninstall") == 2, "a script has to add --yes"
    airflow.run("statecheck", "uninstall", "--dry-run")
    assert airflow.rows() == EVERYTHING

    airflow.run("statecheck", "uninstall", "--yes")
    assert (airflow.tables(), airflow.revision()) == (set(), None)
    assert airflow.keeps_its_own()
    airflow.run("statecheck", "uninstall", "--yes")
    assert "Nothing to remove" in airflow.output

    airflow.run("db", "migrate")
    assert (airflow.rows(), airflow.revision()) == (dict.fromkeys(TABLES, 0), HEAD)


def test_reset_drops_rows_and_leaves_tables_to_work_with(airflow: Airflow) -> None:
    airflow.run("db", "migrate", "--use-migration-files")
    assert (airflow.tables(), airflow.revision()) == (TABLES, HEAD), "the files make what the models say"
    airflow.fill()
    airflow.run("db", "reset", "--yes")
    assert airflow.rows() == dict.fromkeys(TABLES, 0)
    airflow.run("db", "check-migrations", "--migration-wait-timeout", "1")
    airflow.fill()
    assert airflow.rows() == EVERYTHING


def test_the_statements_of_a_downgrade_are_shown_and_not_run(airflow: Airflow) -> None:
    airflow.run("db-manager", "migrate", MANAGER)
    for known in ((), ("--from-revision", HEAD)):
        airflow.run("db-manager", "downgrade", MANAGER, *known, "--to-revision", "base", "--show-sql-only")
        assert "DROP TABLE statecheck_job;" in airflow.output
    assert (airflow.tables(), airflow.revision()) == (TABLES, HEAD)
