"""Airflow's components, each a process in a session of its own, as a service manager would run them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import psutil

_GRACE_SECONDS = 20


class Component:
    """
    One of Airflow's commands that does not end by itself; what it says is kept in a file.

    :param python: Python of the environment in which Airflow is installed.
    """

    def __init__(
        self, arguments: tuple[str, ...], environment: dict[str, str], log: Path, python: str = sys.executable
    ) -> None:
        self.name = arguments[0]
        self.log = log
        self._command = [python, "-m", "airflow", *arguments]
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None
        self._sessions: set[int] = set()

    @property
    def pid(self) -> int:
        assert self._process is not None, f"{self.name} was not started"
        return self._process.pid

    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the component unless it runs."""
        if self.is_running():
            return
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                self._command, stdout=log, stderr=log, env=self._environment, start_new_session=True
            )
        self._sessions.add(self.pid)

    def signal_group(self, number: signal.Signals) -> None:
        """Signal all of its processes except tasks, which are groups of their own."""
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def stop(self) -> None:
        """End the component and whatever is left of it and of its tasks."""
        if self.is_running():
            os.kill(self.pid, signal.SIGTERM)
            self._wait()
        self.sweep()

    def sweep(self) -> None:
        """Kill what is left of its sessions, tasks included."""
        for pid in list(self._members()):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._wait()

    def _wait(self) -> None:
        if self._process is not None:
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_SECONDS)

    def _members(self) -> Iterator[int]:
        for pid in psutil.pids():
            with suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) in self._sessions:
                    yield pid
