"""Stages with relative paths, and with speculative tasks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import child_environment, results_of
from tests.spark.stages.relative_paths import CHECKPOINTS, INPUT, OUTPUT
from tests.spark.stages.repeated_tasks import committed_of
from tests.spark.stages.test_stage import payments, running
from tests.standalone_cluster import StandaloneCluster

CONF = {
    "spark.app.name": "statecheck-relative-paths",
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.memory": "512m",
    "spark.executor.memory": "512m",
    "spark.executor.cores": "1",
    "spark.cores.max": "2",
    "spark.pyspark.python": sys.executable,
    "spark.sql.shuffle.partitions": "2",
}


@pytest.mark.spark
@pytest.mark.soak
def test_relative_paths_are_below_the_directory_of_the_driver(cluster: StandaloneCluster, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    (driver / INPUT).mkdir(parents=True)
    parts = payments()
    for number, part in enumerate(parts):
        pq.write_table(pa.table(part), driver / INPUT / f"part-{number:03d}.parquet")
    done = subprocess.run(
        [sys.executable, "-m", "tests.spark.stages.relative_paths"],
        env=child_environment(tmp_path, SPARK_CONF=json.dumps({**CONF, "spark.master": cluster.master})),
        cwd=driver,
        capture_output=True,
        text=True,
        check=False,
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    files = sorted((driver / OUTPUT).glob("part-*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    assert sorted(rows, key=repr) == running(parts)
    assert list((driver / CHECKPOINTS).rglob("_metadata"))
    assert list((driver / OUTPUT).rglob("*.staged")) == []
    # What executors leave in their own directories is Spark's alone.
    assert [path for name in (OUTPUT, CHECKPOINTS) for path in cluster.folder.rglob(name)] == []


SPECULATING = {
    **CONF,
    "spark.app.name": "statecheck-speculation",
    "spark.speculation": "true",
    "spark.speculation.interval": "100ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "200ms",
}


UNDISTURBED, LINGERING = "nothing in one increment", "linger in sink of one increment"


@pytest.mark.spark
@pytest.mark.soak
def test_copy_that_wins_is_counted_and_the_lagging_task_is_not(cluster: StandaloneCluster, tmp_path: Path) -> None:
    conf = {**SPECULATING, "spark.master": cluster.master}
    results = results_of("tests.spark.stages.repeated_tasks", tmp_path, [UNDISTURBED, LINGERING], conf)
    undisturbed, found = results[UNDISTURBED], results[LINGERING]
    assert found["rows"] == undisturbed["rows"]
    assert found["state"] == undisturbed["state"]
    [lost], [won] = found["lost"], found["won"]
    assert {lost["host"], won["host"]} == {"127.0.0.2", "127.0.0.3"}
    assert lost["staged"]
    assert lost["state"]
    assert committed_of(lost["staged"], found["committed"]) == []
    assert len(committed_of(won["staged"], found["committed"])) == len(won["staged"]) > 0
    assert not {f"file://{path}" for path in lost["state"]} & {*found["named"], *found["there"]}
    assert found["staged"] == []


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.parametrize("reader", ["files", "rows"])
def test_record_of_a_copy_or_of_the_lagging_task_counts_and_not_both(
    cluster: StandaloneCluster, tmp_path: Path, reader: str
) -> None:
    ways = [f"{reader}: nothing", f"{reader}: linger"]
    conf = {**SPECULATING, "spark.master": cluster.master}
    results = results_of("tests.spark.stages.repeated_splits", tmp_path, ways, conf)
    undisturbed, found = results.values()
    assert found["rows"] == undisturbed["rows"]
    assert found["state"] == undisturbed["state"]
    [lost] = found["lost"]
    assert {lost["host"], *(each["host"] for each in found["won"])} == {"127.0.0.2", "127.0.0.3"}
    assert set(found["there"]) == set(found["named"])
