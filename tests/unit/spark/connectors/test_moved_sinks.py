"""The output of a sink whose place changes from run to run."""

from __future__ import annotations

import logging
import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    IncompatibleCheckpointError,
    StaleAttemptError,
    StateCheckError,
    StorageError,
)
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.exactly_once.commit_files import CommitFiles
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.storage import file_operations
from airflow_provider_statecheck.testing.faults import FaultMode, Killed
from airflow_provider_statecheck.testing.sink_faults import LOG_STEPS, StepPlan, counted
from tests.unit.spark.connectors.folder_sink import FolderSink
from tests.unit.spark.connectors.moving import KINDS, MovingJob, Places, TablesOfOneDatabase, Taken


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_operations, "PARALLEL_CALLS", 1)  # so that a number is always the same call


@pytest.fixture
def job(tmp_path: Path) -> MovingJob:
    return MovingJob(Places(tmp_path / "output"))


@pytest.fixture(params=KINDS)
def each_job(request: pytest.FixtureRequest, tmp_path: Path) -> MovingJob:
    return MovingJob(KINDS[request.param](tmp_path / "output"))


def test_each_run_adds_its_rows_at_its_own_place(each_job: MovingJob) -> None:
    first = each_job.run("a", None, 1)
    second = each_job.run("b", first, 2)
    each_job.run("c", second, 3)
    assert each_job.seen("a", "b", "c") == {"a": [1], "b": [2], "c": [3]}


def test_run_with_several_checkpoints_and_tries_goes_on_at_its_place(each_job: MovingJob) -> None:
    first = each_job.run("a", None, 1)
    failing = each_job.begin("b", first)
    second = each_job.take(failing, 2)
    pending = each_job.take(failing, 3, commits=False)
    retry = each_job.begin("b", pending, is_pending=True, is_same_run=True)
    third = each_job.take(retry, 4)
    retry.finish()
    assert second.place == third.place
    assert each_job.seen("a", "b") == {"a": [1], "b": [2, 3, 4]}


def test_output_that_a_run_left_uncommitted_is_committed_at_its_place_once(each_job: MovingJob) -> None:
    left = each_job.take(each_job.begin("a"), 1, commits=False)
    each_job.begin("b", left, is_pending=True)
    assert each_job.seen("a", "b") == {"a": [1], "b": []}
    retry = each_job.begin("b", left, is_pending=True)
    each_job.take(retry, 2)
    retry.finish()
    assert each_job.seen("a", "b") == {"a": [1], "b": [2]}


def test_run_without_rows_commits_what_the_run_before_left(each_job: MovingJob) -> None:
    left = each_job.take(each_job.begin("a"), 1, commits=False)
    each_job.begin("b", left, is_pending=True).finish()
    each_job.run("c", left, 3)
    assert each_job.seen("a", "b", "c") == {"a": [1], "b": [], "c": [3]}


def test_output_of_runs_that_start_again_is_retracted_where_it_is(each_job: MovingJob) -> None:
    first = each_job.run("a", None, 1)
    second = each_job.run("b", first, 2)
    each_job.run("c", second, 3)
    again = each_job.begin("d", first)
    assert each_job.seen("a", "b", "c") == {"a": [1], "b": [2], "c": [3]}
    each_job.take(again, 20)
    assert each_job.seen("a", "b", "c", "d") == {"a": [1], "b": [], "c": [], "d": [20]}


def test_run_that_starts_again_at_its_place_replaces_its_output_and_that_of_later_runs(each_job: MovingJob) -> None:
    first = each_job.run("a", None, 1)
    second = each_job.run("b", first, 2)
    each_job.run("c", second, 3)
    again = each_job.run("b", first, 20)
    each_job.run("c", again, 30)
    assert each_job.seen("a", "b", "c") == {"a": [1], "b": [20], "c": [30]}


def test_places_that_several_runs_share_in_turn_keep_the_output_of_all(each_job: MovingJob) -> None:
    restored = None
    for number in range(1, 8):
        restored = each_job.run("abc"[number % 3], restored, number)
    assert each_job.seen("a", "b", "c") == {"a": [3, 6], "b": [1, 4, 7], "c": [2, 5]}


def test_run_that_starts_again_takes_back_only_its_part_of_a_shared_place(each_job: MovingJob) -> None:
    first = each_job.run("a", None, 1)
    second = each_job.run("b", first, 2)
    third = each_job.run("a", second, 3)
    each_job.run("b", third, 4)
    again = each_job.run("c", second, 30)
    each_job.run("b", again, 40)
    assert each_job.seen("a", "b", "c") == {"a": [1], "b": [2, 40], "c": [30]}


def test_checkpoints_that_could_not_be_read_are_retracted_at_their_place(each_job: MovingJob) -> None:
    attempt = each_job.begin("a")
    first = each_job.take(attempt, 1)
    each_job.take(attempt, 2)
    attempt.finish()
    each_job.run("b", first, 20)
    assert each_job.seen("a", "b") == {"a": [1], "b": [20]}


def test_another_place_within_a_run_is_refused_and_both_are_named(each_job: MovingJob) -> None:
    first = each_job.take(each_job.begin("a"), 1)
    with pytest.raises(IncompatibleCheckpointError, match=r"at .*a.*, where its run .* found it at .*b") as refused:
        each_job.begin("b", first, is_same_run=True)
    assert "on_clear='restart'" in str(refused.value)
    each_job.run("a", first, 2, is_same_run=True)
    assert each_job.seen("a", "b") == {"a": [1, 2], "b": []}


def test_superseded_driver_adds_nothing_at_the_former_place(each_job: MovingJob) -> None:
    zombie = each_job.begin("a")
    first = each_job.take(zombie, 1)
    late = zombie.write(9)
    each_job.run("b", first, 2)
    with pytest.raises(StaleAttemptError):
        zombie.commit(first.id + 9, late)
    assert each_job.seen("a", "b") == {"a": [1], "b": [2]}


def test_what_starts_again_is_retracted_although_the_driver_died_before_its_first_commit(job: MovingJob) -> None:
    first = job.run("a", None, 1)
    job.run("b", first, 2)
    pending = job.take(job.begin("c", first), 20, commits=False)
    assert job.seen("b", "c") == {"b": [2], "c": []}
    job.run("d", pending, 30, is_pending=True)
    assert job.seen("a", "b", "c", "d") == {"a": [1], "b": [], "c": [20], "d": [30]}


def test_what_starts_again_is_retracted_although_earlier_tries_took_no_checkpoint(job: MovingJob) -> None:
    first = job.run("a", None, 1)
    job.run("b", first, 2)
    for name in ("c", "d"):
        job.begin(name, first)
    job.run("e", first, 20)
    assert job.seen("a", "b", "e") == {"a": [1], "b": [], "e": [20]}


def test_retraction_that_fails_is_made_by_the_retry(job: MovingJob, monkeypatch: pytest.MonkeyPatch) -> None:
    first = job.run("a", None, 1)
    job.run("b", first, 2)
    attempt = job.begin("c", first)
    with monkeypatch.context() as patch:
        patch.setattr(CommitFiles, "write", lambda *_: (_ for _ in ()).throw(StorageError("gone")))
        with pytest.raises(StorageError):
            job.take(attempt, 20)
    pending = replace(job.take(job.begin("x"), commits=False), epoch=attempt.epoch, place=attempt.sink.place)  # type: ignore[attr-defined]
    pending = replace(pending, committables=attempt.write(20))
    job.run("c", pending, 21, is_pending=True, is_same_run=True)
    assert job.seen("a", "b", "c") == {"a": [1], "b": [], "c": [20, 21]}


STEPS = (*LOG_STEPS, (TargetFiles, "move"), (TargetFiles, "delete"))
MODES = [
    FaultMode.KILL_AFTER,
    *(pytest.param(mode, marks=pytest.mark.soak) for mode in (FaultMode.KILL, FaultMode.ERROR, FaultMode.REPLY_LOST)),
]


def try_that_fails(job: MovingJob, name: str, restored: Taken, plan: StepPlan, **how: bool) -> Taken | None:
    """Return the checkpoint of a try that ends at a step, if it has completed one."""
    taken = None
    with pytest.MonkeyPatch.context() as patch, suppress(Killed, StateCheckError):
        for owner, step in STEPS:
            patch.setattr(owner, step, counted(getattr(owner, step), step, plan))
        attempt = job.begin(name, restored, **how)
        taken = job.take(attempt, 20, commits=False)
        attempt.commit(taken.id, taken.committables)
        attempt.finish()
    return taken


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("is_pending", [False, True], ids=["runs that start again", "output left uncommitted"])
def test_fault_at_any_step_at_another_place_leaves_the_output_of_an_undisturbed_run(
    tmp_path: Path, mode: FaultMode, is_pending: bool
) -> None:
    for point in count(1):
        job, plan = MovingJob(Places(tmp_path / str(point))), StepPlan(point, mode)
        first = job.take(job.begin("a"), 1, commits=not is_pending)
        if not is_pending:
            job.run("b", first, 2)
        taken = try_that_fails(job, "c", first, plan, is_pending=is_pending)
        last = taken or job.run("c", first, 20, is_pending=is_pending)
        job.begin("c", last, is_pending=taken is not None, is_same_run=True).finish()
        assert job.seen("a", "b", "c") == {"a": [1], "b": [], "c": [20]}, f"a fault at step {point}"
        if len(plan.calls) < point:
            return


def test_checkpoint_whose_output_was_replaced_at_its_place_is_not_restored(job: MovingJob) -> None:
    attempt = job.begin("a")
    first, second = job.take(attempt, 1), job.take(attempt, 2)
    attempt.finish()
    job.run("b", first, 20)
    with pytest.raises(CorruptStateError, match=f"output of checkpoint {second.id}"):
        job.begin("c", second)


def test_directory_that_was_renamed_goes_on_under_its_new_name(job: MovingJob) -> None:
    attempt = job.begin("a")
    job.take(attempt, 1)
    pending = job.take(attempt, 2, commits=False)
    (job.places.folder / "a").rename(job.places.folder / "b")
    retry = job.begin("b", pending, is_pending=True, is_same_run=True)
    last = job.take(retry, 3)
    retry.finish()
    job.run("b", last, 4)
    assert job.seen("b") == {"b": [1, 2, 3, 4]}


@pytest.mark.parametrize("archived", ["deleted", "a file"])
def test_former_place_may_be_gone_once_its_output_is_committed(job: MovingJob, archived: str) -> None:
    first = job.run("a", None, 1)
    shutil.rmtree(job.places.folder / "a")
    if archived == "a file":
        (job.places.folder / "a").write_text("moved")
    second = job.run("b", first, 2)
    job.run("b", second, 3)
    assert job.seen("b") == {"b": [2, 3]}
    assert (job.places.folder / "a").is_file() == (archived == "a file")


def test_former_place_that_cannot_be_written_any_more_is_left_as_it_is(
    job: MovingJob, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = job.run("a", None, 1)
    claim = CommitFiles.claim

    def claim_elsewhere(files: CommitFiles, epoch: int) -> None:
        if "/a/" in files.storage.base_uri:
            raise StorageError("read-only")
        claim(files, epoch)

    monkeypatch.setattr(CommitFiles, "claim", claim_elsewhere)
    second = job.run("b", first, 2)
    job.run("c", second, 3)
    assert job.seen("a", "b", "c") == {"a": [1], "b": [2], "c": [3]}
    assert "is left as it is: read-only" in caplog.text


def test_uncommitted_output_at_a_place_that_is_gone_is_missed(job: MovingJob) -> None:
    left = job.take(job.begin("a"), 1, commits=False)
    shutil.rmtree(job.places.folder / "a")
    with pytest.raises(CorruptStateError, match="found neither"):
        job.begin("b", left, is_pending=True)


def test_checkpoint_of_an_older_version_goes_on_at_a_new_place_if_its_output_is_committed(
    job: MovingJob, caplog: pytest.LogCaptureFixture
) -> None:
    first = replace(job.run("a", None, 1), place=None)
    second = job.run("b", first, 2)
    assert "is new for 'stage/sink'" in caplog.text
    job.run("b", second, 3)
    assert job.seen("a", "b") == {"a": [1], "b": [2, 3]}


def test_checkpoint_of_an_older_version_goes_on_at_its_place(job: MovingJob) -> None:
    first = replace(job.take(job.begin("a"), 1, commits=False), place=None)
    job.run("a", first, 2, is_pending=True)
    assert job.seen("a") == {"a": [1, 2]}


def test_uncommitted_output_of_an_older_version_is_missed_at_a_new_place(job: MovingJob) -> None:
    left = replace(job.take(job.begin("a"), 1, commits=False), place=None)
    with pytest.raises(CorruptStateError, match="found neither"):
        job.begin("b", left, is_pending=True)


def test_sink_of_another_kind_goes_on_after_committed_output_only(job: MovingJob, tmp_path: Path) -> None:
    first = job.run("a", None, 1)
    left = job.take(job.begin("b", first), 2, commits=False)
    other = MovingJob(KINDS["delta"](tmp_path / "tables"), epoch=job.epoch, last_id=job.last_id)
    with pytest.raises(IncompatibleCheckpointError, match="is not known to be committed"):
        other.begin("b", left, is_pending=True)
    assert isinstance(other.begin("b", first).sink, DeltaSink)
    other.run("b", first, 3)
    assert other.seen("b") == {"b": [3]}


def test_custom_sink_that_cannot_reach_its_former_log_goes_on_after_committed_output_only(tmp_path: Path) -> None:
    class Fixed(Places):
        def sink(self, name: str) -> FolderSink:
            return FolderSink(self.folder / name)

    job = MovingJob(Fixed(tmp_path))
    first = job.run("a", None, 1)
    left = job.take(job.begin("b", first), 2, commits=False)
    with pytest.raises(IncompatibleCheckpointError, match="run the stage with the former sink and place"):
        job.begin("c", left, is_pending=True)
    job.run("b", left, 3, is_pending=True, is_same_run=True)
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["a", "b"]


def test_rows_that_wait_in_a_former_staging_directory_are_added(tmp_path: Path) -> None:
    class Staged(TablesOfOneDatabase):
        def sink(self, name: str) -> SqlSink:
            return SqlSink(self._url(name), "t_a", staging=str(self.folder / name))

    job = MovingJob(Staged(tmp_path / "output"))
    left = job.take(job.begin("a"), 1, commits=False)
    second = job.run("b", left, 2, is_pending=True, is_same_run=True)
    job.run("c", second, 3, is_same_run=True)
    assert job.seen("a") == {"a": [1, 2, 3]}


def test_place_with_credentials_is_recorded_without_them_and_not_opened_again(job: MovingJob) -> None:
    first = job.run("a", None, 1)
    assert first.place is not None
    concealed = replace(first, place=replace(first.place, address="s3://***@bucket/a"))
    job.run("b", concealed, 2)
    with pytest.raises(IncompatibleCheckpointError, match=r"s3://\*\*\*@bucket/a"):
        job.begin("c", concealed, is_pending=True)
    assert job.seen("b") == {"b": [2]}


@pytest.mark.parametrize("address", ["s3://archive/a", "memory://elsewhere/a"])
def test_credentials_of_a_sink_go_to_no_other_store_that_a_checkpoint_names(job: MovingJob, address: str) -> None:
    first = job.run("a", None, 1)
    assert first.place is not None
    elsewhere = replace(first, place=replace(first.place, address=address))
    with pytest.raises(IncompatibleCheckpointError, match="from where it cannot be committed"):
        job.begin("b", elsewhere, is_pending=True)
    job.run("b", elsewhere, 2)
    assert job.seen("b") == {"b": [2]}


def test_savepoint_of_a_job_with_another_kind_of_sink_is_left_to_that_job(job: MovingJob, tmp_path: Path) -> None:
    theirs = job.take(job.begin("a"), 1, commits=False)
    ours = MovingJob(KINDS["delta"](tmp_path / "tables"), more={"job": "fork"})
    attempt = ours.begin("b")
    attempt.commit(theirs.id, theirs.committables)
    ours.take(attempt, 2)
    assert ours.seen("b") == {"b": [2]}


def test_log_of_a_place_does_not_grow_with_the_names_of_others(
    job: MovingJob, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    restored = None
    for number in range(20):
        restored = job.run(f"d{number}", restored, number)
    (file,) = job.places.folder.glob("d19/_statecheck/*/attempts/*.json")
    assert sum(f"/d{number}" in file.read_text() for number in range(20)) == 0
    assert len(file.read_text()) < 1500
