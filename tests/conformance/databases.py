"""The databases that suites over rows run on."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
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


@pytest.mark.db
class OnPostgres:
    """A schema of its own for each test, in the one server."""

    @pytest.fixture
    def engine(self, postgres_url: str) -> Iterator[Engine]:
        schema = f"t{uuid.uuid4().hex}"
        engine = create_engine(postgres_url, connect_args={"options": f"-csearch_path={schema}"})
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        Base.metadata.create_all(engine)
        yield engine
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()
