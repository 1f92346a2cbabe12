"""Dag runs whose driver has no network but reaches the checkpoint storage."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointStatus
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.isolated_network import IsolatedNetwork
from tests.live.deployment import Deployment
from tests.live.rest import wait_until
from tests.live.runs import TASK, Pids, StageRun
from tests.standalone_cluster import SPARK_HOME

APPLICATION = Path(__file__).with_name("isolated_application.py")

_PROGRAM = """#!/bin/sh
# The last argument is the control folder.
for control; do :; done
{exports}
if [ -e "$control/restarts" ]; then
    {submit} "$@" || {submit} "$@"  # as a platform does that starts an application again
    exit
fi
exec {submit} "$@"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """Where the checkpoints are."""

    name: str
    storage: CheckpointStorage
    variables: Mapping[str, str] = field(default_factory=dict)
    """Credentials in the environment of drivers."""


def write_submit_program(file: Path, network: IsolatedNetwork, lake: Lake) -> None:
    """Write a program that runs ``spark-submit`` in a network."""
    file.parent.mkdir(exist_ok=True)
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in lake.variables.items())
    submit = shlex.join(network.command(str(SPARK_HOME / "bin" / "spark-submit")))
    file.write_text(_PROGRAM.format(exports=exports, submit=submit))
    file.chmod(0o755)


class MailboxRun(StageRun):
    """A run of a Dag of ``dags/mailbox.py``; its driver stops at the last of its five parts."""

    def __init__(self, deployment: Deployment, dag_id: str, run_id: str, lake: Lake) -> None:
        super().__init__(deployment, dag_id, run_id)
        self._lake = lake
        self.steer("stops_at", "c")

    @property
    def conf(self) -> dict[str, str]:
        """What the Dag run is triggered with."""
        return {
            **super().conf,
            "application": str(APPLICATION),
            "checkpoint_dir": self._lake.storage.base_uri,
        }

    def wait_for_stop(self) -> Pids:
        """Wait until the driver stands at its item, and return its processes and those of its task."""
        driver = self._stopped()
        task = self._task()
        supervisor = psutil.Process(task["pid"]).ppid()
        return Pids(**driver, task=task["pid"], supervisor=supervisor)

    def wait_for_deferral(self) -> Pids:
        """Wait until the driver stands at its item while its task is deferred, and return its processes."""
        driver = self._stopped()
        wait_until(f"the deferral of {self.run_id}", lambda: self._task()["state"] == "deferred")
        return Pids(**driver, task=0, supervisor=0)

    def _task(self) -> dict[str, Any]:
        [task] = self.deployment.api.tasks(self.dag_id, self.run_id)
        return dict(task)

    def task_state(self) -> list[str]:
        """Return the keys of what the task remembers for its retries."""
        return self.deployment.api.task_state(self.dag_id, self.run_id, TASK)

    def outputs(self) -> list[Any]:
        """Return what the application has written as its result, each time."""
        return [json.loads(line) for line in self._noted("output.log")]

    def devices(self) -> list[str]:
        """Return the network devices of the driver."""
        return list(json.loads((self.folder / "devices.json").read_text()))

    def files(self) -> list[str]:
        """Return the files of the job."""
        job = self.job().job.job_id
        return sorted(self._lake.storage.list_files(f"{self._lake.storage.base_uri}/{job}"))

    def mail(self) -> list[str]:
        """Return what is left of mailboxes."""
        return [name for name in self.files() if name.startswith("mail/")]

    def checkpoints(self, status: CheckpointStatus) -> list[CheckpointRecord]:
        """Return the checkpoints with a status."""
        return [each for each in self.job().checkpoints if each.status is status]

    def wait_for_items(self, number: int) -> None:
        """Wait for a completed checkpoint with a number of finished items."""
        wait_until(
            f"a checkpoint of {self.run_id} with {number} items",
            lambda: any(each.counts["items"] == number for each in self.checkpoints(CheckpointStatus.COMPLETED)),
        )

    def _noted(self, name: str) -> list[str]:
        log = self.folder / name
        return log.read_text().splitlines() if log.exists() else []
