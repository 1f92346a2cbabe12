"""A stage in one job, whose tasks fail or linger around their first record; it runs as a process of its own."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.executor.split_task import RECORD_SUFFIX
from airflow_provider_statecheck.spark.stages.stage import Count, Max, Stage, Sum
from airflow_provider_statecheck.state.reading.state_reader import read_state
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from tests.spark.conftest import write_results
from tests.spark.stages.failing import LIMIT_SECONDS, Traces, end, is_first_attempt, state_files
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import payments

READERS = {"files": Max("number"), "rows": Max("number + 0")}
"""Who reads the rows of an aggregate: the tasks, or Spark for an expression that only Spark computes."""


def doubled(row: Any) -> tuple[int, int]:
    return row.number, 2 * row.amount


class FaultyRecords(CheckpointStorage):
    """
    A storage whose tasks meet a fault at their records when Spark runs them for the first time.

    :param way: ``raise`` or ``exit``, ``before`` or ``after`` a record; or ``linger``, which waits after the first
        record until a copy of the task has written its own.
    """

    way: str
    traces: Traces

    @classmethod
    def with_faults(cls, base_uri: str, way: str, traces: Traces) -> FaultyRecords:
        """Open a storage."""
        storage = cls.open(base_uri)
        storage.way, storage.traces = way, traces
        return storage

    @override
    def __reduce__(self) -> tuple[Any, ...]:
        return FaultyRecords.with_faults, (self.base_uri, self.way, self.traces)

    @override
    def write_bytes(self, uri: str, data: bytes, *, overwrite: bool = False) -> None:
        is_faulty = uri.endswith(RECORD_SUFFIX) and is_first_attempt()
        if is_faulty and self.way.endswith("before"):
            self._fail(uri)
        super().write_bytes(uri, data, overwrite=overwrite)
        if is_faulty and self.way.endswith("after"):
            self._fail(uri)
        if uri.endswith(RECORD_SUFFIX) and self.way == "linger":
            self._linger(uri)

    def _fail(self, uri: str) -> None:
        self.traces.note("failed", 0, [])
        end(self.way.partition(" ")[0])

    def _linger(self, uri: str) -> None:
        if not is_first_attempt():
            self.traces.note("won", 0, [])
        elif json.loads(self.read_bytes(uri))["part"] == 0 and not self.traces.of("lost"):
            self.traces.note("lost", 0, [])
            # Spark ends this attempt as soon as it has heard of the other one.
            time.sleep(LIMIT_SECONDS)


def run(spark: Any, folder: Path, way: str) -> dict[str, Any]:
    """
    Run the stage once.

    :param way: Who reads the rows, or ``maps`` for a function of single rows, and the fault, as ``files: exit after``.
    """
    (folder / "traces").mkdir(parents=True)
    tries = StageTries(spark, folder)
    tries.write_input(*payments())
    traces = Traces(folder / "traces", folder / "checkpoints")
    reader, fault = way.split(": ")
    tries.storage = FaultyRecords.with_faults(tries.storage.base_uri, fault, traces)
    source = ParquetSource(str(tries.input), files_per_increment=1)
    stage = Stage("stage", parallelism=2).source(source)
    if reader == "maps":
        stage = stage.map(doubled, uid="doubled", output="number bigint, doubled bigint")
    else:
        stage = stage.key_by("account")
        stage = stage.aggregate(uid="totals", total=Sum("amount"), n=Count(), last=READERS[reader])
    tries.run(stage.sink(ParquetSink(str(tries.output))), DriverSettings(data_inline_threshold=0))
    state = None if reader == "maps" else read_state(tries.completed()[-1].location, "aggregates").read_all()
    return {
        "rows": tries.rows(),
        "state": [] if state is None else sorted(map(repr, state.select(["account", "value"]).to_pylist())),
        "staged": [path.name for path in tries.output.rglob("*.staged")],
        "named": sorted({u for each in tries.completed() for u in document_uris(load_document(tries.storage, each))}),
        "there": [f"file://{path}" for path in state_files(folder / "checkpoints")],
        "records": [str(path) for path in (folder / "checkpoints").rglob(f"*{RECORD_SUFFIX}")],
        **{kind: traces.of(kind) for kind in ("failed", "lost", "won")},
    }


if __name__ == "__main__":
    write_results(run)
