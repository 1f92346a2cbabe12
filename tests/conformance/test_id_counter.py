"""The contract of checkpoint ids over each kind of count."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from itertools import chain

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.aligned.id_counter import JobIDCounter
from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.metadata.sql_state_handles import SqlCheckpointIDCounter
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.memory_store import InMemoryCheckpointIDCounter, InMemoryJobStore
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.id_counter_contract import JOB, CheckpointIDCounterContract

PROCESSES = 3
DRAWS = 20
DRAWING = """
import sys
from sqlalchemy import create_engine
from airflow_provider_statecheck.metadata.sql_state_handles import SqlCheckpointIDCounter

url, schema, job_id, draws = sys.argv[1:]
counter = SqlCheckpointIDCounter(create_engine(url, connect_args={"options": f"-csearch_path={schema}"}), job_id)
counter.start()
print("ready", flush=True)
sys.stdin.readline()
print(*(counter.get_and_increment() for _ in range(int(draws))))
"""


class TestInMemory(CheckpointIDCounterContract):
    @pytest.fixture
    def jobs(self) -> InMemoryJobStore:
        return InMemoryJobStore()

    @pytest.fixture
    def new_counter(self, jobs: InMemoryJobStore) -> Callable[[JobId], JobIDCounter]:
        return lambda job_id: InMemoryCheckpointIDCounter(jobs, job_id)


class SqlContract(CheckpointIDCounterContract):
    @pytest.fixture
    def jobs(self, engine: Engine) -> SqlJobStore:
        return SqlJobStore(engine)

    @pytest.fixture
    def new_counter(self, engine: Engine) -> Callable[[JobId], JobIDCounter]:
        return lambda job_id: SqlCheckpointIDCounter(engine, job_id)


class TestSqlite(OnSqlite, SqlContract):
    pass


class TestPostgres(OnPostgres, SqlContract):
    def test_many_processes_draw_every_id_once(self, engine: Engine, postgres_url: str) -> None:
        with engine.connect() as connection:
            schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        command = [sys.executable, "-c", DRAWING, postgres_url, schema, JOB, str(DRAWS)]
        processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
            for _ in range(PROCESSES)
        ]
        # All of them are there before the first one draws.
        ready = [process.stdout.readline() for process in processes if process.stdout is not None]
        printed = [_told_to_go(process) for process in processes]
        drawn = [[int(number) for number in text.split()] for text in (p.communicate()[0] for p in printed)]
        assert ready == ["ready\n"] * PROCESSES
        assert sorted(chain.from_iterable(drawn)) == list(range(1, PROCESSES * DRAWS + 1))


def _told_to_go(process: subprocess.Popen[str]) -> subprocess.Popen[str]:
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()
    return process
