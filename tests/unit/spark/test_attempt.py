"""An attempt as its driver lives it, without Spark."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.maintenance import RetireJob
from airflow_provider_statecheck.checkpoint.messages import ConfirmDiscards
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import JOB, WrittenStage


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))


def remove(stage: WrittenStage) -> None:
    job_id, maintenance = job_id_of(JOB), stage.maintenance
    maintenance.retire(RetireJob(job_id=job_id, is_named=True))
    ids = tuple(c.checkpoint_id for c in maintenance.describe(job_id).checkpoints)
    maintenance.confirm_discards(ConfirmDiscards(job_id=job_id, checkpoint_ids=ids))
    assert maintenance.remove(RetireJob(job_id=job_id, is_named=True)).kept_because == ()


@pytest.mark.parametrize("checkpoints", [0, 3], ids=["before the sweep", "before the discards are confirmed"])
def test_a_job_that_is_removed_at_its_end_does_not_fail_the_task(stage, monkeypatch, checkpoints):
    attempt = stage.attempt()
    for i in range(checkpoints):
        stage.take(attempt, stage.snapshot(attempt, f"step {i}"))
        del attempt._cleaner.discard
    finish = stage.coordinator.finish

    def finish_and_remove(message: Any) -> Any:
        effects = finish(message)
        remove(stage)
        return effects

    monkeypatch.setattr(stage.coordinator, "finish", finish_and_remove)
    attempt.finish(AttemptStatus.FINISHED)
    with pytest.raises(CheckpointNotFoundError):
        stage.maintenance.describe(job_id_of(JOB))
