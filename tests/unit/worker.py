"""A job whose coordinator is served by a process of its own, as a worker and a triggerer reach it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.gateway import verbs
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.hooks import transport
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.conformance.api_process import ENDED_FILE, KILL_FOLDER
from tests.conformance.served import ApiProcess, ClaimedTask, FolderClock
from tests.messages import complete_checkpoint, make_registration
from tests.sqlite_rows import new_engine


class ServedJobs:
    """The rows that the API serves, written to by the test, and the API's clock."""

    def __init__(self, api: ApiProcess, folder: Path) -> None:
        self._api = api
        self._folder = folder
        self._engine = new_engine(folder / "state.db")
        self.clock = FolderClock(folder)
        self.store = SqlJobStore(self._engine, self.clock)
        self.coordinator = AttemptCoordinator(self.store)
        self.url = api.url

    def begin(self, job: str = "sales", uid: str = "aggregate") -> AttemptRef:
        """Register an attempt."""
        return self.coordinator.register(make_registration(job_name=job, uid=uid)).attempt

    def complete(self, job: str = "sales", uid: str = "aggregate") -> None:
        """Complete one checkpoint."""
        complete_checkpoint(self.coordinator, self.begin(job, uid))

    def restart_server(self) -> None:
        """Kill the server; the next one serves the same rows."""
        self._api.serve(self._folder)

    def lose_replies(self) -> None:
        """Kill the server before the first reply to each request."""
        (self._folder / KILL_FOLDER).mkdir()

    def drop_tables(self) -> Callable[[], None]:
        """Take the tables away, as before a migration, and return what brings them back."""
        database, away = self._folder / "state.db", self._folder / "away.db"
        self._engine.dispose()
        database.rename(away)
        self.restart_server()

        def migrate() -> None:
            database.unlink(missing_ok=True)
            away.rename(database)
            self.restart_server()

        return migrate

    def lose_rows(self) -> None:
        """Delete all rows, as a database has none that was made anew."""
        with self._engine.begin() as connection:
            for table in reversed(METADATA.sorted_tables):
                connection.execute(table.delete())

    def reading_token(self, job: str) -> str:
        """Return a token that reads one job."""
        client = HttpClient(self.url)
        return HttpGateway(client, ClaimedTask(client)).reading_token(job_id_of(job))

    def end_tasks(self) -> None:
        """Let no task run or be deferred from now on."""
        (self._folder / ENDED_FILE).touch()

    def close(self) -> None:
        self._engine.dispose()


@pytest.fixture(scope="session")
def api_process() -> Iterator[ApiProcess]:
    process = ApiProcess()
    yield process
    process.close()


@pytest.fixture
def served(api_process: ApiProcess, tmp_path: Path) -> Iterator[ServedJobs]:
    jobs = ServedJobs(api_process, tmp_path)
    api_process.serve(tmp_path)
    yield jobs
    jobs.close()


@pytest.fixture
def in_worker(served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> ServedJobs:
    """Make this process one that has no database, and whose task the server believes."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "airflow-db-not-allowed:///")
    monkeypatch.setenv("AIRFLOW_CONN_STATECHECK_DEFAULT", json.dumps({"conn_type": "statecheck", "host": served.url}))
    monkeypatch.setattr(transport, "task_credentials", lambda client, address: ClaimedTask(client))
    monkeypatch.setattr(verbs, "OUTAGE_PAUSES_SECONDS", (0.0,) * 3)
    return served


@pytest.fixture
def with_database(served: ServedJobs, monkeypatch: pytest.MonkeyPatch) -> ServedJobs:
    """Make this process one that has the database open and no server."""
    monkeypatch.setenv("AIRFLOW__DATABASE__SQL_ALCHEMY_CONN", "sqlite:///airflow.db")
    monkeypatch.setattr(transport, "in_process_gateway", lambda: served.coordinator)
    served.url = "http://127.0.0.1:9"
    return served
