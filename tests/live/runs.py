"""One Dag run of a live test and the folder through which the test steers it."""

from __future__ import annotations

import json
import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from airflow_provider_statecheck.checkpoint.records import AttemptRecord
from airflow_provider_statecheck.checkpoint.store import JobView
from tests.live.deployment import Deployment
from tests.live.rest import wait_until

TASK = "work"
_ENDED = ("success", "failed")


@dataclass(frozen=True, slots=True)
class Pids:
    """The processes of a try: they are the tests' own, and each may be killed."""

    task: int
    driver: int
    """The process with Spark's session, which is the task itself unless it was submitted."""
    jvm: int
    supervisor: int


class StageRun:
    """A run of a Dag of ``dags/``."""

    def __init__(self, deployment: Deployment, dag_id: str, run_id: str) -> None:
        self.deployment = deployment
        self.dag_id = dag_id
        self.run_id = run_id
        self.logical_date = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(days=deployment.next_number())
        self.folder = deployment.folder / "control" / run_id
        self.folder.mkdir(parents=True)

    @property
    def conf(self) -> dict[str, str]:
        """What the Dag run is triggered with."""
        return {"control": str(self.folder)}

    def trigger(self) -> None:
        self.deployment.api.trigger(self.dag_id, self.run_id, self.logical_date.isoformat(), self.conf)

    def steer(self, name: str, text: str, part: str = "") -> None:
        """Write a file of the control folder."""
        folder = self.folder / part
        folder.mkdir(exist_ok=True)
        hidden = folder / f".{name}"
        hidden.write_text(text)
        hidden.rename(folder / name)

    def release(self, how: str = "go on") -> None:
        """Let a stage that stopped go on; ``fail`` lets it fail."""
        self.steer("release", how)

    def wait_for_stop(self) -> Pids:
        """Wait until the stage stands at its item."""
        return Pids(**self._stopped())

    def wait_for_end(self) -> str:
        """Wait until the run has ended and return how."""
        wait_until(f"the end of {self.run_id}", self._has_ended)
        return self.deployment.api.run_state(self.dag_id, self.run_id)

    def wait_for_closed_attempt(self) -> AttemptRecord:
        """Wait until the first attempt has said that it ended."""

        def closed() -> AttemptRecord | None:
            first = self.job().attempts[0]
            return first if first.ended_at is not None else None

        return wait_until(f"the end of the first attempt of {self.run_id}", closed)

    def wait_for_log(self, text: str, times: int, number: int = 1) -> None:
        """Wait until a try has said something so often."""
        wait_until(f"{times} times {text!r} in the log of {self.run_id}", lambda: self.log(number).count(text) >= times)

    def clear(self, task_id: str = TASK) -> None:
        self.deployment.api.clear(self.dag_id, self.run_id, [task_id])

    def mark_failed(self) -> None:
        self.deployment.api.mark_failed(self.dag_id, self.run_id, TASK)

    def result(self, map_index: int = -1) -> Any:
        return self.deployment.api.result(self.dag_id, self.run_id, TASK, map_index)

    def tries(self) -> int:
        """Return the highest try number of all its tasks."""
        return max(int(ti["try_number"]) for ti in self.deployment.api.tasks(self.dag_id, self.run_id))

    def computed(self, part: str = "") -> list[str]:
        """Return what was really computed so far, over all tries."""
        log = self.folder / part / "computed.log"
        return log.read_text().splitlines() if log.exists() else []

    def error(self) -> str:
        """Return how the last stage that failed ended."""
        said = self.folder / "error.txt"
        return said.read_text() if said.exists() else ""

    def job(self) -> JobView:
        return self.deployment.job(f"{self.dag_id}/{self.logical_date.isoformat()}")

    def rows(self) -> tuple[object, ...]:
        """Return the rows of the job, whenever they are read."""
        view = self.job()
        return view.job, view.operators, view.attempts, view.checkpoints

    def files(self) -> list[str]:
        """Return the files of all checkpoints."""
        folder = self.deployment.folder / "checkpoints"
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())

    def log(self, number: int) -> str:
        """Return what a try said, from the file, for the API may be down."""
        folder = self.deployment.folder / "home" / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        files = [f for f in folder.rglob(f"attempt={number}.log") if f"task_id={TASK}" in f.parts]
        return "\n".join(file.read_text() for file in files)

    def story(self) -> str:
        """Return what helps to understand a failed test."""
        logs = [f"--- try {n}\n{_events(self.log(n))}" for n in range(1, 5) if self.log(n)]
        return "\n".join([f"computed: {self.computed()}", f"error: {self.error()}", *logs])

    def _stopped(self) -> dict[str, int]:
        marker = self.folder / "stopped.json"
        wait_until(f"{self.run_id} to stop", lambda: marker.exists() or self._has_ended())
        assert marker.exists(), f"{self.run_id} ended before it stopped"
        return dict(json.loads(marker.read_text()))

    def _has_ended(self) -> bool:
        # A scheduler that lost its database ends later than the database is back.
        return self.deployment.keep_running() and self.deployment.api.run_state(self.dag_id, self.run_id) in _ENDED


def _events(log: str) -> str:
    entries = [json.loads(line) for line in log.splitlines() if line.startswith("{")]
    return "\n".join(f"{entry['timestamp']} {entry['level']} {entry['event']}" for entry in entries)


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)


def is_alive(pid: int) -> bool:
    """Tell whether a process runs; one that ended and that nobody waits for does not."""
    import psutil

    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
