"""The databases that suites over rows run on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.engines import open_engine
from airflow_provider_statecheck.metadata.models import Base


class OnSqlite:
    """A file of its own for each test."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = open_engine(f"sqlite:///{tmp_path}/state.db")
        yield engine
        engine.dispose()


@contextmanager
def own_schema(postgres_url: str) -> Iterator[str]:
    """Give the URL of a schema of its own with all tables, in the one server."""
    schema = f"t{uuid.uuid4().hex}"
    url = f"{postgres_url}{'&' if '?' in postgres_url else '?'}options=-csearch_path%3D{schema}"
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
    Base.metadata.create_all(engine)
    yield url
    with engine.begin() as connection:
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
    engine.dispose()


@pytest.mark.db
class OnPostgres:
    """A schema of its own for each test."""

    @pytest.fixture
    def engine(self, postgres_url: str) -> Iterator[Engine]:
        with own_schema(postgres_url) as url:
            engine = create_engine(url)
            yield engine
            engine.dispose()
