"""What the tasks of the maintenance Dag call."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.exceptions import CorruptStateError, StorageError
from airflow_provider_statecheck.hooks import upkeep
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import WrittenStage, local_path


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))
    monkeypatch.setattr(upkeep, "maintenance_gateway", lambda conn_id: stage.maintenance)
    monkeypatch.setattr(upkeep, "storage_opener", lambda conn_id: CheckpointStorage.open)
    return stage


def test_all_jobs_are_collected(stage):
    before = 0
    for job in ("a", "b"):
        stage.run(job)
        before += sum(stage.files().values()) if job == "b" else 0
    assert upkeep.collect_all() == before - sum(stage.files().values())
    assert stage.statuses("a") == stage.statuses("b") == {1: "subsumed", 2: "subsumed", 3: "completed"}


def test_what_could_not_be_deleted_fails_the_task_after_all_jobs(stage, tmp_path, monkeypatch):
    other = WrittenStage(CheckpointStorage.open(str(tmp_path / "away")), stage.clock, stage.store)
    other.run("away")
    stage.run("here")

    def opener(base: str) -> Any:
        if "away" in base:
            raise StorageError("It does not answer.")
        return CheckpointStorage.open(base)

    monkeypatch.setattr(upkeep, "storage_opener", lambda conn_id: opener)
    with pytest.raises(StorageError, match="It does not answer"):
        upkeep.collect_all()
    assert stage.statuses("here")[1] == "subsumed"


def test_old_test_jobs_are_pruned_and_named_jobs_stay(stage):
    stage.run("test/old")
    stage.run("named")
    stage.clock.advance(timedelta(days=31).total_seconds())
    stage.run("test/young")
    assert upkeep.prune_all() == 1
    assert {job.name for job in stage.maintenance.jobs()} == {"named", "test/young"}


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_checkpoint_that_cannot_be_restored_fails_the_task(stage, is_deep):
    stage.run("a")
    stage.run("b")
    assert upkeep.verify_all(is_deep=is_deep) == 2
    row = stage.coordinator.describe(job_id_of("a")).checkpoints[-1]
    local_path(str(row.metadata_uri)).unlink()
    with pytest.raises(CorruptStateError, match="2 checkpoints that can be restored, found 1"):
        upkeep.verify_all(is_deep=is_deep)
