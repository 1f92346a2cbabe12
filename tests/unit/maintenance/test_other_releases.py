"""Files of another release, which are intact: nothing skips, marks or deletes them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import UnknownVersionError
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.recover import JobRecovery, Recoveries
from airflow_provider_statecheck.storage import metadata_file, snapshot_manifest
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.messages import ManualClock
from tests.sqlite_rows import new_store
from tests.unit.written_stage import JOB, WrittenStage, collect

FORMATS = {"metadata": (metadata_file, "VERSION"), "manifest": (snapshot_manifest, "FORMAT_VERSION")}


@contextmanager
def later_release(*formats: str) -> Iterator[None]:
    """Write and read as a release with other formats."""
    with pytest.MonkeyPatch.context() as patch:
        for each in formats:
            patch.setattr(*FORMATS[each], 9)
        yield


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), store=new_store(ManualClock()))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_retry_of_an_older_release_neither_falls_back_nor_gives_up_the_checkpoint(stage, kind):
    attempt = stage.attempt(num_retained=2)
    stage.take(attempt, stage.snapshot(attempt, "first"))
    with later_release(kind):
        stage.take(attempt, stage.snapshot(attempt, "second"))
    attempt.finish(AttemptStatus.FAILED)
    with pytest.raises(UnknownVersionError, match=r"use the release of .* that wrote it, or choose another"):
        stage.attempt(num_retained=2).restore()
    before = stage.files()
    collect(stage)
    assert stage.files() == before
    assert stage.statuses() == {1: "completed", 2: "completed"}
    rows = stage.coordinator.describe(job_id_of(JOB)).checkpoints
    assert [row.unusable_reason for row in rows] == [None, None]


@pytest.mark.parametrize("has_row", [True, False], ids=["ended", "without a row"])
def test_garbage_collection_keeps_a_job_whose_files_it_cannot_read(stage, has_row):
    with later_release("metadata"):
        stage.run(checkpoints=2)
    if not has_row:
        lost = WrittenStage(stage.storage, store=new_store(ManualClock()))
        lost.run(checkpoints=0)
        stage = lost
    before = stage.files()
    report = collect(stage)
    assert stage.files() == before
    assert report.problems


def test_a_job_is_not_recovered_from_a_checkpoint_before_that_of_another_release(stage):
    attempt = stage.attempt(num_retained=2)
    stage.take(attempt, stage.snapshot(attempt, "first"))
    with later_release("metadata"):
        stage.take(attempt, stage.snapshot(attempt, "second"))
    attempt.finish(AttemptStatus.FAILED)
    rows = new_store(ManualClock())
    [recovered] = Recoveries(JobRecovery(rows), CheckpointStorage.open).recover(stage.storage.base_uri)
    assert recovered.job is None
    assert "use the release" in " ".join(recovered.problems)
    assert list(rows.jobs()) == []


def test_a_savepoint_of_another_release_is_not_disposed(stage):
    with later_release("metadata"):
        attempt = stage.attempt()
        stage.request_savepoint(attempt, stage.storage.base_uri)
        stage.take(attempt, stage.snapshot(attempt, "first"))
        attempt.finish(AttemptStatus.FAILED)
    [savepoint] = [name for name in stage.storage.list_directories(stage.storage.base_uri) if "savepoint" in name]
    before = stage.files()
    with pytest.raises(UnknownVersionError):
        dispose(stage.savepoints, stage.maintenance, CheckpointStorage.open, f"{stage.storage.base_uri}/{savepoint}")
    assert stage.files() == before
