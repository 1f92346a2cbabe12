"""The databases that suites over rows run on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.messages import ManualClock
from tests.sqlite_rows import new_engine


class OnDatabase:
    """The job store over the database of a test."""

    @pytest.fixture
    def store(self, engine: Engine, clock: ManualClock) -> SqlJobStore:
        return SqlJobStore(engine, clock)

    @pytest.fixture
    def jobs(self, store: SqlJobStore) -> SqlJobStore:
        return store


class OnSqlite(OnDatabase):
    """A file of its own for each test."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = new_engine(tmp_path / "state.db")
        yield engine
        engine.dispose()


@contextmanager
def own_schema(postgres_url: str) -> Iterator[str]:
    """Give the URL of a schema of its own with all tables, in the one server; commits do not wait for the disk."""
    schema = f"t{uuid.uuid4().hex}"
    options = f"-csearch_path%3D{schema}%20-csynchronous_commit%3Doff"
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options={options}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    METADATA.create_all(engine)
    yield url
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.mark.db
class OnPostgres(OnDatabase):
    """A schema of its own for each class, emptied for each test."""

    @pytest.fixture(scope="class")
    @classmethod
    def schema_url(cls, postgres_url: str) -> Iterator[str]:
        with own_schema(postgres_url) as url:
            yield url

    @pytest.fixture(scope="class")
    @classmethod
    def lasting_engine(cls, schema_url: str) -> Iterator[Engine]:
        engine = create_engine(schema_url)
        yield engine
        engine.dispose()

    @pytest.fixture
    def engine(self, lasting_engine: Engine) -> Engine:
        # Of tables with a few rows, a DELETE is twenty times as fast as a TRUNCATE.
        with lasting_engine.begin() as connection:
            for table in reversed(METADATA.sorted_tables):
                connection.execute(table.delete())
        return lasting_engine


@contextmanager
def traced(engine: Engine) -> Iterator[list[str]]:
    """Collect the statements that SQLite runs for an engine, also those of the driver alone."""
    statements: list[str] = []

    def trace(connection: Any, *_: object) -> None:
        connection.set_trace_callback(statements.append)

    event.listen(engine, "checkout", trace)
    yield statements
    event.remove(engine, "checkout", trace)
