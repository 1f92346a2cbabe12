"""Our side of the comparisons of stages; each request runs a stage without earlier state."""

from __future__ import annotations

import logging
import sys
import time
import uuid
from functools import partial
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.spark.connectors.custom.data_frame_source import DataFrameSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.files.source import CsvSource, ParquetSource
from airflow_provider_statecheck.spark.connectors.source import Source
from airflow_provider_statecheck.spark.stages.stage import Count, Max, Stage, Sum
from airflow_provider_statecheck.spark.stages.stage_run import run_stage
from benchmarks.answering import answer
from benchmarks.nowhere_sink import NowhereSink
from benchmarks.peak_memory import PeakMemory
from benchmarks.running_figures import RunningFigures
from benchmarks.spark_side import COLUMNS, CONF, prices
from tests.sessions import start_session

FIGURES = "total double, n bigint, top double"


class StageSide:
    """
    Run the stages of the workloads.

    :param work: Folder for checkpoints and the database.
    """

    def __init__(self, work: Path) -> None:
        self._work = work
        self._spark = start_session(CONF)
        self._spark.sparkContext.setLogLevel("ERROR")

    def run(
        self,
        *,
        kind: str,
        files: str,
        key: str,
        output: str | None = None,
        interval: str | None = None,
        increment: dict[str, Any] | None = None,
        watch: bool = False,
    ) -> dict[str, Any]:
        """
        Run a stage.

        :param kind: ``aggregate`` at the end of the input, ``changes`` after each increment, or ``function``.
        :param files: Folder with the input.
        :param key: Name of the key column.
        :param output: Folder for the final figures of all keys; by default figures are discarded.
        :param interval: Interval between two checkpoints.
        :param increment: Size of increments; by default one file.
        :param watch: Whether to measure the peak memory of the Python workers.
        """
        name = uuid.uuid4().hex
        sink = ParquetSink(output) if output else NowhereSink()
        source = _source(kind, sorted(map(str, Path(files).iterdir())), key, increment)
        price = "price" if isinstance(source, CsvSource) else "cast(l_extendedprice as double)"
        stage = _figured(Stage(name).source(source).key_by(key), kind, key, price, is_given=output is not None).sink(
            sink
        )
        with PeakMemory(watch=watch) as memory:
            begin = time.perf_counter()
            result = run_stage(
                self._spark,
                stage,
                job=name,
                checkpoint_dir=str(self._work / name),
                metadata=f"sqlite:///{self._work}/statecheck.db",
                checkpoint_interval=interval,
            )
            seconds = time.perf_counter() - begin
        return {
            "seconds": seconds,
            "increments": result.increments,
            "rows": result.rows,
            "checkpoints": result.checkpoint_id,
            "peak_mb": memory.peak_mb,
        }


def _source(kind: str, files: list[str], key: str, increment: dict[str, Any] | None) -> Source:
    increment = increment or {"files_per_increment": 1}
    if files[0].endswith(".csv"):
        return CsvSource(files, schema=COLUMNS, columns=[key, "price"], **increment)
    if kind == "function":
        return DataFrameSource(files, partial(prices, key))
    return ParquetSource(files, columns=[key, "l_extendedprice"], **increment)


def _figured(stage: Stage, kind: str, key: str, price: str, *, is_given: bool) -> Stage:
    if kind == "function":
        return stage.process(RunningFigures(gives=is_given), output=f"{key} bigint, {FIGURES}")
    figures: dict[str, Any] = {"total": Sum(price), "n": Count(), "top": Max(price)}
    return stage.aggregate(emit="changes" if kind == "changes" and not is_given else "end", **figures)


def main() -> None:
    """Answer requests until standard input ends."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    work = Path(sys.argv[1])
    work.mkdir(parents=True, exist_ok=True)
    answer(StageSide(work).run)


if __name__ == "__main__":
    main()
