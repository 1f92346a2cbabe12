"""SQL sinks on PostgreSQL and SQLite, whose drivers are killed between any two steps."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pytest
from sqlalchemy import NullPool, create_engine, text

from airflow_provider_statecheck.spark.sinks.sql.tables import COMMITS, HEADS
from tests.crash.sink_sql_factory import TABLE, URL_FILE
from tests.crash.sink_suite import SinkKills

pytestmark = pytest.mark.spark

COLUMNS = ["part", "number", "total", "name"]


class _SqlSinkKills(SinkKills):
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.apply")

    @staticmethod
    def read(work: Path) -> pa.Table:
        engine = create_engine((work / URL_FILE).read_text(), poolclass=NullPool)
        with engine.connect() as connection:
            rows = connection.execute(text(f"SELECT {', '.join(COLUMNS)} FROM {TABLE}")).all()
        return pa.Table.from_pylist([dict(zip(COLUMNS, row, strict=True)) for row in rows])


class _OnPostgres(_SqlSinkKills):
    url: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def database(cls, postgres_url: str) -> None:
        cls.url = postgres_url

    @classmethod
    def prepare(cls, work: Path) -> None:
        (work / URL_FILE).write_text(cls.url)
        with create_engine(cls.url, poolclass=NullPool).begin() as connection:
            for name in (TABLE, HEADS, COMMITS):
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))


class TestPostgresSinkKills(_OnPostgres):
    factory = "tests.crash.sink_sql_factory:appending"


@pytest.mark.soak
class TestUpsertingPostgresSinkKills(_OnPostgres):
    factory = "tests.crash.sink_sql_factory:upserting"


@pytest.mark.soak
class TestSqliteSinkKills(_SqlSinkKills):
    factory = "tests.crash.sink_sql_factory:appending"

    @staticmethod
    def prepare(work: Path) -> None:
        (work / URL_FILE).write_text(f"sqlite:///{work}/output.db")
