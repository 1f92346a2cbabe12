"""What the tasks of the maintenance Dag call."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.records import JobAction
from airflow_provider_statecheck.exceptions import CorruptStateError, InvalidConfigurationError, StorageError
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.operators import maintenance_dag
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.sqlite_rows import write_bad_value
from tests.unit.written_stage import WrittenStage, local_path


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    stage = WrittenStage(CheckpointStorage.open(str(tmp_path / "base")))
    monkeypatch.setattr(maintenance_dag, "maintenance_gateway", lambda conn_id: stage.maintenance)
    monkeypatch.setattr(maintenance_dag, "guarded_storage_opener", lambda conn_id: CheckpointStorage.open)
    monkeypatch.setattr(maintenance_dag, "job_savepoints", lambda *_: savepoints_of(stage, tmp_path))
    return stage


def savepoints_of(stage: WrittenStage, folder: Path) -> WholeJobSavepoints:
    return WholeJobSavepoints(
        rows=AlignedCheckpoints(stage.store),
        maintenance=stage.maintenance,
        savepoints=stage.savepoints,
        open_storage=CheckpointStorage.open,
        directory=f"file://{folder}/savepoints",
    )


def test_a_savepoint_that_cannot_be_taken_fails_the_task_after_all_jobs(stage, monkeypatch):
    for job in ("a", "b"):
        stage.run(job)

    def fail(self: WholeJobSavepoints, job_id: str) -> None:
        raise StorageError("It does not answer.")

    monkeypatch.setattr(WholeJobSavepoints, "take", fail)
    with pytest.raises(StorageError, match=r"2 failure.*It does not answer"):
        maintenance_dag.collect_all()
    assert stage.statuses("a")[1] == stage.statuses("b")[1] == "subsumed"


def test_all_jobs_are_collected(stage):
    before = 0
    for job in ("a", "b"):
        stage.run(job)
        before += sum(stage.files().values()) if job == "b" else 0
    assert maintenance_dag.collect_all() == before - sum(stage.files().values())
    assert stage.statuses("a") == stage.statuses("b") == {1: "subsumed", 2: "subsumed", 3: "completed"}


def test_what_could_not_be_deleted_fails_the_task_after_all_jobs(stage, tmp_path, monkeypatch):
    other = WrittenStage(CheckpointStorage.open(str(tmp_path / "away")), stage.clock, stage.store)
    other.run("away")
    stage.run("here")

    def opener(base: str) -> Any:
        if "away" in base:
            raise StorageError("It does not answer.")
        return CheckpointStorage.open(base)

    monkeypatch.setattr(maintenance_dag, "guarded_storage_opener", lambda conn_id: opener)
    with pytest.raises(StorageError, match="It does not answer"):
        maintenance_dag.collect_all()
    assert stage.statuses("here")[1] == "subsumed"


def test_old_test_jobs_are_pruned_and_named_jobs_stay(stage):
    stage.run("test/old")
    stage.run("named")
    stage.clock.advance(timedelta(days=31).total_seconds())
    stage.run("test/young")
    assert maintenance_dag.prune_all() == 1
    assert {job.name for job in stage.maintenance.jobs()} == {"named", "test/young"}


def test_a_job_is_removed_that_a_user_asked_to_remove(stage):
    stage.run("named")
    stage.clock.advance(1)
    removal = UserAction(job_id=job_id_of("named"), action=JobAction.PRUNE, request_key=new_key(), requested_by="anna")
    stage.actions.request(removal)
    assert maintenance_dag.prune_all() == 1
    assert stage.files() == {}


def test_an_age_of_less_than_a_day_is_refused_before_anything_goes(stage):
    stage.run("test/sales")
    stage.clock.advance(timedelta(days=31).total_seconds())
    before = stage.maintenance.describe(job_id_of("test/sales"))
    with pytest.raises(InvalidConfigurationError, match="a day or more"):
        maintenance_dag.prune_all(timedelta(hours=1))
    assert stage.maintenance.describe(job_id_of("test/sales")) == before


def test_storage_that_does_not_answer_stops_no_verification_of_other_jobs(stage, tmp_path, monkeypatch):
    """Jobs are visited the newest first: one is damaged before, one after that whose storage is away."""
    stage.run("last")
    away = WrittenStage(CheckpointStorage.open(str(tmp_path / "away")), stage.clock, stage.store)
    stage.clock.advance(1)
    away.run("away")
    stage.clock.advance(1)
    stage.run("first")

    def opener(base: str) -> Any:
        if "away" in base:
            raise StorageError("s3://key:secret@lake does not answer.")
        return CheckpointStorage.open(base)

    monkeypatch.setattr(maintenance_dag, "guarded_storage_opener", lambda conn_id: opener)
    with pytest.raises(StorageError, match=r"1 job\(s\).*away: s3://\*\*\*@lake does not answer") as raised:
        maintenance_dag.verify_all()
    assert not isinstance(raised.value, CorruptStateError)
    for job in ("first", "last"):
        row = stage.coordinator.describe(job_id_of(job)).checkpoints[-1]
        local_path(str(row.metadata_uri)).unlink()
    with pytest.raises(CorruptStateError, match=r"found 2 that cannot.*1 job\(s\).*away: s3"):
        maintenance_dag.verify_all()


def test_damage_that_was_found_in_a_job_before_its_storage_failed_is_told(stage, tmp_path, monkeypatch):
    stage.run("a", uid="one")
    other = WrittenStage(CheckpointStorage.open(str(tmp_path / "away")), stage.clock, stage.store)
    other.run("a", uid="two")
    row = stage.coordinator.describe(job_id_of("a")).checkpoints[2]
    local_path(str(row.metadata_uri)).unlink()

    def opener(base: str) -> Any:
        if "away" in base:
            raise StorageError("It does not answer.")
        return CheckpointStorage.open(base)

    monkeypatch.setattr(maintenance_dag, "guarded_storage_opener", lambda conn_id: opener)
    with pytest.raises(CorruptStateError, match=r"found 1 that cannot.*It does not answer"):
        maintenance_dag.verify_all()


@pytest.mark.parametrize("is_deep", [False, True])
def test_a_checkpoint_that_cannot_be_restored_fails_the_task(stage, is_deep):
    stage.run("a")
    stage.run("b")
    assert maintenance_dag.verify_all(is_deep=is_deep) == 2
    row = stage.coordinator.describe(job_id_of("a")).checkpoints[-1]
    local_path(str(row.metadata_uri)).unlink()
    with pytest.raises(CorruptStateError, match="2 restorable checkpoints, found 1"):
        maintenance_dag.verify_all(is_deep=is_deep)


def test_a_job_whose_rows_cannot_be_read_fails_the_tasks_after_all_jobs(stage):
    for job in ("first", "sales", "last"):
        stage.run(job)
    write_bad_value(stage.store, "sales", "UPDATE statecheck_attempt SET owner = '{' WHERE job_id = :job")
    named = r"column owner of table statecheck_attempt"

    with pytest.raises(StorageError, match=f"found 1 failure.*{named}"):
        maintenance_dag.collect_all()
    with pytest.raises(CorruptStateError, match=named):
        maintenance_dag.verify_all()
    with pytest.raises(StorageError, match=f"found 1 failure.*{named}"):
        maintenance_dag.prune_all()
    assert stage.statuses("first") == stage.statuses("last") == {1: "subsumed", 2: "subsumed", 3: "completed"}
