"""Driver of a peer of R3 without Airflow, which is started again as soon as it is killed."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from benchmarks.r1_airflow import KillMoment, Run
from benchmarks.r1_marks import END, TRY, mark, marks_in
from benchmarks.side import ROOT

_PAUSE_SECONDS = 0.05
_QUIET = {
    "DAFT_ANALYTICS_ENABLED": "0",
    "DAFT_PROGRESS_BAR": "0",
    "RAY_AUTH_MODE": "disabled",
    "RAY_USAGE_STATS_ENABLED": "0",
}


class RestartedDriver:
    """
    Program that continues its work after it was killed.

    :param module: Module to run, with the folders of the input, the output and the checkpoint and the file of the
        marks.
    :param python: Interpreter.
    :param work: Folder for the runs.
    """

    def __init__(self, module: str, python: str, work: Path) -> None:
        self._command = [python, "-W", "ignore", "-m", module]
        self._work = work
        self._log = work / "driver.log"
        self._runs = 0
        work.mkdir(parents=True, exist_ok=True)

    def run(self, files: Path, kill_at: KillMoment | None = None) -> Run:
        """
        Run the program until it ends.

        :param files: Folder with the input.
        :param kill_at: Moment at which the first try is killed with SIGKILL, unless its work ends earlier.
        :raises RuntimeError: if the last try failed.
        """
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        output, checkpoint, marks = folder / "output", folder / "checkpoint", folder / "marks"
        arguments = [str(place) for place in (files, output, checkpoint, marks)]
        if kill_at is not None:
            with self._started(arguments, marks) as process:
                if not _is_over(process, kill_at, marks):
                    self._finish(process)
        if END not in {each.name for each in marks_in(marks)}:
            with self._started(arguments, marks) as process:
                self._finish(process)
        return Run(marks_in(marks), output)

    @contextmanager
    def _started(self, arguments: list[str], marks: Path) -> Iterator[subprocess.Popen[bytes]]:
        """Start a try; at the end, kill what still runs of it."""
        # Ray needs a short path for its sockets.
        with (
            tempfile.TemporaryDirectory(prefix="r3-", ignore_cleanup_errors=True) as sockets,
            self._log.open("ab") as log,
        ):
            mark(str(marks), TRY)
            environment = os.environ | _QUIET | {"PYTHONPATH": str(ROOT), "RAY_TMPDIR": sockets}
            process = subprocess.Popen([*self._command, *arguments], cwd=ROOT, stdout=log, stderr=log, env=environment)
            try:
                yield process
            finally:
                _kill(process)

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if status != 0:
            last = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Expected the driver to succeed, found exit status {status}: {last}")


def _is_over(process: subprocess.Popen[bytes], moment: KillMoment, marks: Path) -> bool:
    """Wait for the moment, and return whether the process is still running."""
    while process.poll() is None:
        if moment.is_over(marks):
            return True
        time.sleep(_PAUSE_SECONDS)
    return False


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the driver, and then its workers, which would slow down the next try."""
    started: list[psutil.Process] = []
    with suppress(psutil.NoSuchProcess):
        started = psutil.Process(process.pid).children(recursive=True)
    process.kill()
    process.wait()
    for each in started:
        with suppress(psutil.NoSuchProcess):
            each.kill()
    psutil.wait_procs(started)
