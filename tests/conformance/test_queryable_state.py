"""The contract of queryable state in process, over HTTP, and through stand-alone servers in front of the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.gateway.http import HttpClient
from airflow_provider_statecheck.gateway.time_travel import LATEST, AsOf
from airflow_provider_statecheck.queryable.client import QueryableStateClient
from airflow_provider_statecheck.queryable.queries import QueryableName, StateQuery, StateReply
from airflow_provider_statecheck.queryable.reads import LocalStateClient, StateReads
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.databases import OnSqlite
from tests.conformance.served import ApiProcess, ClaimedTask, FolderClock
from tests.contracts.queryable_state_contract import QueriedJob, QueryableStateContract
from tests.messages import ManualClock
from tests.written_state import EACH_BACKEND


class Client:
    """A client as a reader of the contract, which names jobs by their ids."""

    def __init__(self, client: StateReads) -> None:
        self._client = client

    def get(self, query: StateQuery) -> StateReply:
        return self._client.ask(query)

    def names(self, job_id: JobId, as_of: AsOf = LATEST) -> tuple[QueryableName, ...]:
        return self._client.names(job_id, checkpoint_id=as_of.checkpoint_id, pointer=as_of.pointer, at=as_of.at)


class TestInProcess(OnSqlite, QueryableStateContract):
    @pytest.fixture(params=EACH_BACKEND)
    def backend(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    @pytest.fixture
    def reader(self, store: JobStore, storage: CheckpointStorage) -> Client:
        return Client(LocalStateClient(AttemptCoordinator(store), lambda _: storage))


@pytest.fixture(scope="module")
def api() -> Iterator[ApiProcess]:
    process = ApiProcess()
    yield process
    process.close()


class OverHttp(OnSqlite, QueriedJob):
    """The API in a process of its own, on the rows and the files that the stages write in this one."""

    @pytest.fixture
    def clock(self, tmp_path: Path) -> ManualClock:
        return FolderClock(tmp_path)

    @pytest.fixture
    def api_url(self, api: ApiProcess, store: JobStore, clock: ManualClock, tmp_path: Path) -> str:
        api.serve(tmp_path)
        return api.url

    @pytest.fixture
    def token(self, api_url: str) -> str:
        return ClaimedTask(HttpClient(api_url)).obtain()


class TestOverHttp(OverHttp, QueryableStateContract):
    @pytest.fixture
    def reader(self, api_url: str, token: str) -> Iterator[Client]:
        with QueryableStateClient(api_url, token) as client:
            yield Client(client)
