"""The migrations give the same tables as the models, on each database, up and down."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import create_engine, inspect, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck import __version__
from airflow_provider_statecheck.metadata import tables

MIGRATIONS = Path(tables.__file__).parent / "migrations"
TABLES = set(tables.METADATA.tables)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.db)])
def engine(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Engine]:
    if request.param == "sqlite":
        engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
        yield engine
        engine.dispose()
        return
    url, schema = request.getfixturevalue("postgres_url"), f"m{uuid.uuid4().hex}"
    engine = create_engine(url, connect_args={"options": f"-csearch_path={schema}"})
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    yield engine
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


def _scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return ScriptDirectory.from_config(config)


def _run(engine: Engine, direction: str) -> None:
    revisions = list(_scripts().walk_revisions())
    with engine.begin() as connection:
        context = MigrationContext.configure(connection)
        with Operations.context(context):
            for script in reversed(revisions) if direction == "upgrade" else revisions:
                getattr(script.module, direction)()


def test_upgrade_from_nothing_gives_the_models_tables(engine: Engine) -> None:
    _run(engine, "upgrade")
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        assert compare_metadata(context, tables.METADATA) == []


def test_downgrade_leaves_no_table_behind(engine: Engine) -> None:
    _run(engine, "upgrade")
    _run(engine, "downgrade")
    assert TABLES.isdisjoint(inspect(engine).get_table_names())


def test_every_table_is_ours_by_name_and_refers_to_no_other() -> None:
    assert all(name.startswith("statecheck_") for name in TABLES)
    assert not [key for table in tables.METADATA.tables.values() for key in table.foreign_keys]


def test_the_newest_revision_belongs_to_this_version() -> None:
    from airflow_provider_statecheck.metadata.db_manager import REVISION_HEADS

    assert REVISION_HEADS[__version__] == _scripts().get_current_head()


@pytest.mark.airflow
def test_airflow_db_migrate_makes_the_tables_and_stamps_their_revision(airflow_db: Path) -> None:
    engine = create_engine(f"sqlite:///{airflow_db}/airflow.db")
    try:
        assert TABLES.issubset(inspect(engine).get_table_names())
        with engine.connect() as connection:
            stamped = connection.execute(text("SELECT version_num FROM alembic_version_statecheck")).scalar_one()
        assert stamped == _scripts().get_current_head()
    finally:
        engine.dispose()


@pytest.mark.soak
@pytest.mark.airflow
def test_airflow_check_migrations_is_content(airflow_db: Path) -> None:
    command = [sys.executable, "-m", "airflow", "db", "check-migrations", "--migration-wait-timeout", "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
