"""Readers of queryable state during checkpoints, deletions and changes of parallelism: fresh answers, and no error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.queryable.oracle import CheckpointLocationOracle
from airflow_provider_statecheck.queryable.proxy import KvStateServer, StateProxy
from airflow_provider_statecheck.queryable.queries import StateReply
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.hammered_job import KEYS, HammeredJob, Readers
from tests.written_state import BACKENDS, EACH_BACKEND

pytestmark = pytest.mark.soak

CHECKPOINTS = 50
THREADS = 4


class HammerContract:
    """What readers see, whatever happens to the checkpoints."""

    @pytest.fixture(params=EACH_BACKEND)
    def job(self, request: pytest.FixtureRequest, engine: Engine, tmp_path: Path) -> Iterator[HammeredJob]:
        """Return a job with a first checkpoint."""
        storage = CheckpointStorage.open((tmp_path / "checkpoints").as_uri())
        made = HammeredJob(SqlJobStore(engine), storage, BACKENDS[request.param]())
        made.begin(2)
        made.checkpoint()
        yield made
        made.close()

    @pytest.fixture
    def readers(self, job: HammeredJob, engine: Engine) -> Readers:
        """Return readers in this process."""
        rows = AttemptCoordinator(SqlJobStore(engine))
        server = KvStateServer(lambda _: job.storage)
        return Readers(
            job, StateProxy(server, lambda job_id: CheckpointLocationOracle(job_id, rows, lambda _: job.storage))
        )

    def test_answers_are_those_of_a_checkpoint_that_is_not_older_than_the_request(
        self, job: HammeredJob, readers: Readers
    ) -> None:
        with readers.running(THREADS):
            for number in range(CHECKPOINTS):
                if number == CHECKPOINTS // 2:
                    job.begin(5)
                job.checkpoint()
            job.finish()

        require_fresh(readers)
        assert checkpoints_on(job) == [max(job.values)]

    def test_answers_are_fresh_also_after_a_restart_with_another_maximum_parallelism(
        self, job: HammeredJob, readers: Readers
    ) -> None:
        with readers.running(THREADS):
            for number in range(CHECKPOINTS):
                if number == CHECKPOINTS // 2:
                    job.restart_with(max_parallelism=64, parallelism=5)
                job.checkpoint()

        require_fresh(readers)


def require_fresh(readers: Readers) -> None:
    """Require that every answer is that of one completed checkpoint, that none is an error, and that many were seen."""
    replies = [(each, each.reply) for each in readers.answers if isinstance(each.reply, StateReply)]
    assert [each for each in readers.answers if not isinstance(each.reply, StateReply)] == []
    for each, reply in replies:
        (value,) = set(reply.values)
        assert value == readers.job.values[reply.checkpoint_id]
        assert each.oldest <= value <= each.newest
    assert len({reply.checkpoint_id for _, reply in replies}) > CHECKPOINTS // 4
    assert {len(reply.keys) for _, reply in replies} == {1, len(KEYS)}


def checkpoints_on(job: HammeredJob) -> list[int]:
    """Return the ids of the checkpoints on storage."""
    names = job.storage.list_directories(f"{job.storage.base_uri}/{job.job_id}")
    return [int(name.removeprefix("chk-")) for name in names if name.startswith("chk-")]


class TestOnSqlite(OnSqlite, HammerContract):
    """Rows in SQLite."""


class TestOnPostgres(OnPostgres, HammerContract):
    """Rows in PostgreSQL."""
