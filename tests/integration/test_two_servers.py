"""Two api-servers serve one job, each killed before its replies: no id completes twice, no live row loses a byte."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import AttemptGrant, RegisterAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.gateway.http import HttpClient, HttpGateway
from airflow_provider_statecheck.gateway.verbs import retrying
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.api_process import DATABASE_FILE, KILL_FOLDER, KILL_RATE_FILE
from tests.conformance.databases import own_schema
from tests.conformance.served import ApiProcess, ClaimedTask, FolderClock
from tests.messages import ManualClock
from tests.unit.written_stage import JOB, WrittenStage

pytestmark = pytest.mark.db

DRIVERS = 4


class TwoServers(HttpClient):
    """A client that speaks to either server, whichever chance picks, as a load balancer would."""

    def __init__(self, urls: list[str], seed: int) -> None:
        super().__init__(urls[0])
        self._clients = [HttpClient(url) for url in urls]
        self._chance = random.Random(seed)

    def post(self, *arguments: Any) -> Any:
        return self._chance.choice(self._clients).post(*arguments)

    def get(self, *arguments: Any) -> Any:
        return self._chance.choice(self._clients).get(*arguments)


class Driver(HttpGateway):
    """Speaks for a task of its own."""

    def __init__(self, servers: TwoServers) -> None:
        self.task = ClaimedTask(servers)
        super().__init__(servers, self.task)

    def register(self, request: RegisterAttempt) -> AttemptGrant:
        self.task.owner = request.owner
        return super().register(request)


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    with own_schema(postgres_url) as url:
        yield url


@pytest.fixture
def servers(tmp_path: Path, database: str) -> Iterator[list[str]]:
    (tmp_path / DATABASE_FILE).write_text(database)
    (tmp_path / KILL_FOLDER).mkdir()
    (tmp_path / KILL_RATE_FILE).write_text("9")
    FolderClock(tmp_path)
    processes = [ApiProcess() for _ in range(2)]
    for process in processes:
        process.serve(tmp_path)
    yield [process.url for process in processes]
    for process in processes:
        process.close()


def drive(stage: WrittenStage, urls: list[str], seed: int, rounds: int) -> None:
    """Let a driver take checkpoints of an operator that another driver fights for, and of its own."""
    stage.coordinator = retrying(Driver(TwoServers(urls, seed)), (0.0,) * 20, lambda _: None)  # type: ignore[assignment]
    for i in range(rounds):
        uid = "contended" if i % 2 else f"operator {seed}"
        try:
            attempt = stage.attempt(uid=uid, num_retained=2)
            attempt.restore()
            for name in ("one", "two", "three"):
                handle = stage.snapshot(attempt, name, rows=5)
                attempt.take_checkpoint(CheckpointContent(snapshots=(handle,), pinned=frozenset({handle.uri})))
            attempt.finish(AttemptStatus.FAILED)
        except StaleAttemptError:
            continue


@pytest.mark.parametrize("rounds", [2, pytest.param(8, marks=pytest.mark.soak)])
def test_two_servers_of_one_job_agree_whatever_dies(
    database: str, servers: list[str], tmp_path: Path, rounds: int
) -> None:
    storage = CheckpointStorage.open(f"{tmp_path}/checkpoints")
    engine = create_engine(database)
    stages = [WrittenStage(storage, ManualClock(), SqlJobStore(engine)) for _ in range(DRIVERS)]
    with ThreadPoolExecutor(DRIVERS) as pool:
        for done in [pool.submit(drive, stage, servers, seed, rounds) for seed, stage in enumerate(stages)]:
            done.result()

    assert stages[0].store is not None
    view = stages[0].store.describe(job_id_of(JOB))
    ids = [c.checkpoint_id for c in view.checkpoints]
    assert ids == list(range(1, view.job.next_checkpoint_id))
    completed = [c for c in view.checkpoints if c.status is CheckpointStatus.COMPLETED]
    assert [p for c in completed for p in CheckpointVerifier(storage, is_deep=False).verify(c).problems] == []
    assert Counter(c.operator_id for c in completed).most_common()[-1][1] >= 1
    assert any((tmp_path / KILL_FOLDER).iterdir())
    engine.dispose()
