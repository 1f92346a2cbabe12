"""Airflow installation for the Dags of R1 and R3, with the kill of a driver."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from datetime import date, timedelta
from pathlib import Path
from typing import Protocol

import psutil

from benchmarks.r1_job import FILES, MARKS, OUTPUT
from benchmarks.r1_marks import END, TRY, Mark, marks_in

HERE = Path(__file__).parent
FIRST_DAY = date(2026, 1, 1)
SPARK_FILES = "spark"
_PAUSE_SECONDS = 0.05


class KillMoment(Protocol):
    """Moment in a run at which its driver is killed."""

    def is_over(self, file: Path) -> bool:
        """Return whether a running program with this file of marks has passed the moment."""


@dataclass(frozen=True, slots=True)
class Run:
    """Result of a Dag run."""

    marks: list[Mark]
    output: Path

    @property
    def seconds(self) -> float:
        """The time from the start of the first try to the end of the work."""
        return self._last(END) - next(each.at for each in self.marks if each.name == TRY)

    @property
    def is_retried(self) -> bool:
        """Whether there was a second try."""
        return [each.name for each in self.marks].count(TRY) > 1

    @property
    def last_try(self) -> float:
        """The time from the start of the last try to the end of the work."""
        return self._last(END) - self._last(TRY)

    def _last(self, name: str) -> float:
        return [each.at for each in self.marks if each.name == name][-1]


class PrivateAirflow:
    """
    Airflow with a separate database.

    :param work: Folder for the database, the checkpoints and the output.
    :param dags: Folder with the Dags.
    """

    def __init__(self, work: Path, dags: Path = HERE / "r1_dags") -> None:
        self._work = work
        self._dags = dags
        self._runs = 0
        self._log = work / "airflow.log"
        work.mkdir(parents=True, exist_ok=True)
        self._finish(self._start("db", "migrate"))

    def run(self, dag: str, files: Path, kill_at: KillMoment | None = None) -> Run:
        """
        Run a Dag until it ends.

        :param dag: Id of the Dag.
        :param files: Folder with the input.
        :param kill_at: Moment at which the driver is killed with SIGKILL, unless its work ends earlier.
        :raises RuntimeError: if the run failed.
        """
        self._runs += 1
        folder = self._work / f"run-{self._runs}"
        folder.mkdir()
        marks, output = folder / "marks", folder / "output"
        day = FIRST_DAY + timedelta(days=self._runs)
        places = {FILES: files, OUTPUT: output, MARKS: marks}
        process = self._start("dags", "test", dag, day.isoformat(), places=places)
        try:
            if kill_at is not None:
                self._kill_driver(process, kill_at, marks)
            self._finish(process)
        finally:
            _end(process)
        for folder_name in ("checkpoints", SPARK_FILES):
            shutil.rmtree(self._work / folder_name, ignore_errors=True)
        return Run(marks_in(marks), output)

    def _kill_driver(self, process: subprocess.Popen[bytes], moment: KillMoment, marks: Path) -> None:
        while not moment.is_over(marks):
            if process.poll() is not None:
                return
            time.sleep(_PAUSE_SECONDS)
        if END in {each.name for each in marks_in(marks)}:
            return
        found = [each for each in psutil.Process(process.pid).children(recursive=True) if each.name() == "java"]
        if len(found) != 1:
            raise RuntimeError(f"Expected one running driver at {moment}, found {found}; see {self._log}.")
        os.kill(found[0].pid, signal.SIGKILL)

    def _start(self, *arguments: str, places: dict[str, Path] | None = None) -> subprocess.Popen[bytes]:
        with self._log.open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-m", "airflow", *arguments],
                cwd=self._work,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env=self._environment() | {name: str(place) for name, place in (places or {}).items()},
            )

    def _finish(self, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        if status != 0:
            last = self._log.read_text(errors="replace")[-2000:]
            raise RuntimeError(f"Expected Airflow's command to succeed, found exit status {status}: {last}")

    def _environment(self) -> dict[str, str]:
        # Settings of the caller's Airflow must not affect this one.
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
        return inherited | {
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": str(HERE.parent),
            "PYSPARK_PYTHON": sys.executable,
            "AIRFLOW_HOME": str(self._work / "airflow"),
            "AIRFLOW__CORE__DAGS_FOLDER": str(self._dags),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__STATECHECK__CHECKPOINT_DIR": (self._work / "checkpoints").as_uri(),
            # A killed driver does not delete its shuffle files.
            "SPARK_LOCAL_DIRS": str(self._work / SPARK_FILES),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
        }


def _end(process: subprocess.Popen[bytes]) -> None:
    # A failed run must not continue during the next one.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
