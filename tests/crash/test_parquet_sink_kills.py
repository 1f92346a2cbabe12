"""Drivers with a Parquet sink end between any two steps: the directory is that of an undisturbed run."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from typing_extensions import override

from airflow_provider_statecheck.spark.sinks.read_committed import committed_files
from tests.crash.parquet_factory import TABLE
from tests.crash.sink_suite import SinkKills

pytestmark = pytest.mark.spark


class TestParquetSinkKills(SinkKills):
    factory: ClassVar[str] = "tests.crash.parquet_factory:make"
    zombie_steps: ClassVar[tuple[str, ...]] = ("commit", "sink.write", "sink.move")

    @staticmethod
    @override
    def read(work: Path) -> pa.Table:
        committed = [file.uri.removeprefix("file://") for file in committed_files(str(work / TABLE))]
        assert sorted(committed) == sorted(str(file) for file in (work / TABLE).glob("*.parquet"))
        return pa.concat_tables([pq.read_table(file) for file in committed])
