"""A stage in a Spark that repeats tasks, and what tests want to know of it; it runs as a process of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa

from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink, committed_files
from airflow_provider_statecheck.spark.connectors.files.source import ParquetSource
from airflow_provider_statecheck.spark.driver.settings import DriverSettings
from airflow_provider_statecheck.spark.stages.stage import Count, Stage, Sum
from airflow_provider_statecheck.state.descriptors import MapStateDescriptor, ValueStateDescriptor
from airflow_provider_statecheck.state.keys.key_serializer import KeyField
from airflow_provider_statecheck.storage.metadata_file import document_uris, load_document
from tests.spark.conftest import write_results
from tests.spark.stages.failing import FailingInFirstAttempt, FailingSink, LingeringSink, Traces, state_files
from tests.spark.stages.functions import RunningBalance
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import RUNNING, payments
from tests.state_content import StateContent, values_and_maps


def run(spark: Any, folder: Path, way: str) -> dict[str, Any]:
    """
    Run the stage once.

    :param way: What goes wrong and where, such as ``exit in sink of two vertices`` or ``linger in sink of one
        increment``.
    """
    folder.mkdir()
    (folder / "traces").mkdir()
    tries = StageTries(spark, folder)
    tries.write_input(*payments()[: 1 if way.endswith("one increment") else None])
    traces = Traces(folder / "traces", folder / "checkpoints")
    tries.run(_stage(tries, traces, *way.split(" in ")), DriverSettings(data_inline_threshold=0))
    return {
        "rows": tries.rows(),
        "state": _state(tries),
        "staged": [path.name for path in tries.output.rglob("*.staged")],
        "committed": [file.uri for file in committed_files(str(tries.output))],
        "named": sorted(
            {uri for each in tries.completed() for uri in document_uris(load_document(tries.storage, each))}
        ),
        "there": [f"file://{path}" for path in state_files(folder / "checkpoints")],
        "failed": traces.of("failed"),
        "lost": traces.of("lost"),
        "won": traces.of("won"),
    }


def committed_of(staged: list[str], committed: list[str]) -> list[str]:
    """Return the committed files that were staged under some names."""
    keys = tuple(f"-{name.removesuffix('.staged').rpartition('-')[2][:12]}.parquet" for name in staged)
    return [uri for uri in committed if uri.endswith(keys)]


def _stage(tries: StageTries, traces: Traces, way: str, where: str = "") -> Stage:
    stage = Stage("stage", parallelism=2).source(ParquetSource(str(tries.input), files_per_increment=1))
    function = FailingInFirstAttempt(way) if where.startswith("function") else RunningBalance()
    stage = stage.key_by("account", order_by="number").process(function, uid="balance", output=RUNNING)
    if where.endswith("two vertices"):
        stage = stage.key_by("number").aggregate(uid="totals", emit="changes", n=Count(), total=Sum("balance"))
    return stage.sink(_sink(tries, traces, way, where))


def _sink(tries: StageTries, traces: Traces, way: str, where: str) -> ParquetSink:
    if way == "linger":
        return LingeringSink(str(tries.output), traces)
    return FailingSink(str(tries.output), traces, way) if where.startswith("sink") else ParquetSink(str(tries.output))


def _state(tries: StageTries) -> Any:
    account = KeyField("account", pa.string())
    read = values_and_maps(ValueStateDescriptor("balance", int, 0), MapStateDescriptor("purposes", str, int))
    content = StateContent(storage=tries.storage, checkpoint=tries.completed()[-1])
    return sorted(content.read("stage/balance", account, 1, read).items())


if __name__ == "__main__":
    write_results(run)
