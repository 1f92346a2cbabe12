"""A task with an operator of a service over its tries: workers, triggerers, and what the coordinator knows."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_provider_statecheck.checkpoint.store import JobView
from tests.served_rows import job_in
from tests.services.lost_work import LostWork
from tests.services.worker import DEFERRED

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 300
JOB = "dag/run"


@dataclass
class OperatedTask:
    """One task whose operator is made anew in each process."""

    work: Path
    url: str
    operator: str
    arguments: dict[str, Any]
    max_tries: int = 2
    _tries: int = 0
    _processes: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def run(self) -> int:
        """Run the next try to its end, through all its deferrals, and return the exit status of its last process."""
        status = self.end_of(self.start())
        while status == DEFERRED:
            assert self.end_of(self.defer()) == 0, self.log
            status = self.end_of(self.resume())
        return status

    def start(self) -> subprocess.Popen[bytes]:
        """Start a worker with the next try."""
        self._tries += 1
        return self._worker(is_resumed=False)

    def defer(self) -> subprocess.Popen[bytes]:
        """Start a triggerer with the trigger of the task."""
        (self.work / "triggerer").unlink(missing_ok=True)
        return self._started("tests.services.triggerer", str(self.work))

    def resume(self) -> subprocess.Popen[bytes]:
        """Start a worker with the task after its trigger has fired."""
        return self._worker(is_resumed=True)

    def end_of(self, process: subprocess.Popen[bytes]) -> int:
        """Return the exit status of a process."""
        return process.wait(LIMIT_SECONDS)

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """Let a process die, as with its machine."""
        os.kill(process.pid, signal.SIGKILL)
        self.end_of(process)

    @property
    def computed(self) -> list[str]:
        """Return what drivers have computed, over all tries."""
        return self._lines("computed.log")

    @property
    def lost(self) -> LostWork:
        """Return what drivers have computed again, over all tries."""
        return LostWork.of(self.computed, self._lines("pieces.log"))

    @property
    def job(self) -> JobView:
        """Return the rows of the job."""
        return job_in(self.work, JOB)

    @property
    def has_completed_an_item(self) -> bool:
        """Return whether a checkpoint with an item of the loop is complete."""
        return any(each.is_restorable and each.counts["items"] for each in self.job.checkpoints)

    @property
    def log(self) -> str:
        """Return what the processes have written."""
        return (self.work / "task.log").read_text()

    @property
    def mail(self) -> list[Path]:
        """Return the files of mailboxes."""
        return [each for each in (self.work / "checkpoints").glob("*/mail/**/*") if each.is_file()]

    def wait_until(self, what: Callable[[], Any]) -> None:
        """Wait until something is so."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not what():
            assert time.monotonic() < deadline, self.log
            time.sleep(0.1)

    def close(self) -> None:
        """End what still runs."""
        for process in self._processes:
            if process.poll() is None:
                self.kill(process)

    def _lines(self, name: str) -> list[str]:
        log = self.work / name
        return log.read_text().splitlines() if log.exists() else []

    def _worker(self, *, is_resumed: bool) -> subprocess.Popen[bytes]:
        request = {
            "operator": self.operator,
            "arguments": self.arguments,
            "try_number": self._tries,
            "max_tries": self.max_tries,
            "is_resumed": is_resumed,
        }
        return self._started("tests.services.worker", str(self.work), json.dumps(request))

    def _started(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        with (self.work / "task.log").open("ab") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", module, *arguments],
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=ROOT,
                env=self._environment(),
                start_new_session=True,
            )
        self._processes.append(process)
        return process

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
            "AIRFLOW_CONN_STATECHECK_DEFAULT": json.dumps({"conn_type": "statecheck", "host": self.url}),
        }
