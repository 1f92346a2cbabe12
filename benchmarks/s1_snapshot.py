"""
S1: a snapshot of a wide DataFrame, compared with a plain write and with Spark's checkpoint.

In the case of S3, Spark's Hadoop has no S3 filesystem, and Python writes on the executors. The peer is one process
without Spark that reads the same files with pyarrow and writes them to the same server.
"""

from __future__ import annotations

import shutil
import uuid
from pathlib import Path
from typing import Any

import fsspec
import pyarrow.parquet as pq

from airflow_provider_statecheck.spark.context import StageContext
from benchmarks.measure import Result, in_turn, median_ratio, medians, seconds
from benchmarks.tpch import lineitem
from tests.object_store import KEY, SECRET, running_object_store
from tests.sessions import start_session

CONF = {
    "spark.master": "local[2]",
    "spark.driver.memory": "4g",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}


def run(work: Path, *, quick: bool) -> list[Result]:
    """Measure on TPC-H lineitem of scale 1, or 0.1 if ``quick``."""
    scale, pairs = ("0.1", 1) if quick else ("1", 5)
    source = lineitem(scale)
    spark = start_session(CONF)
    spark.sparkContext.setLogLevel("ERROR")
    spark.sparkContext.setCheckpointDir(str(work / "spark_checkpoints"))
    frame = spark.read.parquet(str(source))
    sizes = {"scale": scale, "rows": frame.count(), "columns": len(frame.columns)}
    return [
        _against_plain(spark, frame, work, pairs, sizes),
        *_against_checkpoint(spark, frame, work, pairs, sizes),
        _against_pyarrow_on_s3(spark, frame, source, work, pairs, sizes),
    ]


def _against_plain(spark: Any, frame: Any, work: Path, pairs: int, sizes: dict[str, Any]) -> Result:
    def plain() -> float:
        target = work / "plain"
        shutil.rmtree(target, ignore_errors=True)
        return seconds(lambda: frame.write.parquet(str(target)))

    readings = in_turn(lambda: _snapshot(spark, frame, work)[0], plain, pairs)
    return _result("lineitem vs df.write.parquet", "s", readings, 0.95, sizes)


def _against_checkpoint(spark: Any, frame: Any, work: Path, pairs: int, sizes: dict[str, Any]) -> list[Result]:
    bytes_read: list[list[float]] = []

    def ours() -> float:
        taken, written = _snapshot(spark, frame, work)
        bytes_read.append([written, 0.0])
        return taken

    def peer() -> float:
        folder = work / "spark_checkpoints"
        shutil.rmtree(folder, ignore_errors=True)
        spark.sparkContext.setCheckpointDir(str(folder))
        taken = seconds(lambda: frame.checkpoint(eager=True))
        checkpoint_sizes.append(float(sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())))
        return taken

    checkpoint_sizes: list[float] = []
    readings = in_turn(ours, peer, pairs)
    sized = [[mine[0], theirs] for mine, theirs in zip(bytes_read, checkpoint_sizes, strict=True)][1:]
    return [
        _result("lineitem vs DataFrame.checkpoint, time", "s", readings, 1 / 1.2, sizes),
        _result("lineitem vs DataFrame.checkpoint, bytes", "bytes", sized, 6.0, sizes),
    ]


def _against_pyarrow_on_s3(
    spark: Any, frame: Any, source: Path, work: Path, pairs: int, sizes: dict[str, Any]
) -> Result:
    with running_object_store() as store:
        # Bypasses the proxy of the tests, which is slow.
        options = {"key": KEY, "secret": SECRET, "endpoint_url": store.direct_url}
        base = f"s3://{store.bucket}"

        def ours() -> float:
            return _timed_snapshot(spark, frame, work, f"{base}/{uuid.uuid4().hex}", options)[0]

        def peer() -> float:
            return seconds(lambda: _copy_with_pyarrow(source, f"{base}/{uuid.uuid4().hex}", options))

        return _result("lineitem to S3 vs pyarrow without Spark", "s", in_turn(ours, peer, pairs), None, sizes)


def _copy_with_pyarrow(source: Path, target: str, options: dict[str, Any]) -> None:
    filesystem = fsspec.filesystem("s3", **options)
    for part in sorted(source.glob("*.parquet")):
        with filesystem.open(f"{target}/{part.name}", "wb") as sink:
            pq.write_table(pq.read_table(part), sink, compression="snappy")


def _snapshot(spark: Any, frame: Any, work: Path) -> tuple[float, float]:
    """Take a snapshot with a completed checkpoint, and return its duration in seconds and its size in bytes."""
    folder = work / "ours"
    shutil.rmtree(folder, ignore_errors=True)
    return _timed_snapshot(spark, frame, work, str(folder), {})


def _timed_snapshot(spark: Any, frame: Any, work: Path, base: str, options: dict[str, Any]) -> tuple[float, float]:
    metadata = f"sqlite:///{work}/{uuid.uuid4().hex}.db"
    with StageContext.open(
        spark, job="s1", checkpoint_dir=base, metadata=metadata, storage_options=options
    ) as checkpoint:
        taken = seconds(lambda: checkpoint.snapshot("lineitem", frame))
        return taken, float(checkpoint.steps[0].size_bytes)


def _result(case: str, unit: str, readings: list[list[float]], goal: float | None, sizes: dict[str, Any]) -> Result:
    ours, peer = medians(readings)
    return Result(
        id="S1",
        case=case,
        ours=ours,
        peer=peer,
        unit=unit,
        ratio=median_ratio(readings),
        goal=goal,
        pairs=readings,
        sizes=sizes,
    )
