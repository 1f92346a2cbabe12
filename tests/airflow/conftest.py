from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore

ROOT = Path(__file__).parents[2]
LIMIT_SECONDS = 300


@dataclass
class Airflow:
    """Airflow's commands in processes of their own, over one folder for the stage's work."""

    home: Path
    work: Path
    output: str = ""
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *arguments: str, trouble: str | None = None) -> subprocess.Popen[str]:
        """Start a command."""
        return subprocess.Popen(
            [sys.executable, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.work,
            env=self._environment(trouble),
        )

    def finish(self, process: subprocess.Popen[str]) -> int:
        """Wait for a command and keep what it printed."""
        self.output, _ = process.communicate(timeout=LIMIT_SECONDS)
        return process.returncode

    def run(self, *arguments: str, trouble: str | None = None) -> int:
        """Run one of Airflow's commands and return its exit status."""
        return self.finish(self.start("-m", "airflow", *arguments, trouble=trouble))

    def test_dag(self, dag_id: str, date: str, *, trouble: str | None = None) -> int:
        """Run ``dag.test()`` and return 0 if its run succeeded."""
        return self.finish(self.start_dag_test(dag_id, date, trouble=trouble))

    def start_dag_test(self, dag_id: str, date: str, *, trouble: str | None = None) -> subprocess.Popen[str]:
        """Start ``dag.test()``."""
        return self.start(str(ROOT / "tests" / "airflow" / "run_dag.py"), dag_id, date, trouble=trouble)

    def computed(self) -> list[str]:
        """Return what was really computed so far, over all tries."""
        log = self.work / "computed.log"
        return log.read_text().splitlines() if log.exists() else []

    def job(self, name: str) -> JobView:
        """Return the rows of a job."""
        engine = create_engine(f"sqlite:///{self.home}/airflow.db")
        try:
            return SqlJobStore(engine).describe(job_id_of(name))
        finally:
            engine.dispose()

    def _environment(self, trouble: str | None) -> dict[str, str]:
        values = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "tests" / "airflow" / "dags"),
            "AIRFLOW__STATECHECK__CHECKPOINT_DIR": str(self.work / "checkpoints"),
            "STAGE_WORK": str(self.work),
        }
        return values | ({"STAGE_TROUBLE": trouble} if trouble else {}) | self.environment


@pytest.fixture
def airflow(airflow_db: Path, tmp_path: Path) -> Airflow:
    return Airflow(home=airflow_db, work=tmp_path)
