"""The coordinator's contract over HTTP, with a server process that may die between its commit and its reply."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, AttemptRef, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptOwner
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.gateway.verbs import StageGateway, retrying
from tests.conformance.api_process import KILL_FOLDER
from tests.conformance.served import ApiProcess, ClaimedTask, FolderClock, FolderDags, FolderTasks
from tests.contracts.coordinator_contract import CoordinatorContract
from tests.contracts.runs_of_a_job import CurrentDags, RunningTasks
from tests.messages import ManualClock
from tests.sqlite_rows import new_engine


class AnyTaskGateway(HttpGateway):
    """Registers each attempt as the task that it says it is."""

    def __init__(self, client: HttpClient) -> None:
        self.task = ClaimedTask(client)
        super().__init__(client, self.task)

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        self.task.owner = request.owner
        return super().register(request)

    def adopt(self, attempt: AttemptRef, owner: AttemptOwner) -> None:
        self.task.owner = owner
        super().adopt(attempt, owner)


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
    def liveness(self, tmp_path: Path) -> RunningTasks:
        return FolderTasks(tmp_path)

    @pytest.fixture
    def dags(self, tmp_path: Path) -> CurrentDags:
        return FolderDags(tmp_path)

    @pytest.fixture
    def coordinator(self, api: ApiProcess, clock: ManualClock, tmp_path: Path) -> StageGateway:
        self.folder = tmp_path
        self.prepare(tmp_path)
        new_engine(tmp_path / "state.db").dispose()
        api.serve(tmp_path)
        return retrying(AnyTaskGateway(HttpClient(api.url)), sleep=lambda _: None)

    def prepare(self, folder: Path) -> None:
        """Make the server behave well."""

    def lose_completed_checkpoints(self) -> None:
        engine = create_engine(f"sqlite:///{self.folder}/state.db")
        with engine.begin() as connection:
            connection.execute(text("UPDATE statecheck_checkpoint SET status = 'subsumed'"))
        engine.dispose()


class TestOverHttp(HttpContract):
    pass


@pytest.mark.soak
class TestOverHttpWithAServerKilledBeforeEachFirstReply(HttpContract):
    loses_replies = True

    def prepare(self, folder: Path) -> None:
        (folder / KILL_FOLDER).mkdir()

    @pytest.fixture(autouse=True)
    def _servers_died(self, tmp_path: Path) -> Iterator[None]:
        yield
        assert any((tmp_path / KILL_FOLDER).iterdir())
