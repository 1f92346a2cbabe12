"""The coordinator's contract over HTTP, with a server process that may die between its commit and its reply."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.checkpoint.messages import AdoptAttempt, AttemptGrant, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.gateway.http import HttpGateway
from airflow_provider_statecheck.gateway.http_client import HttpClient
from airflow_provider_statecheck.gateway.retrying import RetryingGateway
from airflow_provider_statecheck.metadata.engines import open_engine
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.coordinator_contract import CoordinatorContract
from tests.conformance.api_process import KILL_FOLDER, SECRET

ROOT = Path(__file__).parents[2]


class ApiProcess:
    """The process that serves one folder after the other."""

    def __init__(self) -> None:
        command = [sys.executable, "-m", "tests.conformance.api_process"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
        self.url = f"http://127.0.0.1:{self._answer()}"

    def serve(self, folder: Path) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{folder}\n")
        self._process.stdin.flush()
        assert self._answer() == "serving"

    def close(self) -> None:
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


class ClaimedTask:
    """Credentials of whatever task the test speaks for."""

    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self.owner = AttemptOwner(logical_task="dag/task", run_key="", run_id="run", clear_marker="", label="")

    def obtain(self) -> str:
        dag_id, task_id = self.owner.logical_task.split("/")
        caller = {"dag_id": dag_id, "run_id": self.owner.run_id, "task_id": task_id.partition("[")[0]}
        return str(self._client.post("token", {"ti_id": json.dumps(caller), "secret": SECRET})["token"])


class AnyTaskGateway(HttpGateway):
    """Registers each attempt as the task that it says it is."""

    def __init__(self, client: HttpClient) -> None:
        self.task = ClaimedTask(client)
        super().__init__(client, self.task)

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        self.task.owner = request.owner
        return super().register(request)

    def adopt(self, request: AdoptAttempt) -> None:
        self.task.owner = request.owner
        super().adopt(request)


@pytest.fixture(scope="module")
def api() -> Iterator[ApiProcess]:
    process = ApiProcess()
    yield process
    process.close()


class HttpContract(CoordinatorContract):
    @pytest.fixture
    def clock(self, tmp_path: Path) -> ManualClock:
        return FolderClock(tmp_path)

    @pytest.fixture
    def gateway(self, api: ApiProcess, clock: ManualClock, tmp_path: Path) -> RetryingGateway:
        self.folder = tmp_path
        self.prepare(tmp_path)
        open_engine(f"sqlite:///{tmp_path}/state.db").dispose()
        api.serve(tmp_path)
        return RetryingGateway(AnyTaskGateway(HttpClient(api.url)), sleep=lambda _: None)

    def prepare(self, folder: Path) -> None:
        """Make the server behave well."""

    def lose_completed_checkpoints(self, gateway) -> None:
        engine = create_engine(f"sqlite:///{self.folder}/state.db")
        with engine.begin() as connection:
            connection.execute(text("UPDATE statecheck_checkpoint SET status = 'subsumed'"))
        engine.dispose()


class TestOverHttp(HttpContract):
    pass


class TestOverHttpWithAServerKilledBeforeEachFirstReply(HttpContract):
    loses_replies = True

    def prepare(self, folder: Path) -> None:
        (folder / KILL_FOLDER).mkdir()

    @pytest.fixture(autouse=True)
    def _servers_died(self, tmp_path: Path) -> Iterator[None]:
        yield
        assert any((tmp_path / KILL_FOLDER).iterdir())
