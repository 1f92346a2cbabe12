"""Disks that are full or read-only: the error of the system with its path, and no part of a file."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak import rest_in_soak

ROOT = Path(__file__).parents[4]
_SMALL = ["unshare", "-rm", "sh", "-c", 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"', "sh"]
_WRITE = """
import os, subprocess, sys, tempfile
from pathlib import Path

import pyarrow as pa

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.testing.sink_attempts import SinkAttempt

disk, other, kind = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
rows = pa.table({"value": [os.urandom(3_000_000)]})
tempfile.tempdir = str(disk)


def sink():
    if kind == "parquet":
        from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
        return ParquetSink(str(disk / "parquet"), compression="none")
    from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
    from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
    from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
    if kind == "delta":
        return DeltaSink(str(disk / "delta"), compression="none")
    if kind == "sql":
        return SqlSink(f"sqlite:///{other}/rows.db", "rows", staging=str(disk / "staging"))
    from tests.unit.spark.connectors.iceberg.tables import TABLE, create_table, properties_in
    create_table(other, rows.schema, properties={"write.data.path": f"file://{disk}/iceberg"})
    return IcebergSink(TABLE, properties=properties_in(other))


def spill():
    from airflow_provider_statecheck.state.arrow.state_runs import LocalSpill
    stream = LocalSpill().open_stream()
    try:
        stream.write(os.urandom(3_000_000))
        stream.close_and_get_handle()
    finally:
        stream.close()


attempt = None if kind == "spill" else SinkAttempt(sink(), 1, schema=rows.schema).open()
before = {path for path in disk.rglob("*") if path.is_file()}
for what in ("full", "read-only"):
    if what == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    try:
        spill() if attempt is None else attempt.write_table(rows)
    except StorageError as error:
        print(error)
    print([str(path) for path in disk.rglob("*") if path.is_file() and path not in before])
"""


def _can_mount(folder: Path) -> bool:
    if shutil.which("unshare") is None:
        return False
    return subprocess.run([*_SMALL, str(folder), "true"], capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("kind", rest_in_soak(("parquet", "delta", "iceberg", "sql", "spill"), "parquet"))
def test_a_full_or_read_only_disk_is_told_with_its_path_and_keeps_no_part_of_a_file(tmp_path, kind):
    disk, other = tmp_path / "disk", tmp_path / "other"
    disk.mkdir()
    other.mkdir()
    if not _can_mount(disk):
        pytest.skip("mount namespaces are not allowed here")
    command = [*_SMALL, str(disk), sys.executable, "-W", "ignore", "-c", _WRITE, str(disk), str(other), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    full, left, read_only, left_again = done.stdout.splitlines()
    assert str(disk) in full
    assert "No space left on device" in full
    assert str(disk) in read_only
    assert "Read-only file system" in read_only
    assert left == left_again == "[]"
