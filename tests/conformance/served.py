"""The process that serves the API, its clock and its callers, as a test holds them."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.declared_uids import DagTasks
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.gateway.http import HttpCalls, HttpClient
from airflow_provider_statecheck.gateway.verbs import retrying
from airflow_provider_statecheck.maintenance.actions import ALIGNED
from tests.conformance.api_process import DAGS_FILE, DATABASE_FILE, MAINTENANCE_DAG, RUNNING_FILE, SECRET
from tests.contracts.runs_of_a_job import CurrentDags, RunningTasks
from tests.messages import ManualClock

ROOT = Path(__file__).parents[2]


class ApiProcess:
    """
    The process that serves one folder after the other.

    :param port: Port to listen on; 0 for any free port.
    """

    def __init__(self, port: int = 0) -> None:
        command = [sys.executable, "-m", "tests.conformance.api_process", str(port)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.port = int(self._answer())
        self.url = f"http://127.0.0.1:{self.port}"

    def serve(self, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        assert self._answer() == "serving"

    def close(self) -> None:
        if self._process.poll() is None:
            self._process.communicate(timeout=30)

    def _answer(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()


class FolderClock(ManualClock):
    """Shows the server the time that the test set."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / "now"
        self.advance(0)

    def advance(self, seconds: float) -> None:
        super().advance(seconds)
        self._file.write_text(self.now().isoformat())


class FolderTasks(RunningTasks):
    """Tells the server which tasks run."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / RUNNING_FILE

    def let_run(self, *run_ids: str) -> None:
        super().let_run(*run_ids)
        self._file.write_text("\n".join(run_ids))


class FolderDags(CurrentDags):
    """Tells the server which tasks Dags have."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._file = folder / DAGS_FILE

    def _keep(self, dag_id: str, tasks: DagTasks) -> None:
        super()._keep(dag_id, tasks)
        self._file.write_text(json.dumps({dag_id: asdict(each) for dag_id, each in self._dags.items()}))


class ClaimedTask:
    """Credentials of whatever task the test speaks for."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.owner = AttemptOwner(
            logical_task=f"{MAINTENANCE_DAG}/task", run_key="", run_id="run", clear_marker="", label=""
        )

    def obtain(self) -> str:
        dag_id, task_id = self.owner.logical_task.split("/")
        caller = {"dag_id": dag_id, "run_id": self.owner.run_id, "task_id": task_id.partition("[")[0]}
        return str(self._client.post("token", {"ti_id": json.dumps(caller), "secret": SECRET})["token"])


class OverHttp:
    """Coordinators of several operators that reach the rows of a database over HTTP, as a maintenance task does."""

    @pytest.fixture(scope="class")
    @classmethod
    def api(cls) -> Iterator[ApiProcess]:
        process = ApiProcess()
        yield process
        process.close()

    @pytest.fixture
    def clock(self, tmp_path: Path) -> ManualClock:
        return FolderClock(tmp_path)

    @pytest.fixture
    def rows(self, api: ApiProcess, engine: Engine, clock: ManualClock, tmp_path: Path) -> Any:
        if engine.dialect.name != "sqlite":
            (tmp_path / DATABASE_FILE).write_text(engine.url.render_as_string(hide_password=False))
        api.serve(tmp_path)
        client = HttpClient(api.url)
        return retrying(HttpCalls(ALIGNED, client, ClaimedTask(client)), sleep=lambda _: None)
