"""Each sink fulfils the contract of sinks."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.delta.destination import LogFiles
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.delta.table import DeltaTableAccess
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, PublishedFiles
from airflow_provider_statecheck.spark.connectors.iceberg import destination as iceberg_destination
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.iceberg.table import OpenTable
from airflow_provider_statecheck.spark.connectors.sink import Sink
from airflow_provider_statecheck.spark.connectors.sql.destination import SqlDestination
from airflow_provider_statecheck.testing.sink_contract import LOG_STEPS, SCHEMA, SinkContract, Step, UpsertContract
from tests.unit.spark.connectors.attempts import committed_in, hidden_in, schema_with, seen_in
from tests.unit.spark.connectors.delta.attempts import keys_of, orphans_in, rows_of, versions_of
from tests.unit.spark.connectors.iceberg import tables
from tests.unit.spark.connectors.sql.databases import TABLE, Place

OTHER_SCHEMA = schema_with(key=pa.string())


class TestParquetSinkWithRenames(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        *LOG_STEPS,
        (TargetFiles, "move"),
        (TargetFiles, "delete"),
        (PublishedFiles, "sweep"),
    )
    other_schema = OTHER_SCHEMA

    @override
    def sink(self, target: str, **settings: Any) -> Sink:
        return ParquetSink(target, **settings)

    @override
    def read(self, target: str) -> list[int]:
        seen = seen_in(target)
        assert committed_in(target) == seen
        return seen

    @override
    def leftovers(self, target: str) -> list[str]:
        return hidden_in(target, "staging")


@pytest.mark.soak
class TestParquetSinkWithCopies(TestParquetSinkWithRenames):
    steps: ClassVar[Sequence[Step]] = (
        *LOG_STEPS,
        (TargetFiles, "copy"),
        (TargetFiles, "upload"),
        (TargetFiles, "delete"),
        (PublishedFiles, "sweep"),
    )

    @override
    def new_target(self, folder: Path) -> str:
        return f"memory://{uuid.uuid4().hex}/table"


class TestDeltaSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        (CommitFiles, "write_publication"),
        (LogFiles, "write"),
        (DeltaTableAccess, "create"),
        (DeltaTableAccess, "commit"),
        (TargetFiles, "delete"),
    )
    other_schema = OTHER_SCHEMA

    @override
    def sink(self, target: str, **settings: Any) -> Sink:
        return DeltaSink(target, **settings)

    @override
    def read(self, target: str) -> list[int]:
        return keys_of(target)

    @override
    def versions(self, target: str) -> list[list[int]]:
        return versions_of(target)

    @override
    def leftovers(self, target: str) -> list[str]:
        return orphans_in(target)


@pytest.mark.soak
class TestUpsertingDeltaSink(UpsertContract, TestDeltaSink):
    steps: ClassVar[Sequence[Step]] = ((LogFiles, "write"), (DeltaTableAccess, "commit_with"))

    @override
    def sink(self, target: str, **settings: Any) -> Sink:
        return DeltaSink(target, upsert_by=["key"], **settings)

    @override
    def read_names(self, target: str) -> dict[int, str]:
        return {row["key"]: row["name"] for row in rows_of(target).to_pylist()}


@pytest.mark.soak
class TestIcebergSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = ((OpenTable, "load"), (iceberg_destination, "commit_edit"))
    other_schema = OTHER_SCHEMA
    columns = SCHEMA
    settings: ClassVar[dict[str, Any]] = {}

    @override
    def new_target(self, folder: Path) -> Path:
        tables.create_table(folder / "table", self.columns)
        return folder / "table"

    @override
    def sink(self, target: Path, **settings: Any) -> Sink:
        return IcebergSink(tables.TABLE, properties=tables.properties_in(target), **self.settings, **settings)

    @override
    def read(self, target: Path) -> list[int]:
        return tables.seen_in(target)


@pytest.mark.soak
class TestUpsertingIcebergSink(UpsertContract, TestIcebergSink):
    steps: ClassVar[Sequence[Step]] = ((iceberg_destination, "commit_edit"),)
    columns = tables.MARKED
    settings: ClassVar[dict[str, Any]] = {"upsert_by": ["key"]}

    @override
    def read_names(self, target: Path) -> dict[int, str]:
        return {row["key"]: row["name"] for row in tables.rows_in(target)}


class TestUpsertingIcebergSinkWithoutMarks(TestUpsertingIcebergSink):
    can_retract = False
    columns = SCHEMA


class OnSqlite(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        (SqlDestination, "apply"),
        (SqlDestination, "_replace_log"),
        (SqlDestination, "_retract"),
        (SqlDestination, "_publish"),
        (TargetFiles, "delete"),
    )
    zombie_steps = ((SqlDestination, "apply"), (TargetFiles, "delete"))
    other_schema = OTHER_SCHEMA
    settings: ClassVar[dict[str, Any]] = {}

    @override
    def new_target(self, folder: Path) -> Place:
        return Place(f"sqlite:///{folder}/output.db", folder)

    @override
    def relative_target(self, target: Place) -> Place:
        return Place(target.url.replace(f"{target.folder}/", ""), Path())

    @override
    def sink(self, target: Place, **settings: Any) -> Sink:
        return target.sink(**self.settings, **settings)

    @override
    def read(self, target: Place) -> list[int]:
        found = target.run(f"SELECT 1 FROM sqlite_master WHERE name = '{TABLE}'") if target.is_sqlite else [()]
        return target.seen if found else []

    @override
    def leftovers(self, target: Place) -> list[str]:
        return target.staged


class UpsertingOnSqlite(UpsertContract, OnSqlite):
    settings: ClassVar[dict[str, Any]] = {"upsert_by": ["key"]}

    @override
    def read_names(self, target: Place) -> dict[int, str]:
        return dict(target.rows()) if OnSqlite.read(self, target) else {}


@pytest.mark.soak
class TestSqlSinkWithoutMarks(OnSqlite):
    can_retract = False
    settings: ClassVar[dict[str, Any]] = {"mark_rows": False}


class OnPostgres(SinkContract):
    @pytest.fixture(autouse=True)
    def _database(self, postgres_url: str) -> None:
        self.url = postgres_url

    @override
    def new_target(self, folder: Path) -> Place:
        place = Place(self.url, folder)
        place.clear()
        return place


class TestUpsertingSqlSinkOnSqlite(UpsertingOnSqlite): ...


@pytest.mark.soak
class TestSqlSinkOnSqlite(OnSqlite): ...


@pytest.mark.soak  # ten times as slow
class TestUpsertingSqlSinkOnPostgres(OnPostgres, UpsertingOnSqlite): ...


@pytest.mark.soak
class TestSqlSinkOnPostgres(OnPostgres, OnSqlite): ...
