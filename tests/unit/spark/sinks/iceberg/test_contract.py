"""The Iceberg sink fulfils the contract of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks import iceberg_destination
from airflow_provider_statecheck.spark.sinks.sink import Sink
from airflow_provider_statecheck.spark.sinks.table_sinks import IcebergSink
from airflow_provider_statecheck.spark.tables.iceberg import OpenTable
from airflow_provider_statecheck.testing.sink_contract import SCHEMA, SinkContract, Step, UpsertContract
from tests.unit.spark.sinks.attempts import schema_with
from tests.unit.spark.sinks.iceberg.tables import MARKED, TABLE, create_table, properties_in, rows_in, seen_in


@pytest.mark.soak
class TestIcebergSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = ((OpenTable, "load"), (iceberg_destination, "commit_edit"))
    other_schema = schema_with(key=pa.string())
    columns = SCHEMA
    settings: ClassVar[dict[str, Any]] = {}

    @override
    def new_target(self, folder: Path) -> Path:
        create_table(folder / "table", self.columns)
        return folder / "table"

    @override
    def sink(self, target: Path, **settings: Any) -> Sink:
        return IcebergSink(TABLE, properties=properties_in(target), **self.settings, **settings)

    @override
    def read(self, target: Path) -> list[int]:
        return seen_in(target)


@pytest.mark.soak
class TestUpsertingIcebergSink(UpsertContract, TestIcebergSink):
    steps: ClassVar[Sequence[Step]] = ((iceberg_destination, "commit_edit"),)
    columns = MARKED
    settings: ClassVar[dict[str, Any]] = {"upsert_by": ["key"]}

    @override
    def read_names(self, target: Path) -> dict[int, str]:
        return {row["key"]: row["name"] for row in rows_in(target)}


class TestUpsertingIcebergSinkWithoutMarks(TestUpsertingIcebergSink):
    can_retract = False
    columns = SCHEMA
