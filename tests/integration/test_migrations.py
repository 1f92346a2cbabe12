"""The migrations give the same tables as the models, on each database, up and down."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import uuid
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.operations import Operations
from alembic.script import ScriptDirectory
from sqlalchemy import MetaData, create_engine, inspect, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck import __version__
from airflow_provider_statecheck.checkpoint.job_list import JobsPage
from airflow_provider_statecheck.metadata import models
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.clock import ManualClock
from tests.contracts.job_list_contract import History

MIGRATIONS = Path(models.__file__).parent / "migrations"
TABLES = set(models.Base.metadata.tables)


MOMENT = "'2026-01-01 00:00:00'"


def _attempt(epoch: int, run: str, operator: str = "a", restored: str = "NULL") -> str:
    return (
        "INSERT INTO statecheck_attempt (job_id, operator_id, epoch, attempt_key, generation, status, owner, start_reason, "
        "storage_base, num_retained, checkpoint_timeout_seconds, registered_at, retention, message, restored_from) VALUES "
        f"('j', '{operator}', {epoch}, '{operator}{epoch}', 1, 'finished', '{{\"run_key\": \"{run}\"}}', '', '', 2, 1, "
        f"{MOMENT}, 'r', '', {restored})"
    ).replace('":', '"\\:')


def _checkpoint(number: int, epoch: int) -> str:
    return (
        "INSERT INTO statecheck_checkpoint (job_id, checkpoint_id, operator_id, epoch, generation, status, request_key, "
        "location, triggered_at, expires_at, properties, is_periodic, metadata_size, metadata_sha256, state_size_bytes, "
        "full_size_bytes, counts, failure_message, has_open_commit) VALUES "
        f"('j', {number}, 'a', {epoch}, 1, 'completed', 'r{number}', '', {MOMENT}, {MOMENT}, '{{}}', false, 0, '', 0, 0, "
        "'{}', '', false)"
    )


OLDER_ROWS = [
    "INSERT INTO statecheck_operator (job_id, operator_id, uid, epoch, generation) VALUES ('j', 'a', 'a', 3, 1)",
    "INSERT INTO statecheck_operator (job_id, operator_id, uid, epoch, generation) VALUES ('j', 'b', 'b', 1, 1)",
    "INSERT INTO statecheck_operator (job_id, operator_id, uid, epoch, generation) VALUES ('j', 'c', 'c', 9, 1)",
    _attempt(9, "sunday", "c", restored="3"),
    *(_attempt(epoch, run) for epoch, run in ((1, "monday"), (2, "tuesday"))),
    *(_checkpoint(number, number) for number in (1, 2, 3)),
]


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
        assert compare_metadata(context, models.Base.metadata) == []


def test_downgrade_leaves_no_table_behind(engine: Engine) -> None:
    _run(engine, "upgrade")
    _run(engine, "downgrade")
    assert TABLES.isdisjoint(inspect(engine).get_table_names())


def test_what_an_older_release_wrote_learns_which_runs_it_is_of(engine: Engine) -> None:
    scripts = list(reversed(list(_scripts().walk_revisions())))
    first_new = [script.revision for script in scripts].index("0005_0_1_0")
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        for script in scripts[:first_new]:
            script.module.upgrade()
        for statement in OLDER_ROWS:
            connection.execute(text(statement))
        for script in scripts[first_new:]:
            script.module.upgrade()
    with engine.connect() as connection:
        runs = connection.execute(text("SELECT run_key FROM statecheck_checkpoint ORDER BY checkpoint_id")).scalars()
        assert list(runs) == ["monday", "tuesday", ""], "of a forgotten attempt nobody knows the run"
        operators = connection.execute(text("SELECT first_run FROM statecheck_operator ORDER BY operator_id")).scalars()
        assert list(operators) == ["monday", "", ""], "an attempt that restored something began nothing"
        assert set(connection.execute(text("SELECT retained_runs FROM statecheck_attempt")).scalars()) == {1}
        damaged = connection.execute(text("SELECT damaged_snapshots FROM statecheck_operator")).scalars()
        assert {json.dumps(found) if isinstance(found, list) else found for found in damaged} == {"[]"}
        summaries = (
            "SELECT summary FROM statecheck_checkpoint UNION ALL SELECT restored_summary FROM statecheck_attempt"
        )
        assert not any(connection.execute(text(summaries)).scalars())


def test_an_api_server_of_the_version_before_writes_rows_until_its_restart(engine: Engine) -> None:
    scripts = list(reversed(list(_scripts().walk_revisions())))
    first_new = [script.revision for script in scripts].index("0008_0_1_0")
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        for script in scripts[:first_new]:
            script.module.upgrade()
        known = MetaData()
        known.reflect(connection, only=lambda name, _: name.startswith("statecheck_"))
        for script in scripts[first_new:]:
            script.module.upgrade()
        for table in known.sorted_tables:
            connection.execute(table.insert().values({c.name: _EXAMPLES[c.type.python_type] for c in table.c}))


_EXAMPLES: dict[type[object], object] = {
    str: "1",
    int: 1,
    float: 1.0,
    bool: True,
    object: {},
    bytes: b"",
    datetime: datetime(2026, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize("seed", range(3))
def test_jobs_of_an_older_release_are_listed_like_those_of_this_one(engine: Engine, seed: int) -> None:
    _run(engine, "upgrade")
    clock = ManualClock()
    store = SqlJobStore(engine, clock)
    History(store, clock, random.Random(seed)).run(80)
    page = JobsPage(limit=100, with_test_jobs=True)
    listed = store.job_overviews(page)
    assert len(listed.jobs) > 3
    added = _scripts().get_revision("0010_0_1_0")
    with engine.begin() as connection, Operations.context(MigrationContext.configure(connection)):
        added.module.downgrade()
        added.module.upgrade()
    assert store.job_overviews(page) == listed


def test_every_table_is_ours_by_name_and_refers_to_no_other() -> None:
    assert all(name.startswith("statecheck_") for name in TABLES)
    assert not [key for table in models.Base.metadata.tables.values() for key in table.foreign_keys]


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


@pytest.mark.airflow
def test_airflow_check_migrations_is_content(airflow_db: Path) -> None:
    command = [sys.executable, "-m", "airflow", "db", "check-migrations", "--migration-wait-timeout", "1"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0
