"""The SQL sink fulfils the contract of sinks on both databases."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.sink import Sink
from airflow_provider_statecheck.spark.sinks.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.sink_contract import SinkContract, Step, UpsertContract
from tests.unit.spark.sinks.attempts import schema_with
from tests.unit.spark.sinks.sql.databases import TABLE, Place


class OnSqlite(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        (SqlDestination, "apply"),
        (SqlDestination, "_replace_log"),
        (SqlDestination, "_retract"),
        (SqlDestination, "_publish"),
        (TargetFiles, "delete"),
    )
    zombie_steps = ((SqlDestination, "apply"), (TargetFiles, "delete"))
    other_schema = schema_with(key=pa.string())
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


class TestSqlSinkOnSqlite(OnSqlite): ...


class TestUpsertingSqlSinkOnPostgres(OnPostgres, UpsertingOnSqlite): ...


@pytest.mark.soak  # the two kinds of output and the two databases run in make test once each
class TestUpsertingSqlSinkOnSqlite(UpsertingOnSqlite): ...


@pytest.mark.soak
class TestSqlSinkOnPostgres(OnPostgres, OnSqlite): ...
