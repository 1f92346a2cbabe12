"""Drivers that a service starts: real ones, with ``spark-submit``, in a network that has the loopback device only."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from tests.standalone_cluster import SPARK_HOME, daemon_environment

LIMIT_SECONDS = 120
_ALONE = ("unshare", "-n", "sh", "-c", 'ip link set lo up; exec "$@"', "x")
_CLUSTER = {
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""Properties of the cluster, which those of a job replace."""
_OF_CLUSTERS = ("--master", "--deploy-mode")
"""Options that this machine cannot have: a service names its own."""


class DriverState(StrEnum):
    """What became of a driver."""

    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"


@dataclass
class SubmittedDrivers:
    """Drivers by number, each with its log; a number outlives the processes that run for it."""

    work: Path
    program: Sequence[str] = (*_ALONE, str(SPARK_HOME / "bin" / "spark-submit"))
    """What starts them."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    _drivers: dict[int, _Driver] = field(default_factory=dict)

    def start(self, words: Sequence[str], python_path: Sequence[Path] = ()) -> int:
        """
        Start a driver and return its number.

        :param words: What comes after ``spark-submit``.
        :param python_path: Folders with packages that the service has installed for it.
        """
        number = next(self._numbers)
        self._drivers[number] = _Driver(
            self.work / f"driver-{number}.log", [*self.program, *_on_this_machine(words)], python_path
        )
        self._drivers[number].start()
        return number

    def state(self, number: int) -> DriverState:
        """Return the state of a driver."""
        return self._drivers[number].state

    def has_ended(self, number: int) -> bool:
        """Return whether a driver has ended, in whatever way."""
        return self.state(number) is not DriverState.RUNNING

    def cancel(self, number: int) -> None:
        """End a driver as its service does when it is told to."""
        self._drivers[number].end(signal.SIGTERM)
        self._drivers[number].is_cancelled = True

    def kill(self, number: int) -> None:
        """Let a driver die, as one whose machine is lost."""
        self._drivers[number].end(signal.SIGKILL)

    def replace(self, number: int) -> None:
        """Let a driver die whose platform starts it again before anyone sees it."""
        self._drivers[number].replace()

    def running(self) -> list[int]:
        """Return the drivers that run."""
        return [number for number in self._drivers if self.state(number) is DriverState.RUNNING]

    def log(self, number: int) -> str:
        """Return what a driver has written, over all its processes."""
        return self._drivers[number].log.read_text()

    def close(self) -> None:
        """End what still runs."""
        for driver in self._drivers.values():
            driver.end(signal.SIGKILL)


@dataclass
class _Driver:
    log: Path
    words: Sequence[str]
    python_path: Sequence[Path]
    is_cancelled: bool = False
    _process: subprocess.Popen[bytes] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self) -> None:
        assert self._process is None or self._process.poll() is not None, "It is running."
        environment = daemon_environment() | {
            "PYSPARK_PYTHON": sys.executable,
            "PYTHONPATH": os.pathsep.join(map(str, self.python_path)),
            "JDK_JAVA_OPTIONS": os.environ.get("JDK_JAVA_OPTIONS", ""),
        }
        with self.log.open("ab") as output:
            self._process = subprocess.Popen(
                self.words,
                stdout=output,
                stderr=subprocess.STDOUT,
                cwd=self.log.parent,
                env=environment,
                start_new_session=True,
            )

    def replace(self) -> None:
        with self._lock:
            assert self._process is not None
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(LIMIT_SECONDS)
            self.start()

    @property
    def state(self) -> DriverState:
        assert self._process is not None
        with self._lock:
            status = self._process.poll()
        if status is None:
            return DriverState.RUNNING
        if self.is_cancelled:
            return DriverState.CANCELLED
        return DriverState.SUCCEEDED if status == 0 else DriverState.FAILED

    def end(self, with_signal: signal.Signals) -> None:
        assert self._process is not None
        if self.state is DriverState.RUNNING:
            os.killpg(self._process.pid, with_signal)
            self._process.wait(LIMIT_SECONDS)


def words_of(
    script: str,
    arguments: Sequence[object] = (),
    conf: dict[str, object] | None = None,
    py_files: Sequence[str] = (),
) -> list[str]:
    """Return the words after ``spark-submit`` of a job that has each of them in a place of its own."""
    settings = [word for name, value in (conf or {}).items() for word in ("--conf", f"{name}={value}")]
    files = ["--py-files", ",".join(py_files)] if py_files else []
    return [*settings, *files, script, *map(str, arguments)]


def _on_this_machine(words: Sequence[str]) -> list[str]:
    given = iter(words)
    kept = [word for word in given if word not in _OF_CLUSTERS or next(given) is None]
    settings = [word for name, value in _CLUSTER.items() for word in ("--conf", f"{name}={value}")]
    return ["--master", "local[2]", "--driver-memory", "512m", *settings, *kept]
