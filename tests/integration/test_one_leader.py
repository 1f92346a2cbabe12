"""Two processes of one leader on PostgreSQL."""

from __future__ import annotations

import multiprocessing
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.aligned_job import CHECKPOINT
from tests.conformance.databases import own_schema
from tests.conformance.test_aligned_checkpoints import is_loadable, on_database
from tests.integration.one_leader import acknowledge

pytestmark = [pytest.mark.db, pytest.mark.soak]

CHECKPOINTS = 12


def test_each_checkpoint_completes_exactly_once(postgres_url: str, tmp_path: Path) -> None:
    with own_schema(postgres_url) as url:
        engine = create_engine(url)
        job = on_database(engine, tmp_path)
        coordinator = job.coordinator(max_concurrent_checkpoints=CHECKPOINTS)
        ids = range(1, CHECKPOINTS + 1)
        futures = [coordinator.trigger_checkpoint(CHECKPOINT) for _ in ids]
        assert [future.checkpoint_id for future in futures] == list(ids)

        spawn = multiprocessing.get_context("spawn")
        told, begin = spawn.Queue(), spawn.Barrier(2)
        arguments = [(url, str(tmp_path), job.leader, task, ids, told, begin) for task in (0, 1)]
        workers = [spawn.Process(target=acknowledge, args=each) for each in arguments]
        for worker in workers:
            worker.start()
        announced = sorted(number for _ in workers for number in told.get(timeout=60))
        for worker in workers:
            worker.join()

        assert [worker.exitcode for worker in workers] == [0, 0]
        assert announced == list(ids)
        assert [future.result(0).checkpoint_id for future in futures] == list(ids)
        counts = job.statistics().create_snapshot().counts
        assert (counts.completed, counts.failed, counts.in_progress) == (CHECKPOINTS, 0, 0)
        assert CHECKPOINTS in is_loadable(job)
        engine.dispose()
