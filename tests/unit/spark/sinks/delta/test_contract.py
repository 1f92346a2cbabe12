"""The Delta sink fulfils the contract of sinks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.commit_files import CommitFiles
from airflow_provider_statecheck.spark.sinks.delta_destination import LogFiles
from airflow_provider_statecheck.spark.sinks.sink import Sink
from airflow_provider_statecheck.spark.sinks.table_sinks import DeltaSink
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.spark.tables.delta import DeltaTableAccess
from airflow_provider_statecheck.testing.sink_contract import SinkContract, Step, UpsertContract
from tests.unit.spark.sinks.delta.attempts import keys_of, orphans_in, rows_of, versions_of


class TestDeltaSink(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        (CommitFiles, "write_publication"),
        (LogFiles, "write"),
        (DeltaTableAccess, "create"),
        (DeltaTableAccess, "commit"),
        (TargetFiles, "delete"),
    )
    other_schema = pa.schema([("key", pa.string()), ("name", pa.string())])

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
