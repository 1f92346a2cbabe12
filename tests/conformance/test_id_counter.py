"""The contract of checkpoint ids over each kind of count."""

from __future__ import annotations

import subprocess
import sys
from itertools import chain

import pytest
from sqlalchemy.engine import Engine

from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.contracts.state_handle_store_contract import CheckpointIDCounterContract
from tests.contracts.written_checkpoints import JOB

PROCESSES = 3
DRAWS = 20
DRAWING = """
import sys
from sqlalchemy import create_engine
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.flink.state_handles import CheckpointIDCounter
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore

url, schema, job_id, epoch, draws = sys.argv[1:]
engine = create_engine(url, connect_args={"options": f"-csearch_path={schema}"})
leader = AttemptRef(job_id=job_id, operator_id=ALIGNED_OPERATOR_ID, epoch=int(epoch))
counter = CheckpointIDCounter(AlignedCheckpoints(SqlJobStore(engine)), leader)
counter.start()
print("ready", flush=True)
sys.stdin.readline()
print(*(counter.get_and_increment() for _ in range(int(draws))))
"""


class TestSqlite(OnSqlite, CheckpointIDCounterContract):
    pass


class TestSqliteOverHttp(OverHttp, OnSqlite, CheckpointIDCounterContract):
    pass


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestPostgresOverHttp(OverHttp, OnPostgres, CheckpointIDCounterContract):
    pass


class TestPostgres(OnPostgres, CheckpointIDCounterContract):
    def test_many_processes_draw_every_id_once(self, engine: Engine, postgres_url: str) -> None:
        with engine.connect() as connection:
            schema = connection.exec_driver_sql("SELECT current_schema()").scalar_one()
        command = [sys.executable, "-c", DRAWING, postgres_url, schema, JOB, str(self.leader.epoch), str(DRAWS)]
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
