"""Drivers in a network namespace of their own, which reach the checkpoint storage and nothing else."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pyspark
import pytest

from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from tests.isolated_network import CAN_ISOLATE, WHY_NOT
from tests.packaging.environment import Environment
from tests.standalone_cluster import SPARK_HOME
from tests.submit.conftest import Pipeline

ISOLATED = """#!/bin/sh
exec unshare -n sh -c 'ip link set lo up; cat /proc/net/dev > {work}/devices; exec "$@"' x {submit} "$@"
"""
BARE = """#!/bin/sh
unset PYTHONPATH SPARK_HOME
export PYSPARK_PYTHON={python} PYSPARK_DRIVER_PYTHON={python}
exec unshare -n sh -c 'ip link set lo up; exec "$@"' x {submit} "$@"
"""
RESUMED = ["numbers", "item a", "item b", "item b", "item c"]

pytestmark = pytest.mark.skipif(not CAN_ISOLATE, reason=WHY_NOT)


class MailboxPipeline(Pipeline):
    """One task whose driver calls through a mailbox."""

    def _operator(self) -> dict[str, Any]:
        return {**super()._operator(), "transport": "mailbox"}

    def mail(self) -> list[Path]:
        """Return what is left of mailboxes."""
        return [path for path in (self.work / "checkpoints").rglob("*") if "mail" in path.parts and path.is_file()]

    def waiting(self, verb: str) -> bool:
        """Return whether a call waits for its answer."""
        texts = {path.name: path.read_text() for path in self.mail() if path.parent.name == "calls"}
        answered = {path.name for path in self.mail() if path.parent.name == "answers"}
        return any(f'"{verb}"' in text for name, text in texts.items() if name not in answered)


class IsolatedPipeline(MailboxPipeline):
    """One task whose spark-submit has the loopback device only, and no way to the coordinator."""

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


class BarePipeline(IsolatedPipeline):
    """One task whose driver and executors have Spark, PyArrow and fsspec, and no other package."""

    machine: Environment

    def _environment(self) -> dict[str, str]:
        found = super()._environment()
        python = self.machine.python
        script = BARE.format(python=python, submit=python.with_name("spark-submit"))
        (self.work / "bin" / "spark-submit").write_text(script)
        return found


class SupervisedPipeline(MailboxPipeline):
    """One task whose driver runs in a cluster that starts it again."""

    drivers_of_a_try = 2

    def _operator(self) -> dict[str, Any]:
        found = super()._operator()
        return {**found, "conf": {**found["conf"], "spark.driver.supervise": "true"}}


def has_ended(pid: int) -> bool:
    """Return whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


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


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    machine = Environment(tmp_path_factory.mktemp("machine"))
    machine.install(f"pyspark=={pyspark.__version__}", "pyarrow", "fsspec")
    return machine


@pytest.mark.soak
@pytest.mark.parametrize("trouble", ["kill driver", "fail"])
def test_driver_with_three_packages_goes_on_in_its_retry(pipeline, machine: Environment, trouble: str) -> None:
    installed = machine.run(
        "from importlib.metadata import distributions\nprint(*sorted(each.name.lower() for each in distributions()))"
    )
    assert installed.split() == ["fsspec", "py4j", "pyarrow", "pyspark"]
    stage: BarePipeline = pipeline("local", trouble, BarePipeline)
    stage.machine = machine
    assert stage.run() != 0
    assert stage.run() == 0, stage.output
    assert stage.computed() == RESUMED
    assert (stage.work / "result").read_text() == "300"
    assert ".zip/airflow_provider_statecheck/" in (stage.work / "package").read_text()
    attempts = stage.job().attempts
    assert [a.status for a in attempts] == [AttemptStatus.FAILED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from == 2
    assert stage.mail() == []


@pytest.mark.soak
def test_task_that_dies_leaves_a_driver_whose_calls_the_retry_carries_out_before_it_submits_again(pipeline) -> None:
    """A driver in client mode that outlives its task: what it has written is kept, and then it is shut out."""
    stage: IsolatedPipeline = pipeline("local", "wait", IsolatedPipeline)
    task = stage.start()
    stage.wait_until((stage.work / "trouble-a").exists)
    driver = int((stage.work / "trouble-a").read_text())
    os.kill(task.pid, signal.SIGKILL)
    stage.finish(task)
    stage.go("a")
    stage.wait_until(lambda: stage.waiting("trigger"))

    retry = stage.start()
    stage.go("b", "c")
    assert stage.finish(retry) == 0, stage.output
    assert "of the driver of the earlier try." in stage.output
    stage.wait_until(lambda: has_ended(driver))
    assert (stage.work / "result").read_text() == "300"
    assert [a.status for a in stage.job().attempts] == [AttemptStatus.FENCED, AttemptStatus.FINISHED]


@pytest.mark.soak
def test_driver_that_spark_starts_again_restores_within_one_try(pipeline, cluster) -> None:
    stage: SupervisedPipeline = pipeline("cluster", "kill driver", SupervisedPipeline)
    assert stage.run() == 0, stage.output
    assert stage.computed() == RESUMED
    assert (stage.work / "result").read_text() == "300"
    attempts = stage.job().attempts
    assert [a.status for a in attempts] == [AttemptStatus.FENCED, AttemptStatus.FINISHED]
    assert attempts[1].restored_from == 2
    assert stage.mail() == []


@pytest.mark.soak
def test_task_that_is_told_to_end_closes_the_attempt_and_leaves_no_mailbox(pipeline) -> None:
    stage: IsolatedPipeline = pipeline("local", "wait", IsolatedPipeline)
    task = stage.start()
    stage.wait_until((stage.work / "trouble-a").exists)
    os.killpg(task.pid, signal.SIGTERM)
    assert stage.finish(task) != 0
    assert [a.status for a in stage.job().attempts] == [AttemptStatus.FAILED]
    assert stage.mail() == []
    stage.go("b", "c")
    assert stage.run() == 0, stage.output
