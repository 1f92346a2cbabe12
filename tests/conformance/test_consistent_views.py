"""Whoever decides what may be deleted sees the rows of one moment, although they are read in several statements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.unit.written_stage import JOB, WrittenStage


def before_reading(engine: Engine, table: str, work: Callable[[], object], at: range) -> list[int]:
    """Work as another process would whenever all rows of a table are about to be read for one of these times."""
    reads, done = count(), list[int]()

    def interfere(_: Any, __: Any, statement: str, *___: Any) -> None:
        is_meant = f"FROM {table} " in f"{statement} ".replace("\n", " ") and f"ORDER BY {table}." in statement
        if is_meant and len(done) < len(at) and next(reads) in at:
            done.append(len(done))
            work()

    event.listen(engine, "before_cursor_execute", interfere)
    return done


class ConsistentViews:
    @pytest.fixture
    def stage(self, engine: Engine, tmp_path: Path) -> WrittenStage:
        return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), store=SqlJobStore(engine))

    def test_gc_deletes_nothing_that_a_retry_restores_after_the_rows_are_read(self, stage: WrittenStage) -> None:
        """Garbage collection settles the job in one transaction, and then lists the files of its directories."""
        stage.run(checkpoints=1)
        kept, retries = stage.files(), list[int]()

        def retry_and_open(uri: str) -> CheckpointStorage:
            attempt = stage.attempt()
            assert attempt.restore() is not None
            stage.take(attempt, stage.snapshot(attempt, "next"))
            retries.append(attempt.grant.attempt.epoch)
            return CheckpointStorage.open(uri)

        report = collect_job(stage.maintenance, job_id_of(JOB), retry_and_open)
        assert retries == [2]
        assert report.deleted == {}
        assert kept.items() <= stage.files().items()

    def test_a_view_is_read_again_until_no_writer_came_in_between(self, stage: WrittenStage, engine: Engine) -> None:
        """After a few times the reader takes its turn among the writers."""
        attempt = stage.attempt()
        interfered = before_reading(engine, "statecheck_checkpoint", lambda: stage.take(attempt), range(3))
        view = stage.coordinator.describe(job_id_of(JOB))
        assert len(interfered) == 3
        assert [c.checkpoint_id for c in view.checkpoints] == [1, 2, 3]
        assert [c.status for c in view.checkpoints][-1] is CheckpointStatus.COMPLETED
        attempt.finish(AttemptStatus.FINISHED)


class TestOnSqlite(OnSqlite, ConsistentViews):
    pass


class TestOnPostgres(OnPostgres, ConsistentViews):
    pass
