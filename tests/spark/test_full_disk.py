"""A disk that is really full: the try ends with an error that says so, and the retry goes on from what was kept."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.spark.conftest import child_environment

UNSHARE = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--mount", "--map-root-user"]

STAGE = """
import json, os, sys
from pathlib import Path

from airflow_provider_statecheck.exceptions import StorageError
from airflow_provider_statecheck.spark.context import StageContext
from tests.sessions import start_session

disk, rows = Path(os.environ["DISK"]), int(sys.argv[1])
spark = start_session(json.loads(os.environ["SPARK_CONF"]))
spark.sparkContext.setLogLevel("OFF")
computed, report = [], {}


def run():
    with StageContext.open(spark, job="full", checkpoint_dir=f"{disk}/checkpoints", metadata=os.environ["DB"]) as checkpoint:
        def first():
            computed.append("first")
            return spark.range(5).coalesce(1)

        def second():
            computed.append("second")
            return spark.range(rows).selectExpr("id", "uuid() AS text")

        checkpoint.snapshot("first", first)
        return checkpoint.snapshot("second", second).count()


try:
    report["count"] = run()
except StorageError as error:
    report["error"] = str(error)
    report["has_cause"] = error.__cause__ is not None
report["computed"] = computed
report["used"] = sum(path.stat().st_size for path in disk.rglob("*") if path.is_file())
report["snapshots"] = sorted(path.parts[-3].partition("-")[0] for path in disk.rglob("_manifest"))
print(json.dumps(report))
"""
TRIES = """
mount -t tmpfs -o size=80m statecheck "$DISK" && "$0" "$1" 5000000 && "$0" "$1" 1000
"""


def can_mount() -> bool:
    if shutil.which("unshare") is None:
        return False
    probe = [*UNSHARE, "mount", "-t", "tmpfs", "statecheck", "/mnt"]
    return subprocess.run(probe, capture_output=True, check=False).returncode == 0


@pytest.mark.soak
@pytest.mark.skipif(not can_mount(), reason="needs the right to mount a filesystem in a namespace of its own")
def test_a_disk_that_fills_up_ends_the_try_cleanly_and_the_retry_restores(tmp_path):
    # A try is a process: what Spark failed to write is free again when the JVM that held it open has ended.
    failed, retry = run_on_small_disk(tmp_path)
    assert "no space left on device" in failed["error"]
    assert "py4j" not in failed["error"].lower()
    assert not failed["has_cause"]
    assert failed["computed"] == ["first", "second"]
    # What was half written is gone, the step before it is not.
    assert failed["snapshots"] == ["first"]
    assert failed["used"] < 100_000
    assert (retry["computed"], retry["count"]) == (["second"], 1000)
    assert retry["snapshots"] == ["first", "second"]


def run_on_small_disk(tmp_path: Path) -> list[Any]:
    script, disk = tmp_path / "stage.py", tmp_path / "disk"
    script.write_text(STAGE)
    disk.mkdir()
    done = subprocess.run(
        [*UNSHARE, "sh", "-c", TRIES, sys.executable, str(script)],
        env=child_environment(tmp_path, DISK=str(disk), DB=f"sqlite:///{tmp_path}/state.db"),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
