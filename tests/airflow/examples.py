"""The example Dags over a folder of small real data, run by one process for all tests that ask for it."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.airflow.example_data import make_data

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 300
SPARK = "--conf spark.ui.enabled=false --conf spark.sql.shuffle.partitions=2 --conf spark.default.parallelism=2"


@dataclass
class Examples:
    """
    Runs Dags of the folder ``dags`` with ``dag.test``.

    :param home: Airflow's home.
    :param work: The folder in which the Dags find ``data``.
    """

    home: Path
    work: Path

    def run(self, dag_id: str, date: str = "2026-01-01", *, failing: int = 0, **params: Any) -> str:
        """
        Run a Dag and return the state of its run.

        :param failing: Number of the increment, or of the part of a step, that fails in the first try; none does by
            default.
        :param params: What a user enters on the trigger form.
        """
        self.start(dag_id, date, failing=failing, **params)
        return self.end()

    def start(self, dag_id: str, date: str = "2026-01-01", *, failing: int = 0, **params: Any) -> None:
        """Start a run, as :meth:`run`."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{dag_id} {date}T00:00:00+00:00 {failing} {json.dumps(params)}\n")
        self._process.stdin.flush()

    def end(self) -> str:
        """Wait for the run that was started, and return its state."""
        self.wait_for(self._answers)
        return self._answers.readline().strip()

    def wait_for(self, readable: Any) -> None:
        """Wait until a file or a pipe has something to read."""
        ready, _, _ = select.select([readable], [], [], LIMIT_SECONDS)
        if not ready:
            self._process.kill()
            raise AssertionError(f"The run did not go on:\n{self.log}")

    def rows(self, output: str) -> list[dict[str, Any]]:
        """Return what a reader of a directory sees."""
        files = (self.data / output).rglob("part-*.parquet")
        return [row for file in files for row in pq.ParquetFile(file).read().to_pylist()]

    def table(self, query: str) -> list[dict[str, Any]]:
        """Return what a query of the warehouse gives."""
        engine = create_engine(f"sqlite:///{self.data}/warehouse.db")
        try:
            with engine.connect() as connection:
                return [dict(row) for row in connection.execute(text(query)).mappings()]
        finally:
            engine.dispose()

    def entered(self) -> set[str]:
        """Return the functions of the coordinator that the runs have entered."""
        return set((self.work / "entered.txt").read_text().splitlines())

    def statecheck(self, *arguments: str) -> str:
        """Run a command of ``airflow statecheck`` and return what it prints."""
        command = [sys.executable, "-m", "airflow", "statecheck", *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, cwd=self.work, env=self._environment(), check=False
        )
        assert done.returncode == 0, done.stderr
        return done.stdout + done.stderr

    def job(self, name: str) -> JobView:
        """Return the rows of a job of test runs."""
        engine = create_engine(f"sqlite:///{self.home}/airflow.db")
        try:
            return SqlJobStore(engine).describe(job_id_of(f"test/{name}"))
        finally:
            engine.dispose()

    @property
    def data(self) -> Path:
        """Return the folder that the Dags know as ``data``."""
        return self.work / "data"

    @property
    def log(self) -> str:
        """Return what the process printed so far."""
        return self._log.read_text()

    def close(self) -> None:
        """End the process, if it was started."""
        if "_process" in self.__dict__:
            self._process.communicate(timeout=60)
            self._answers.close()

    @property
    def _log(self) -> Path:
        return self.work / "examples.log"

    def prepare(self) -> None:
        """Write what the Dags read."""
        make_data(self.data)

    @cached_property
    def _process(self) -> subprocess.Popen[str]:
        self.prepare()
        reading, writing = os.pipe()
        with self._log.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, str(ROOT / "tests" / "airflow" / "example_runs.py"), str(writing)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                cwd=self.work,
                pass_fds=(writing,),
                env=self._environment(),
            )
        os.close(writing)
        self._answers = os.fdopen(reading)
        return process

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(self.work / "checkpoints"),
            "AIRFLOW__STATECHECK__SAVEPOINT_DIR": (self.work / "savepoints").as_uri(),
            "PYSPARK_SUBMIT_ARGS": f"{SPARK} pyspark-shell",
        }
