"""Drivers with each kind of sink end between any two steps: readers see the output of an undisturbed run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from sqlalchemy import NullPool, create_engine, text

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.files.sink import committed_files
from airflow_provider_statecheck.spark.connectors.sql.loading import COMMITS, HEADS
from tests.crash.sink_factories import ICEBERG_TABLE, SQL_TABLE, URL_FILE
from tests.crash.sink_suite import SinkKills
from tests.unit.spark.connectors.folder_sink import shown_in
from tests.unit.spark.connectors.iceberg.tables import properties_in

pytestmark = pytest.mark.spark

FACTORIES = "tests.crash.sink_factories"
COLUMNS = pa.schema([("part", pa.int64()), ("number", pa.int64()), ("total", pa.int64()), ("name", pa.string())])


class TestParquetSinkKills(SinkKills):
    factory = f"{FACTORIES}:parquet"
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.write", "sink.move")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        committed = [file.uri.removeprefix("file://") for file in committed_files(str(work / "table"))]
        assert sorted(committed) == sorted(str(file) for file in (work / "table").glob("*.parquet"))
        return pa.concat_tables([pq.read_table(file) for file in committed])


@pytest.mark.soak
class TestDeltaSinkKills(SinkKills):
    factory = f"{FACTORIES}:delta"
    first_gap = 2
    # The second: it has looked at the table, and waits before its version is written.
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.commit")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        return pa.table(DeltaTable(str(work / "table")).to_pyarrow_table())


@pytest.mark.soak
class TestIcebergSinkKills(SinkKills):
    factory = f"{FACTORIES}:iceberg"
    first_gap = 4
    # The second: it has read the ledger and decided, and has not asked the catalog yet.
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.commit_edit")

    @staticmethod
    @override
    def prepare(work: Path) -> None:
        catalog = load_catalog(None, **properties_in(work))
        catalog.create_namespace("sales")
        catalog.create_table(ICEBERG_TABLE, COLUMNS)
        catalog.close()

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        catalog = load_catalog(None, **properties_in(work))
        try:
            return catalog.load_table(ICEBERG_TABLE).scan().to_arrow()
        finally:
            catalog.close()


@pytest.mark.soak
class TestCustomSinkKills(SinkKills):
    factory = f"{FACTORIES}:folder"
    first_gap = 6
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.write", "sink.commit_transaction")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        found = shown_in(work / "output")
        assert found is not None
        return found


class _SqlSinkKills(SinkKills):
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.apply")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        engine = create_engine((work / URL_FILE).read_text(), poolclass=NullPool)
        with engine.connect() as connection:
            rows = connection.execute(text(f"SELECT {', '.join(COLUMNS.names)} FROM {SQL_TABLE}")).all()
        return pa.Table.from_pylist([dict(zip(COLUMNS.names, row, strict=True)) for row in rows])


class TestPostgresSinkKills(_SqlSinkKills):
    factory = f"{FACTORIES}:sql"
    first_gap = 8
    url: ClassVar[str]

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def database(cls, postgres_url: str) -> None:
        cls.url = postgres_url

    @classmethod
    @override
    def prepare(cls, work: Path) -> None:
        (work / URL_FILE).write_text(cls.url)
        with create_engine(cls.url, poolclass=NullPool).begin() as connection:
            for name in (SQL_TABLE, HEADS, COMMITS):
                connection.execute(text(f"DROP TABLE IF EXISTS {name}"))


@pytest.mark.soak
class TestUpsertingPostgresSinkKills(TestPostgresSinkKills):
    factory = f"{FACTORIES}:upserting_sql"


@pytest.mark.soak
class TestSqliteSinkKills(_SqlSinkKills):
    factory = f"{FACTORIES}:sql"

    @staticmethod
    @override
    def prepare(work: Path) -> None:
        (work / URL_FILE).write_text(f"sqlite:///{work}/output.db")
