"""Contents and snapshots of a job by the hook, in a process with access to the rows and the storage."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, RowsVersion
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, UnknownStateError
from airflow_provider_statecheck.hooks import statecheck
from airflow_provider_statecheck.hooks.statecheck import StatecheckHook
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.unit.written_stage import JOB, WrittenStage, local_path


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WrittenStage:
    stage = WrittenStage(CheckpointStorage.open(tmp_path.as_uri()))
    monkeypatch.setattr(statecheck, "airflow_gateway", lambda conn_id: stage.coordinator)
    monkeypatch.setattr(statecheck, "storage_opener", lambda conn_id: CheckpointStorage.open)
    return stage


def overtaken(stage: WrittenStage, monkeypatch: pytest.MonkeyPatch) -> CheckpointRecord:
    """Take a checkpoint that the next one replaces as soon as it is looked up."""
    attempt = stage.attempt(num_retained=1)
    first = stage.take(attempt, stage.snapshot(attempt, "visits", 5))
    look_up = stage.coordinator.latest_checkpoints

    def looked_up(job_id: JobId, known_version: RowsVersion | None = None) -> object:
        found = look_up(job_id, known_version)
        if local_path(first.location).exists():
            stage.take(attempt, stage.snapshot(attempt, "visits", 7))
            shutil.rmtree(local_path(first.location))
        return found

    monkeypatch.setattr(stage.coordinator, "latest_checkpoints", looked_up)
    return first


def test_contents_and_rows_of_the_latest_checkpoint_are_read(stage: WrittenStage) -> None:
    attempt = stage.attempt(num_retained=2)
    stage.take(attempt, stage.snapshot(attempt, "visits", 5))
    stage.take(attempt, stage.snapshot(attempt, "visits", 7))
    hook = StatecheckHook()
    (found,) = hook.contents(JOB)
    (snapshot,) = found.contents.snapshots()
    assert (found.checkpoint_id, snapshot.name, snapshot.rows) == (2, "visits", 14)
    table = hook.read_snapshot(JOB, "visits", columns=["n"]).read_all()
    assert sorted(table.column("n").to_pylist()) == sorted([*range(7), *range(1, 8)])
    assert hook.read_snapshot(JOB, "visits", checkpoint_id=1).read_all().num_rows == 10
    assert hook.read_snapshot(found.contents.checkpoint.document.job_id, "visits").read_all().num_rows == 14


def test_unknown_names_are_told(stage: WrittenStage) -> None:
    stage.run()
    hook = StatecheckHook()
    with pytest.raises(CheckpointNotFoundError):
        hook.contents("unknown")
    with pytest.raises(CheckpointNotFoundError, match="'other'"):
        hook.contents(JOB, "other")
    with pytest.raises(UnknownStateError, match="step 2"):
        hook.read_snapshot(JOB, "visits")


def test_checkpoint_that_is_subsumed_during_the_look_up_gives_way_to_the_next(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    overtaken(stage, monkeypatch)
    assert StatecheckHook().read_snapshot(JOB, "visits").read_all().num_rows == 14


def test_operator_whose_metadata_is_missing_is_listed_with_its_error_beside_the_others(stage: WrittenStage) -> None:
    attempts = [stage.attempt(uid=uid) for uid in ("first", "second")]
    _, second = [stage.take(attempt, stage.snapshot(attempt, "visits")) for attempt in attempts]
    shutil.rmtree(local_path(second.location))
    listed, missing = StatecheckHook().contents(JOB)
    assert (listed.error, [each.name for each in listed.listing.snapshots]) == (None, ["visits"])
    assert isinstance(missing.error, CheckpointNotFoundError)
    assert [each.kind for each in missing.listing.unreadable] == ["checkpoint"]
    with pytest.raises(CheckpointNotFoundError):
        missing.contents.snapshots()
    with pytest.raises(CheckpointNotFoundError):
        StatecheckHook().contents(JOB, "second")


def test_listing_of_a_checkpoint_that_is_subsumed_meanwhile_gives_way_to_the_next(
    stage: WrittenStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = overtaken(stage, monkeypatch)
    (found,) = StatecheckHook().contents(JOB)
    assert (found.checkpoint_id, found.error) == (first.checkpoint_id + 1, None)


def test_files_that_are_missing_for_good_are_an_error(stage: WrittenStage) -> None:
    attempt = stage.attempt()
    shutil.rmtree(local_path(stage.take(attempt, stage.snapshot(attempt, "visits")).location))
    with pytest.raises(CheckpointNotFoundError):
        StatecheckHook().contents(JOB)
