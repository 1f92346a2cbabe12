"""Maintenance of jobs that have savepoints of the whole job."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_provider_statecheck.checkpoint.ids import ALIGNED_UID, job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.gc import collect_job
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoveredJob, Recoveries
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier, verify_job
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.job_savepoints import SAVEPOINT_ID, add_row, save_job
from tests.unit.written_stage import JOB, WrittenStage, local_path
from tests.written_snapshots import flip

LARGE_STATE = ["an item that is finished"] * 2000


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/savepoints"


@pytest.fixture
def pointer(stage: WrittenStage, target: str) -> str:
    """A savepoint of two stages, with its row."""
    taken = []
    for uid in ("extract", "load"):
        attempt = stage.attempt(uid=uid)
        taken.append(stage.take(attempt, stage.snapshot(attempt, f"rows of {uid}"), state=LARGE_STATE))
        attempt.finish(AttemptStatus.FINISHED)
    found = save_job(stage.storage, taken, target, empty=("notify",))
    add_row(stage.store, stage.storage, found)
    return found


def files_of(pointer: str) -> set[Path]:
    return {path for path in local_path(pointer).rglob("*") if path.is_file()}


def recover(stage: WrittenStage, target: str) -> RecoveredJob:
    recoveries = Recoveries(JobRecovery(stage.store), CheckpointStorage.open, savepoints=target)
    [found] = recoveries.recover(stage.storage.base_uri)
    return found


def test_the_files_of_all_members_are_verified(stage: WrittenStage, pointer: str) -> None:
    verifier = CheckpointVerifier(stage.storage)
    assert verifier.verify_pointer(pointer).problems == ()
    [manifest] = [path for path in files_of(pointer) if "of_load" in str(path) and path.name == "_manifest"]
    flip(manifest, -15)
    [state, *_] = [path for path in files_of(pointer) if path.stat().st_size > 40_000 and "shared" not in str(path)]
    state.unlink()
    problems = CheckpointVerifier(stage.storage).verify_pointer(pointer).problems
    assert len(problems) == 2, problems
    assert any("snapshot 'rows of load'" in problem for problem in problems)


def test_the_savepoint_of_a_row_is_verified_with_its_members(stage: WrittenStage, pointer: str) -> None:
    view = stage.coordinator.describe(job_id_of(JOB))
    results = verify_job(
        stage.maintenance, view, CheckpointStorage.open, checkpoint_id=SAVEPOINT_ID, with_savepoints=True
    )
    assert [each.problems for each in results] == [()]
    [manifest] = [path for path in files_of(pointer) if "of_extract" in str(path) and path.name == "_manifest"]
    manifest.unlink()
    [damaged] = verify_job(
        stage.maintenance, view, CheckpointStorage.open, checkpoint_id=SAVEPOINT_ID, with_savepoints=True
    )
    assert not damaged.is_restorable


def test_garbage_collection_keeps_it_and_collects_the_rest(stage: WrittenStage, pointer: str) -> None:
    before = files_of(pointer)
    collected = collect_job(stage.maintenance, job_id_of(JOB), CheckpointStorage.open)
    assert not collected.skipped
    assert files_of(pointer) == before


def test_recovery_makes_a_row_of_it_that_no_stage_restores(stage: WrittenStage, pointer: str, target: str) -> None:
    lost = WrittenStage(stage.storage)
    found = recover(lost, target)
    assert (found.operators, found.savepoints, found.problems) == (("extract", "load"), (pointer,), ())
    view = lost.coordinator.describe(job_id_of(JOB))
    uids = {operator.operator_id: operator.uid for operator in view.operators}
    of_whole = [uids[c.operator_id] for c in view.checkpoints if c.location == pointer]
    assert of_whole == [ALIGNED_UID]
    restored = lost.attempt(uid="load").restore()
    assert restored is not None
    assert restored.checkpoint.location != pointer


def test_stages_of_which_only_the_savepoint_is_left_are_recovered_without_state(
    stage: WrittenStage, pointer: str, target: str
) -> None:
    epochs = {operator.uid: operator.epoch for operator in stage.coordinator.describe(job_id_of(JOB)).operators}
    for path in local_path(stage.storage.base_uri).glob("*/chk-*/_metadata"):
        path.unlink()
    lost = WrittenStage(stage.storage)
    found = recover(lost, target)
    assert found.operators == ("extract", "load")
    assert found.problems == tuple(f"operator {uid!r} has no restorable checkpoint" for uid in found.operators)
    attempt = lost.attempt(uid="load")
    assert attempt.restore() is None
    assert attempt.grant.attempt.epoch > epochs["load"]


def test_disposing_of_it_deletes_all_members(stage: WrittenStage, pointer: str) -> None:
    dispose(stage.savepoints, stage.maintenance, CheckpointStorage.open, pointer)
    assert files_of(pointer) == set()
