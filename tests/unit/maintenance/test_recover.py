"""Rows made anew from what is left on storage."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import LoopSummary
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    SavepointClaimedError,
    StorageError,
)
from airflow_provider_statecheck.maintenance.disposal import dispose
from airflow_provider_statecheck.maintenance.recover import JobRecovery, RecoveredJob, Recoveries
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata, encode_metadata
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.messages import ManualClock, make_owner
from tests.sqlite_rows import new_store, write_bad_value
from tests.unit.storage.keyed_files import state_file, take
from tests.unit.written_stage import JOB, WrittenStage, collect, local_path

LARGE_STATE = ["an item that is finished"] * 2000


@pytest.fixture
def stage(tmp_path: Path) -> WrittenStage:
    return WrittenStage(CheckpointStorage.open(str(tmp_path / "base")), store=new_store(ManualClock()))


@pytest.fixture
def lost(stage: WrittenStage) -> WrittenStage:
    """The same bytes without a row."""
    return WrittenStage(stage.storage, store=new_store(ManualClock()))


def recover(stage: WrittenStage, job: str | None = None, **options: Any) -> list[RecoveredJob]:
    opener = options.pop("opener", CheckpointStorage.open)
    return Recoveries(JobRecovery(stage.store), opener, **options).recover(stage.storage.base_uri, job)


def worked(stage: WrittenStage, **changes: Any) -> None:
    """Complete checkpoints with a snapshot each and state in a file."""
    attempt = stage.attempt(num_retained=2, **changes)
    for i in range(3):
        stage.take(attempt, stage.snapshot(attempt, f"step {i}"), state=[*LARGE_STATE, i])
    attempt.finish(AttemptStatus.FAILED)


@pytest.mark.parametrize("run", ["same", "other"])
def test_a_stage_goes_on_from_its_newest_checkpoint_with_nothing_computed_twice(stage, lost, run):
    worked(stage)
    (done,) = recover(lost)
    assert (done.job, done.is_recovered, done.operators, done.problems) == (JOB, True, ("aggregate",), ())
    owner = make_owner() if run == "same" else make_owner(run_key="2026-01-09", run_id="a new run")
    before, after = stage.attempt(owner=owner).restore(), lost.attempt(owner=owner).restore()
    assert before is not None
    assert after is not None
    assert (after.document, after.state, after.manifests) == (before.document, before.state, before.manifests)


def test_recovered_checkpoints_have_the_figures_that_follow_from_their_metadata(stage, lost):
    attempt = stage.attempt(num_retained=2)
    loops = {"loops": [[[], "days", ["1", "2"]]], "iterations": []}
    snapshot = stage.snapshot(attempt, "orders")
    attempt.take_checkpoint(CheckpointContent(snapshots=(snapshot,), state=loops))
    attempt.finish(AttemptStatus.FAILED)
    recover(lost)
    (row,) = lost.coordinator.describe(job_id_of(JOB)).checkpoints
    assert row.summary is not None
    (step,) = row.summary.steps
    assert (step.name, step.outcome, step.seconds, step.size_bytes) == ("orders", "held", 1.0, snapshot.size_bytes)
    assert row.summary.loops == (LoopSummary(name="days", finished=2),)


def test_a_checkpoint_whose_figures_cannot_be_read_is_recovered_without_them(stage, lost):
    attempt = stage.attempt(num_retained=2)
    snapshot = stage.snapshot(attempt, "orders")
    attempt.take_checkpoint(CheckpointContent(snapshots=(snapshot,), state={"loops": 7}))
    attempt.finish(AttemptStatus.FAILED)
    (done,) = recover(lost)
    assert done.is_recovered
    assert lost.coordinator.describe(job_id_of(JOB)).checkpoints[0].summary is None


def test_the_next_attempt_and_checkpoint_have_higher_numbers_than_any_that_wrote(stage, lost):
    worked(stage)
    dead = stage.attempt()
    stage.snapshot(dead, "orphan")
    stage.storage.write_bytes(f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-9/7-{'0' * 32}", b"half")
    recover(lost)
    attempt = lost.attempt()
    assert attempt.grant.attempt.epoch == 8
    attempt.restore()
    assert lost.take(attempt).checkpoint_id == 10


def test_a_collection_after_it_deletes_nothing_that_a_recovered_row_names(stage, lost):
    worked(stage)
    orphan = stage.attempt()
    stage.snapshot(orphan, "orphan")
    recover(lost)
    collect(lost)
    assert not any(d.startswith("orphan") for d in lost.directories())
    assert lost.attempt().restore() is not None


def test_a_corrupt_checkpoint_is_told_and_left_and_an_older_one_used(stage, lost):
    worked(stage)
    path = local_path(f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-3/_metadata")
    path.write_bytes(path.read_bytes()[:-1] + b"?")
    (done,) = recover(lost)
    assert [u.rpartition("/")[2] for u in done.checkpoints] == ["chk-1", "chk-2"]
    assert "chk-3" in done.problems[0]
    collect(lost)
    assert path.exists()
    restored = lost.attempt().restore()
    assert restored is not None
    assert restored.checkpoint.checkpoint_id == 2


def test_a_checkpoint_whose_snapshot_lost_a_file_is_not_restored(stage, lost):
    worked(stage)
    next(local_path(stage.storage.base_uri).glob("*/shared/*/step_2-*/*/data/part-0.parquet")).unlink()
    (done,) = recover(lost)
    assert len(done.checkpoints) == 2
    assert "part-0.parquet" in " ".join(done.problems)


def test_only_the_newest_generation_is_restored(stage, lost):
    worked(stage)
    again = make_owner(run_id="a new run under the old date")
    attempt = stage.attempt(owner=again)
    assert not attempt.grant.is_restore
    stage.take(attempt, stage.snapshot(attempt, "anew"))
    (done,) = recover(lost)
    assert [u.rpartition("/")[2] for u in done.checkpoints] == ["chk-4"]


def test_an_operator_with_nothing_to_restore_is_told_and_starts_afresh_above_the_old_epochs(stage, lost):
    worked(stage)
    for path in local_path(stage.storage.base_uri).glob("*/shared/*/*/*/_manifest"):
        path.unlink()
    (done,) = recover(lost)
    assert "operator 'aggregate' has no restorable checkpoint" in done.problems
    attempt = lost.attempt()
    assert (attempt.grant.attempt.epoch, attempt.grant.is_restore) == (2, False)
    assert lost.take(attempt).checkpoint_id == 4


def test_a_job_with_rows_is_refused(stage, lost):
    worked(stage)
    assert recover(lost)[0].is_recovered
    before = lost.maintenance.describe(job_id_of(JOB))
    (again,) = recover(lost)
    assert (again.is_recovered, again.problems) == (False, ("the database has rows of it, which were not changed",))
    assert lost.maintenance.describe(job_id_of(JOB)) == replace(before)


def test_a_job_that_registered_while_it_was_looked_at_is_refused(stage, lost, monkeypatch):
    worked(stage)
    lost.attempt()
    monkeypatch.setattr(JobRecovery, "problem_of", lambda *_: None)
    (done,) = recover(lost)
    assert not done.is_recovered
    assert "no rows" in done.problems[0]


def test_a_dry_run_tells_the_same_and_makes_nothing(stage, lost):
    worked(stage)
    told = recover(lost, dry_run=True)
    assert lost.maintenance.jobs() == ()
    assert told == recover(lost)


def test_only_the_job_that_is_named_is_recovered(stage, lost):
    worked(stage)
    stage.run("other")
    assert [done.job for done in recover(lost, JOB)] == [JOB]
    assert [done.job for done in recover(lost, job_id_of("other"))] == ["other"]
    with pytest.raises(CheckpointNotFoundError, match="found none"):
        recover(lost, "a third")


def test_savepoints_in_a_directory_are_known_again(stage, lost, tmp_path):
    attempt = stage.attempt()
    target = f"file://{tmp_path}/savepoints"
    stage.request_savepoint(attempt, target)
    stage.take(attempt, stage.snapshot(attempt, "raw"))
    (done,) = recover(lost, savepoints=target)
    assert len(done.savepoints) == 1
    rows = lost.maintenance.describe(job_id_of(JOB)).checkpoints
    assert [c.properties.is_savepoint for c in rows] == [False, True]
    collect(lost)
    assert stage.storage.allowing(target).list_files(done.savepoints[0])
    restored = lost.attempt().restore()
    assert restored is not None
    assert restored.checkpoint.checkpoint_id == 1


@pytest.mark.parametrize("named", [None, JOB])
def test_savepoints_do_not_recover_a_job_that_has_its_checkpoints_in_another_directory(stage, lost, tmp_path, named):
    target = f"file://{tmp_path}/savepoints"
    attempt = stage.attempt()
    stage.request_savepoint(attempt, target)
    stage.take(attempt)
    elsewhere = WrittenStage(CheckpointStorage.open(str(tmp_path / "elsewhere")), store=lost.store)
    with pytest.raises(CheckpointNotFoundError, match="correct the checkpoint directory"):
        recover(elsewhere, named, savepoints=target)
    WrittenStage(elsewhere.storage, store=new_store(ManualClock())).run("other")
    of_job = next(done for done in recover(elsewhere, named, savepoints=target) if done.job == JOB)
    assert not of_job.is_recovered
    assert "recover it from its checkpoint directory" in of_job.problems[0]
    assert [job.name for job in lost.maintenance.jobs()] == ([] if named else ["other"])
    (done,) = recover(lost, savepoints=target)
    assert (done.is_recovered, len(done.checkpoints), len(done.savepoints)) == (True, 1, 1)


def test_a_recovered_savepoint_without_checkpoints_does_not_keep_the_job_from_starting(stage, lost, tmp_path):
    test_savepoints_in_a_directory_are_known_again(stage, WrittenStage(stage.storage), tmp_path)
    for path in local_path(stage.storage.base_uri).glob("*/chk-*/_metadata"):
        path.unlink()
    (done,) = recover(lost, savepoints=f"file://{tmp_path}/savepoints")
    assert "no restorable checkpoint" in done.problems[-1]
    attempt = lost.attempt()
    assert not attempt.grant.is_restore
    assert lost.take(attempt).checkpoint_id == 3


def test_metadata_in_the_directory_of_another_checkpoint_is_told(stage, lost):
    worked(stage)
    root = f"{stage.storage.base_uri}/{job_id_of(JOB)}"
    stage.storage.write_bytes(f"{root}/chk-7/_metadata", stage.storage.read_bytes(f"{root}/chk-3/_metadata"))
    (done,) = recover(lost)
    assert "chk-7, found checkpoint 3" in done.problems[0]
    assert [u.rpartition("/")[2] for u in done.checkpoints] == ["chk-1", "chk-2", "chk-3"]


@pytest.mark.parametrize("name", ["other", "", "a://b"])
def test_metadata_with_a_name_that_no_id_of_their_directory_has_is_told(stage, lost, name):
    worked(stage)
    root = f"{stage.storage.base_uri}/{job_id_of(JOB)}"
    source, target = (f"{root}/chk-{number}/_metadata" for number in (3, 7))
    document = decode_metadata(stage.storage.read_bytes(source), uri=source)
    stage.storage.write_bytes(target, encode_metadata(replace(document, job_name=name), uri=target))
    (done,) = recover(lost)
    assert "names that match their ids in" in done.problems[0]
    assert done.is_recovered


def test_a_job_without_any_readable_metadata_is_told(stage, lost):
    stage.storage.write_bytes(f"{stage.storage.base_uri}/{'a' * 32}/chk-1/_metadata", b"damaged")
    (done,) = recover(lost)
    assert (done.job, done.is_recovered) == (None, False)
    assert "its name is unknown" in done.problems[-1]
    assert lost.maintenance.jobs() == ()


def test_an_absurd_checkpoint_id_is_refused_and_other_jobs_are_recovered(stage, lost):
    worked(stage)
    stage.run("other")
    stage.storage.write_bytes(f"{stage.storage.base_uri}/{job_id_of(JOB)}/chk-99999999999/1-{'0' * 32}", b"")
    done = {each.job: each for each in recover(lost)}
    assert (done[JOB].is_recovered, done["other"].is_recovered) == (False, True)


def test_a_job_that_was_removed_keeps_its_higher_epoch(stage, lost):
    worked(stage)
    with lost.store.transaction(job_id_of(JOB), create_as=JOB) as tx:
        operator = stage.maintenance.describe(job_id_of(JOB)).operators[0]
        tx.save_operator(replace(operator, epoch=40))
    recover(lost)
    assert lost.attempt().grant.attempt.epoch == 41


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_recovery_that_fails_at_any_read_is_made_good_by_the_next(stage, mode):
    worked(stage)
    stage.run("other")
    plan = FaultPlan()

    def opener(base: str) -> Any:
        return faulty_storage(CheckpointStorage.open(base), plan)

    recover(WrittenStage(stage.storage, store=new_store(ManualClock())), opener=opener)
    for point in range(1, len(plan.calls) + 1):
        plan = FaultPlan(point, mode)
        again = WrittenStage(stage.storage, store=new_store(ManualClock()))
        try:
            assert any(each.unreachable for each in recover(again, opener=opener))
        except StorageError:
            assert not again.maintenance.jobs()  # the directories could not be listed
        recover(again)
        restored = again.attempt().restore()
        assert restored is not None
        assert restored.checkpoint.checkpoint_id == 3
        assert len(again.maintenance.jobs()) == 2


@pytest.mark.parametrize("is_committed", [False, True])
def test_a_commit_of_unknown_outcome_is_made_good_by_the_next_call(stage, lost, monkeypatch, is_committed):
    worked(stage)
    honest = JobRecovery.recover

    def unknown(self: JobRecovery, request: Any, **options: Any) -> None:
        if is_committed:
            honest(self, request, **options)
        raise CommitStateUnknownError("The reply was lost.")

    with monkeypatch.context() as patch:
        patch.setattr(JobRecovery, "recover", unknown)
        (unknown_outcome,) = recover(lost)
        assert unknown_outcome.unreachable == ("The reply was lost.",)
    recover(lost)
    assert len(lost.maintenance.describe(job_id_of(JOB)).checkpoints) == 3


def test_a_savepoint_whose_files_a_checkpoint_names_stays_claimed(stage, lost, tmp_path):
    target = f"file://{tmp_path}/savepoints"
    attempt = stage.attempt("giver")
    stage.request_savepoint(attempt, target)
    stage.take(attempt, stage.snapshot(attempt, "raw"))
    (pointer,) = [
        c.location for c in stage.maintenance.describe(job_id_of("giver")).checkpoints if c.properties.is_savepoint
    ]
    source = stage.source_at(pointer, mode=RestoreMode.CLAIM)
    heir = stage.attempt(restore_from=source)
    restored = heir.restore()
    assert restored is not None
    stage.take(heir, *restored.document.snapshots)
    (refused,) = recover(WrittenStage(stage.storage), JOB)
    assert "allowed_locations" in refused.problems[0]
    recover(lost, JOB, opener=lambda base: CheckpointStorage.open(base).allowing(target))
    with pytest.raises(SavepointClaimedError):
        dispose(lost.savepoints, lost.maintenance, CheckpointStorage.open, pointer)
    lost.storage = lost.storage.allowing(target)
    assert lost.attempt().restore() is not None


def test_state_of_operators_counts_is_verified_and_is_committed_again(stage, lost):
    attempt = stage.attempt(num_retained=2)
    files = [state_file(stage.storage, attempt.grant.attempt, b"x" * 100) for _ in range(2)]
    take(attempt, files[0])
    newest = take(attempt, *files, has_commit=True)
    attempt.finish(AttemptStatus.FAILED)
    (done,) = recover(lost)
    assert done.checkpoints == tuple(c.location for c in stage.coordinator.describe(job_id_of(JOB)).checkpoints)
    row = lost.coordinator.describe(job_id_of(JOB)).checkpoints[-1]
    assert (row.full_size_bytes, row.counts["operators"]) == (newest.full_size_bytes - len(b"{}"), 1)
    assert lost.attempt().grant.effects.commits == (2,)


def test_a_checkpoint_whose_state_is_damaged_is_told_and_not_recovered(stage, lost):
    attempt = stage.attempt(num_retained=2)
    files = [state_file(stage.storage, attempt.grant.attempt) for _ in range(2)]
    take(attempt, files[0])
    take(attempt, *files)
    attempt.finish(AttemptStatus.FAILED)
    stage.storage.delete_file(files[1].uri)
    (done,) = recover(lost)
    assert [c.rpartition("/")[2] for c in done.checkpoints] == ["chk-1"]
    assert any("state of operator 'aggregate/balance'" in problem for problem in done.problems)


@pytest.mark.parametrize("table", ["job", "attempt"])
def test_a_job_whose_rows_cannot_be_read_is_told_and_the_others_are_recovered(stage, lost, table):
    for job in ("orders", "sales"):
        worked(stage, job_name=job)
    worked(lost, job_name="sales")
    column = {"job": "name", "attempt": "status"}[table]
    write_bad_value(lost.store, "sales", f"UPDATE statecheck_{table} SET {column} = x'FF' WHERE job_id = :job")

    found = {each.job: each for each in recover(lost)}

    assert found["orders"].is_recovered
    (problem,) = found["sales"].problems
    assert f"column {column} of table statecheck_{table}" in problem
