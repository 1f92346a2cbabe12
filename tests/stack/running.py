"""The services of ``make up`` in a folder and on ports of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import create_engine
from sqlalchemy.pool import NullPool

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import StateCheckError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from scripts.stack.compose import ROOT, settings
from scripts.stack.supervision import Supervisor
from tests.live.rest import AirflowApi, wait_until
from tests.standalone_cluster import free_port

DRIVER, EXECUTOR = "org.apache.spark.deploy.SparkSubmit", "CoarseGrainedExecutorBackend"
_ENDED = ("success", "failed")


@dataclass
class RunningStack:
    """What a user has after ``make up``."""

    folder: Path
    variables: dict[str, str]
    api: AirflowApi = field(init=False)

    def __post_init__(self) -> None:
        self.api = AirflowApi(f"http://localhost:{self.variables['AIRFLOW_PORT']}")
        self.supervisor = Supervisor(self.folder)

    @property
    def data(self) -> Path:
        """The folder that the example Dags know as ``data``."""
        return self.folder / "data"

    def command(self, name: str) -> subprocess.CompletedProcess[str]:
        """Run ``make up``, ``status``, ``logs`` or ``down``."""
        command = [sys.executable, "-m", "scripts.stack", name, "--folder", str(self.folder)]
        environment = {**os.environ, **self.variables}
        return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def log_in(self) -> None:
        password = (self.folder / "secrets" / "admin_password").read_text().strip()
        self.api.log_in(self.variables["AIRFLOW_USER"], password)

    def start(self, dag_id: str, date: str = "2026-01-01", **conf: Any) -> Run:
        """Trigger a Dag that may be paused."""
        logical_date = datetime.fromisoformat(f"{date}T00:00:00+00:00")
        wait_until(f"the Dag {dag_id}", lambda: self.api.has_dag(dag_id))
        self.api.unpause(dag_id)
        run_id = f"test-{date}"
        self.api.trigger(dag_id, run_id, logical_date.isoformat(), conf)
        return Run(self, dag_id, run_id, f"{dag_id}/{logical_date.isoformat()}")

    def job(self, name: str) -> JobView | None:
        """Return the rows of a job, ``None`` before its first attempt."""
        password = (self.folder / "secrets" / "postgres_password").read_text()
        place = f"127.0.0.1:{self.variables['POSTGRES_PORT']}"
        engine = create_engine(f"postgresql+psycopg2://airflow:{password}@{place}/airflow", poolclass=NullPool)
        try:
            return SqlJobStore(engine).describe(job_id_of(name))
        except StateCheckError:
            return None

    def processes(self, kind: str) -> list[psutil.Process]:
        """Return the processes of the stack that a word of their command line names."""
        found = []
        for process in self.supervisor.left():
            try:
                if any(kind in word for word in process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    def kill(self, service: str) -> int:
        """Kill the process of a service and return its id."""
        pid = self.supervisor.process(service).pid
        psutil.Process(pid).kill()
        return pid

    def wait_for_another(self, service: str, pid: int) -> None:
        """Wait until a service that was killed is there again."""

        def is_back() -> bool:
            process = self.supervisor.process(service)
            return process.state == "RUNNING" and process.pid != pid

        wait_until(f"another {service}", is_back)


@dataclass(frozen=True)
class Run:
    """A run of a Dag with one task."""

    stack: RunningStack
    dag_id: str
    run_id: str
    job: str

    def wait_for_items(self, number: int) -> None:
        """Wait until a completed checkpoint has so many finished items."""

        def is_there() -> bool:
            view = self.stack.job(self.job)
            return view is not None and any(c.is_restorable and c.counts["items"] >= number for c in view.checkpoints)

        wait_until(f"{number} items of {self.job}", is_there)

    def wait_for_end(self) -> str:
        """Wait until the run has ended and return how."""

        def state() -> str | None:
            if not self.stack.api.is_up():  # it may have been killed
                return None
            found = self.stack.api.run_state(self.dag_id, self.run_id)
            return found if found in _ENDED else None

        return wait_until(f"the end of {self.dag_id}", state, limit=600)

    def view(self) -> JobView:
        found = self.stack.job(self.job)
        assert found is not None
        return found

    def log(self) -> str:
        """Return what all tries said."""
        folder = self.stack.folder / "airflow" / "logs" / f"dag_id={self.dag_id}" / f"run_id={self.run_id}"
        return "\n".join(file.read_text() for file in sorted(folder.rglob("attempt=*.log")))


@contextmanager
def running_stack(folder: Path) -> Iterator[RunningStack]:
    """Start everything, and end everything so that nothing is left."""
    ports = {name: str(free_port()) for name in settings() if name.endswith("_PORT")}
    stack = RunningStack(folder, settings(ports))
    done = stack.command("up")
    try:
        if done.returncode != 0:
            pytest.fail(f"up ended with {done.returncode}:\n{done.stdout}{done.stderr}", pytrace=False)
        stack.log_in()
        yield stack
    finally:
        stack.api.close()
        ended = stack.command("down")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert list(stack.supervisor.left()) == []
    assert not folder.exists()
