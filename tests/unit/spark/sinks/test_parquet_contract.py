"""The Parquet sink fulfils the contract of sinks, for readers of the directory and of the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pytest

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink, PublishedFiles
from airflow_provider_statecheck.spark.sinks.sink import Sink
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.sink_contract import LOG_STEPS, SinkContract, Step
from tests.unit.spark.sinks.attempts import committed_in, hidden_in, schema_with, seen_in


class TestParquetSinkWithRenames(SinkContract):
    steps: ClassVar[Sequence[Step]] = (
        *LOG_STEPS,
        (TargetFiles, "move"),
        (TargetFiles, "delete"),
        (PublishedFiles, "sweep"),
    )
    other_schema = schema_with(key=pa.string())

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
