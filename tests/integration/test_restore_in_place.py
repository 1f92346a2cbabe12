"""Two stages of one job that return to a savepoint of the whole job, with their output, and run again from there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.fencing import UnknownLiveness
from airflow_provider_statecheck.checkpoint.ids import job_id_of, operator_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, RequestStatus, SystemClock
from airflow_provider_statecheck.exceptions import RunSupersededError
from airflow_provider_statecheck.gateway.in_process import open_gateway
from airflow_provider_statecheck.maintenance.job_restore import (
    JobRestoring,
    RestoredJob,
    RestoreJob,
    read_savepoint,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from airflow_provider_statecheck.overriding import override
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sources.file_source import ParquetSource
from airflow_provider_statecheck.spark.stages.stage import Stage, StageSettings
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.integration.test_week_of_runs import FILES, JOB, OUTPUT, Week, date, first_of
from tests.integration.week_functions import Balances
from tests.job_savepoints import save_job

pytestmark = [pytest.mark.spark, pytest.mark.soak]

AHEAD, BEHIND = "ahead", "behind"
NEW_OPERATOR = StageSettings(allow_non_restored_state=True)
"""A script declares that the other stage of the job is not gone."""


class TwoStages(Week):
    """A job with two stages over the same files, each with an output of its name."""

    @override
    def stage(self, function: Balances, output: str) -> Stage:
        stage = Stage(output, parallelism=2, max_parallelism=16)
        keyed = stage.source(ParquetSource(str(self.input), files_per_increment=1)).key_by("account", order_by="number")
        return keyed.process(function, uid="balance", output=OUTPUT).sink(ParquetSink(str(self.folder / output)))

    def both(self, day: int, **options: Any) -> list[int]:
        """Run both stages for a day, and return their increments."""
        return [self.run(day, uid, settings=NEW_OPERATOR, **options).increments for uid in (AHEAD, BEHIND)]

    def latest(self, uid: str) -> CheckpointRecord:
        """Return the newest checkpoint of a stage."""
        found = open_gateway(self.metadata).latest(job_id_of(JOB), operator_id_of(uid))
        assert found is not None
        return found

    def save(self) -> str:
        """Write a savepoint of the whole job."""
        storage = CheckpointStorage.open(f"file://{self.folder}/checkpoints")
        return save_job(storage, [self.latest(AHEAD), self.latest(BEHIND)], f"file://{self.folder}/savepoints")

    def restore(self, pointer: str) -> RestoredJob:
        """Restore the job in place."""
        savepoint = read_savepoint(CheckpointStorage.open, pointer, self.view().job)
        engine = open_engine(self.metadata)
        try:
            restoring = JobRestoring(SqlJobStore(engine, SystemClock()), UnknownLiveness())
            return restoring.restore(RestoreJob(job_id=job_id_of(JOB), savepoint=savepoint, requested_by="anna"))
        finally:
            engine.dispose()


@pytest.fixture
def job(tmp_path: Path) -> TwoStages:
    """Return a job whose first stage has ended its second day, and whose other stage has failed in the middle of it."""
    job = TwoStages(tmp_path)
    job.arrive(1)
    assert job.both(1) == [FILES, FILES]
    job.arrive(2)
    job.run(2, AHEAD, settings=NEW_OPERATOR)
    job.run_and_fail(2, first_of(2, 1) + 4, output=BEHIND, settings=NEW_OPERATOR)
    return job


def test_both_stages_return_and_their_output_equals_that_of_runs_without_the_wrong_days(job: TwoStages) -> None:
    pointer = job.save()
    assert job.run(2, BEHIND, settings=NEW_OPERATOR).increments == 1
    for day in (3, 4):
        job.arrive(day, wrong=True)
        job.both(day)
    wrong = job.rows(AHEAD)
    files = _files(job.folder / "savepoints")
    restored = job.restore(pointer)
    assert [each.uid for each in restored.operators if each.part is not None] == [AHEAD, BEHIND]
    undone = [{c.run_key for c in each.taken_back} for each in restored.operators]
    assert undone == [{date(3), date(4)}, {date(2), date(3), date(4)}]
    assert job.rows(AHEAD) == wrong, "nothing is seen before it is replaced"
    job.forget(3, 4)
    with pytest.raises(RunSupersededError, match="found the earlier run"):
        job.run(1, BEHIND, settings=NEW_OPERATOR)
    # The first try of the stage fails before its first checkpoint, and its retry restores the part again.
    job.run_and_fail(2, first_of(2, 1) + 5, output=BEHIND, settings=NEW_OPERATOR)
    assert job.run(2, BEHIND, settings=NEW_OPERATOR).increments == 1
    for day in (3, 4):
        job.arrive(day)
        assert job.both(day) == [FILES, FILES]
    assert job.rows(AHEAD) == job.rows(BEHIND) == job.expected()
    assert {action.status for action in job.view().actions} == {RequestStatus.COMPLETED}
    assert _files(job.folder / "savepoints") == files


def _files(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
