"""A stage with relative paths on a cluster, whose executors have other working directories than the driver."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.spark.conftest import child_environment
from tests.spark.stages.relative_paths import CHECKPOINTS, INPUT, OUTPUT
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
