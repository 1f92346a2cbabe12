"""Drivers in a network namespace of their own, which reach the checkpoint storage and nothing else."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.standalone_cluster import SPARK_HOME
from tests.submit.conftest import Pipeline

ISOLATED = """#!/bin/sh
exec unshare -n sh -c 'ip link set lo up; cat /proc/net/dev > {work}/devices; exec "$@"' x {submit} "$@"
"""
CAN_ISOLATE = os.geteuid() == 0 and shutil.which("unshare") is not None and shutil.which("ip") is not None
RESUMED = ["numbers", "item a", "item b", "item b", "item c"]

pytestmark = pytest.mark.skipif(not CAN_ISOLATE, reason="network namespaces need root, unshare and ip")


class IsolatedPipeline(Pipeline):
    """One task whose spark-submit has the loopback device only, and no way to the coordinator."""

    def _operator(self) -> dict[str, Any]:
        return {**super()._operator(), "transport": "mailbox"}

    def _environment(self) -> dict[str, str]:
        bin_folder = self.work / "bin"
        bin_folder.mkdir(exist_ok=True)
        script = bin_folder / "spark-submit"
        script.write_text(ISOLATED.format(work=self.work, submit=SPARK_HOME / "bin" / "spark-submit"))
        script.chmod(0o755)
        found = super()._environment()
        return {**found, "PATH": f"{bin_folder}{os.pathsep}{found['PATH']}"}

    def devices(self) -> list[str]:
        """Return the network devices that the driver had."""
        lines = (self.work / "devices").read_text().splitlines()
        return [line.partition(":")[0].strip() for line in lines if ":" in line]

    def mail(self) -> list[Path]:
        """Return what is left of mailboxes."""
        return [path for path in (self.work / "checkpoints").rglob("*") if "mail" in path.parts and path.is_file()]


def test_driver_without_a_network_that_is_killed_goes_on_in_its_retry(pipeline) -> None:
    stage: IsolatedPipeline = pipeline("local", "kill driver", IsolatedPipeline)
    assert stage.run() != 0
    first = stage.output
    assert stage.run() == 0, stage.output
    assert stage.devices() == ["lo"]
    assert stage.computed() == RESUMED
    assert (stage.work / "result").read_text() == "300"
    attempts = stage.job().attempts
    assert [a.status for a in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from == 2
    assert "retains checkpoint 2: 1 snapshot, 1 finished item" in first
    assert stage.mail() == []
