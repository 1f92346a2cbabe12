"""When files of keyed state, which checkpoints share, are deleted."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import epoch_name, job_id_of
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.maintenance.verify import CheckpointVerifier
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan, faulty_storage
from tests.unit.storage.keyed_files import (
    exclusive_file,
    files_left,
    keyed,
    segments_of,
    state_file,
    take,
    uris,
    write,
)
from tests.unit.written_stage import JOB, WrittenStage, collect, local_path


def left(stage: WrittenStage, job: str = JOB) -> set[str]:
    return files_left(stage.storage, job)


def written(stage: WrittenStage, attempt: StageAttempt) -> Any:
    return state_file(stage.storage, attempt.grant.attempt)


def died(stage: WrittenStage, job: str = JOB, **changes: Any) -> list[Any]:
    """
    Let an attempt complete three checkpoints, each of which shares a file with the next, and die without a discard.
    """
    attempt = stage.attempt(job, **changes)
    attempt.cleaner.discard = lambda *_: ()  # type: ignore[method-assign]
    files = [written(stage, attempt) for _ in range(4)]
    for two in pairwise(files):
        take(attempt, *two)
    attempt.finish(AttemptStatus.FAILED)
    return files


class TestExclusiveState:
    """State in the directory of the checkpoint for which an increment has written it, the first to name it."""

    def test_it_goes_with_its_checkpoint(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        first, second = begin_with_own_state(stage, attempt), begin_with_own_state(stage, attempt)
        complete(attempt, *first)
        complete(attempt, *second)
        assert own_files(stage) == uris(second[1])
        assert not stage.storage.exists(first[0].location)
        assert set(stage.statuses().values()) == {"subsumed", "completed"}

    def test_that_of_a_failed_checkpoint_stays_for_the_next_one(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        file = expired(stage, attempt)
        collect(stage)
        assert own_files(stage) == uris(file)
        assert CheckpointVerifier(stage.storage, is_deep=True).verify(take(attempt, file)).is_restorable
        take(attempt)
        assert own_files(stage) == set()

    def test_that_of_a_failed_checkpoint_stays_while_the_next_one_cannot_be_read(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        file = expired(stage, attempt)
        completed = take(attempt, file)
        attempt.finish(AttemptStatus.FAILED)
        local_path(str(completed.metadata_uri)).write_bytes(b"damaged")
        collect(stage)
        assert own_files(stage) == uris(file)

    def test_that_of_a_failed_checkpoint_stays_when_another_operator_ends(self, stage: WrittenStage) -> None:
        attempt, other = stage.attempt(), stage.attempt(uid="other")
        file = expired(stage, attempt)
        other.finish(AttemptStatus.FINISHED)
        assert own_files(stage) == uris(file)
        assert CheckpointVerifier(stage.storage, is_deep=True).verify(take(attempt, file)).is_restorable

    def test_that_of_a_dead_attempt_goes_with_its_aborted_checkpoint(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        begin_with_own_state(stage, attempt)
        retry = stage.attempt()
        retry.restore()
        retry.finish(AttemptStatus.FINISHED)
        assert own_files(stage) == set()

    def test_the_directory_stays_while_a_later_checkpoint_names_what_lies_in_it(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        pending, own = begin_with_own_state(stage, attempt)
        unneeded = write(stage.storage, f"{pending.location}/{epoch_name(1)}")
        complete(attempt, pending, own, unneeded)
        later, _ = begin_with_own_state(stage, attempt)
        complete(attempt, later, own)
        attempt.finish(AttemptStatus.FINISHED)
        for _ in range(2):
            collect(stage)
            assert set(stage.storage.list_files(pending.location)) == {own.uri.rpartition("/")[2]}
        retry = stage.attempt()
        assert retry.restore() is not None
        take(retry)
        retry.finish(AttemptStatus.FINISHED)
        collect(stage)
        assert not stage.storage.exists(pending.location)
        assert set(stage.statuses().values()) == {"subsumed", "completed"}

    def test_the_directory_stays_whole_while_a_retained_checkpoint_cannot_be_read(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        attempt.cleaner.discard = lambda *_: ()  # type: ignore[method-assign]
        pending, own = begin_with_own_state(stage, attempt)
        complete(attempt, pending, own)
        later, _ = begin_with_own_state(stage, attempt)
        complete(attempt, later, own)
        attempt.finish(AttemptStatus.FAILED)
        newest = stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1]
        before = stage.storage.list_files(pending.location)
        saved = local_path(str(newest.metadata_uri)).read_bytes()
        local_path(str(newest.metadata_uri)).write_bytes(b"damaged")
        collect(stage)
        assert stage.storage.list_files(pending.location) == before
        local_path(str(newest.metadata_uri)).write_bytes(saved)
        collect(stage)
        assert CheckpointVerifier(stage.storage).verify(newest).is_restorable


def expired(stage: WrittenStage, attempt: StageAttempt, file: Any = None) -> Any:
    """
    Let a checkpoint fail that names a file, by default one that it has written into its directory.

    Return the file.
    """
    pending = attempt.begin_checkpoint(10.0)
    assert pending is not None
    file = file or exclusive_file(stage.storage, attempt.grant.attempt, pending.checkpoint_id)
    stage.clock.advance(11)
    assert attempt.complete_checkpoint(pending, CheckpointContent(operator_states=(keyed(file),))) is None
    return file


def begin_with_own_state(stage: WrittenStage, attempt: StageAttempt) -> tuple[Any, Any]:
    """Begin a checkpoint, and write its state as a subtask does."""
    pending = attempt.begin_checkpoint(60.0)
    assert pending is not None
    return pending, exclusive_file(stage.storage, attempt.grant.attempt, pending.checkpoint_id)


def complete(attempt: StageAttempt, pending: Any, *files: Any) -> None:
    content = CheckpointContent(operator_states=(keyed(private=files),))
    assert attempt.complete_checkpoint(pending, content) is not None


def own_files(stage: WrittenStage) -> set[str]:
    """Return the state files in directories of checkpoints."""
    found = (f"{stage.storage.base_uri}/{name}" for name in stage.files() if "/chk-" in name)
    return {uri for uri in found if not uri.endswith("/_metadata")}


class TestDiscards:
    def test_a_file_goes_with_the_last_checkpoint_that_named_it(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        a, b, c = (written(stage, attempt) for _ in range(3))
        take(attempt, a, b)
        take(attempt, b, c)
        assert left(stage) == uris(b, c)

    def test_a_file_of_what_the_attempt_restored_stays_until_it_ends(self, stage: WrittenStage) -> None:
        first = stage.attempt()
        old = written(stage, first)
        take(first, old)
        first.finish(AttemptStatus.FAILED)
        retry = stage.attempt()
        retry.restore()
        new = written(stage, retry)
        take(retry, new)
        assert left(stage) == uris(old, new)
        retry.finish(AttemptStatus.FINISHED)
        assert left(stage) == uris(new)

    def test_a_file_of_a_checkpoint_that_a_sink_has_not_committed_stays(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        old, new = written(stage, attempt), written(stage, attempt)
        first = take(attempt, old, has_commit=True)
        second = take(attempt, new, has_commit=True)
        assert left(stage) == uris(old, new)
        assert CheckpointVerifier(stage.storage).verify(first).is_restorable
        attempt.confirm_commits((second.checkpoint_id,))
        assert left(stage) == uris(new)

    def test_nothing_that_checkpoints_share_goes_while_a_retained_one_cannot_be_read(self, stage: WrittenStage) -> None:
        files = died(stage)
        newest = stage.coordinator.describe(job_id_of(JOB)).checkpoints[-1]
        local_path(str(newest.metadata_uri)).write_bytes(b"damaged")
        report = collect(stage)
        assert left(stage) == uris(*files)
        assert report.skipped == ["aggregate"]

    def test_what_a_checkpoint_that_failed_named_stays_for_the_next_one(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        file = expired(stage, attempt, written(stage, attempt))
        assert left(stage) == uris(file)
        assert CheckpointVerifier(stage.storage, is_deep=True).verify(take(attempt, file)).is_restorable

    def test_what_nobody_named_after_all_goes_when_the_attempt_has_ended(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        kept = written(stage, attempt)
        expired(stage, attempt, written(stage, attempt))
        take(attempt, kept)
        attempt.finish(AttemptStatus.FINISHED)
        assert left(stage) == uris(kept)

    def test_a_merged_file_goes_with_the_last_checkpoint_that_names_any_of_its_segments(
        self, stage: WrittenStage
    ) -> None:
        attempt = stage.attempt()
        merged, other = written(stage, attempt), written(stage, attempt)
        first, second = segments_of(merged, 2, 3)
        take(attempt, first, second)
        take(attempt, second)
        assert left(stage) == uris(merged, other)
        take(attempt, other)
        assert left(stage) == uris(other)

    def test_a_merged_file_of_a_dead_attempt_that_no_checkpoint_names_is_an_orphan(self, stage: WrittenStage) -> None:
        attempt = stage.attempt()
        named, unnamed = written(stage, attempt), written(stage, attempt)
        take(attempt, segments_of(named, 2, 3)[1])
        attempt.finish(AttemptStatus.FAILED)
        assert left(stage) == uris(named, unnamed)
        collect(stage)
        assert left(stage) == uris(named)

    def test_a_file_of_another_job_is_never_deleted(self, stage: WrittenStage) -> None:
        foreign = written(stage, stage.attempt("other job"))
        attempt = stage.attempt()
        take(attempt, foreign)
        take(attempt)
        attempt.finish(AttemptStatus.FINISHED)
        collect(stage)
        assert left(stage, "other job") == uris(foreign)

    def test_a_file_of_another_operator_is_never_deleted(self, stage: WrittenStage) -> None:
        other = stage.attempt(uid="other")
        theirs = written(stage, other)
        take(other, theirs)
        attempt = stage.attempt()
        take(attempt, theirs)
        take(attempt)
        assert left(stage) == uris(theirs)


class TestSweep:
    def test_an_unnamed_file_of_an_attempt_that_ended_goes(self, stage: WrittenStage) -> None:
        dead = stage.attempt()
        orphan, named = written(stage, dead), written(stage, dead)
        take(dead, named)
        dead.finish(AttemptStatus.FAILED)
        assert collect(stage).deleted == {orphan.uri.rpartition("/")[0]: orphan.size}
        assert left(stage) == uris(named)

    def test_an_unnamed_file_of_an_attempt_that_runs_stays(self, stage: WrittenStage) -> None:
        running = stage.attempt()
        file = written(stage, running)
        collect(stage)
        assert left(stage) == uris(file)

    def test_a_file_of_a_fenced_attempt_goes_while_the_next_one_keeps_its_own(self, stage: WrittenStage) -> None:
        zombie = stage.attempt()
        lost = written(stage, zombie)
        attempt = stage.attempt()
        kept = written(stage, attempt)
        take(attempt, kept)
        late = written(stage, zombie)
        attempt.finish(AttemptStatus.FINISHED)
        assert not left(stage) & uris(lost, late)
        assert left(stage) == uris(kept)

    def test_a_dry_run_tells_every_file_that_would_go_and_changes_nothing(self, stage: WrittenStage) -> None:
        files = died(stage)
        before = stage.files()
        told = collect(stage, dry_run=True)
        assert stage.files() == before
        done = collect(stage)
        assert told.deleted == done.deleted
        assert {f.uri.rpartition("/")[0] for f in files[:2]} <= done.deleted.keys()
        assert left(stage) == uris(*files[2:])
        assert done.deleted_bytes == sum(before.values()) - sum(stage.files().values())

    @pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
    def test_a_collection_that_fails_at_any_call_is_made_good_by_the_next(
        self, stage: WrittenStage, mode: FaultMode
    ) -> None:
        plan = FaultPlan()
        died(stage, "counted")
        collect(stage, "counted", opener=lambda base: faulty_storage(CheckpointStorage.open(base), plan))
        assert plan.calls.count("delete_file") >= 2
        for point in range(1, len(plan.calls) + 1):
            job, failing = f"job {point}", FaultPlan(point, mode)
            files = died(stage, job)
            collect(stage, job, opener=lambda base, p=failing: faulty_storage(CheckpointStorage.open(base), p))
            newest = stage.coordinator.describe(job_id_of(job)).checkpoints[-1]
            assert CheckpointVerifier(stage.storage, is_deep=True).verify(newest).is_restorable, point
            collect(stage, job)
            assert left(stage, job) == uris(*files[2:]), point
            assert set(stage.statuses(job).values()) == {"subsumed", "completed"}


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_driver_whose_storage_fails_at_any_call_of_a_discard_loses_no_file_that_is_named(
    stage: WrittenStage, mode: FaultMode
) -> None:
    points: list[int | None] = [None]
    for point in points:
        job, plan = f"job {point}", FaultPlan()
        attempt = stage.attempt(job)
        a, b, c = (written(stage, attempt) for _ in range(3))
        take(attempt, a, b)
        attempt.cleaner.storage = faulty_storage(stage.storage, plan)
        plan.point, plan.mode = point, mode
        newest = take(attempt, b, c)
        plan.point = None
        if point is None:
            points.extend(range(1, len(plan.calls) + 1))
        assert CheckpointVerifier(stage.storage, is_deep=True).verify(newest).is_restorable
        attempt.finish(AttemptStatus.FINISHED)
        assert left(stage, job) == uris(b, c), (point, plan.calls)
    assert points == [None, 1, 2, 3], "metadata, file, directory"
