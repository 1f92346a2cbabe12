"""Savepoints of a stage as its driver lives them, without Spark."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepSummary
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import FinishAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CoordinatorUnavailableError,
    IncompatibleCheckpointError,
    InvalidConfigurationError,
    SavepointClaimedError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.spark.endings import stopping_savepoint
from airflow_provider_statecheck.spark.restore import RestoredStage
from airflow_provider_statecheck.spark.snapshots.live_snapshots import StageSnapshots
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import SnapshotHandle
from tests.messages import make_owner, make_savepoint_request, present, source_at
from tests.unit.written_stage import JOB, WrittenStage, local_path

LARGE_STATE = ["an item that is finished"] * 2000


@pytest.fixture
def target(tmp_path: Path) -> str:
    return f"file://{tmp_path}/savepoints"


def view(stage: WrittenStage) -> JobView:
    return stage.coordinator.describe(job_id_of(JOB))


def serve(stage: WrittenStage, target: str | None = None) -> int:
    """Let another process take the savepoints of operators that are idle."""
    return len(serve_idle(stage.savepoints, view(stage), CheckpointStorage.open, target))


def ask(stage: WrittenStage, target: str | None, **changes: Any) -> None:
    [operator] = view(stage).operators
    stage.savepoints.request(make_savepoint_request(operator, target=target, **changes))


def savepoints_of(stage: WrittenStage) -> list[CheckpointRecord]:
    return [c for c in view(stage).checkpoints if c.properties.is_savepoint and c.status is CheckpointStatus.COMPLETED]


def statuses(stage: WrittenStage) -> list[RequestStatus]:
    return [r.status for r in view(stage).requests]


def saved(stage: WrittenStage, target: str, state: Any = None) -> CheckpointRecord:
    """Let a stage run, take a savepoint and finish."""
    attempt = stage.attempt()
    ask(stage, target)
    stage.take(attempt, stage.snapshot(attempt, "orders"), state=state)
    attempt.finish(AttemptStatus.FINISHED)
    return savepoints_of(stage)[0]


def discarding(attempt: StageAttempt, *snapshots: SnapshotHandle) -> None:
    """Complete a checkpoint and delete what it subsumes."""
    attempt.take_checkpoint(CheckpointContent(snapshots=snapshots))


def begin_from(
    stage: WrittenStage, pointer: str, job: str = "heir", **changes: Any
) -> tuple[StageAttempt, RestoredStage]:
    attempt = stage.attempt(job, restore_from=source_at(stage.storage, pointer, **changes))
    restored = present(attempt.restore())
    return attempt, restored


def test_a_running_stage_takes_a_savepoint_at_its_next_checkpoint(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    assert savepoint.location.startswith(f"{target}/savepoint-{job_id_of(JOB)[:6]}-")
    assert statuses(stage) == [RequestStatus.COMPLETED]


def test_a_savepoint_has_the_figures_of_the_checkpoint_that_it_copies(stage: WrittenStage, target: str) -> None:
    figures = CheckpointSummary(steps=(StepSummary(name="orders", outcome="computed", seconds=7.0),))
    attempt = stage.attempt()
    ask(stage, target)
    orders = stage.snapshot(attempt, "orders")
    attempt.take_checkpoint(CheckpointContent(snapshots=(orders,), summary=figures))
    attempt.finish(AttemptStatus.FINISHED)
    ask(stage, target)
    serve(stage)
    of_running, of_idle = (savepoint.summary for savepoint in savepoints_of(stage))
    assert present(of_running).steps == figures.steps
    assert of_idle == of_running


def test_a_request_that_comes_after_the_last_checkpoint_is_served_at_the_end(stage: WrittenStage, target: str) -> None:
    attempt = stage.attempt()
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    ask(stage, target)
    attempt.finish(AttemptStatus.FINISHED)
    assert statuses(stage) == [RequestStatus.COMPLETED]


def test_a_savepoint_at_the_end_is_not_copied_between_two_tries(stage: WrittenStage, target: str) -> None:
    attempt = stage.attempt(savepoint_at_end=True)
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    attempt.finish(AttemptStatus.FAILED)
    assert (serve(stage, target), statuses(stage)) == (0, [RequestStatus.QUEUED])
    retry = stage.attempt(savepoint_at_end=True).grant.attempt
    stage.coordinator.finish(FinishAttempt(attempt=retry, status=AttemptStatus.FINISHED))
    assert (serve(stage, target), statuses(stage)) == (1, [RequestStatus.COMPLETED]), (
        "the stage has finished and did not take it"
    )


def test_a_stage_that_fails_leaves_the_request_to_its_retry(stage: WrittenStage, target: str) -> None:
    attempt = stage.attempt()
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    ask(stage, target)
    attempt.finish(AttemptStatus.FAILED)
    assert statuses(stage) == [RequestStatus.QUEUED]
    retry = stage.attempt()
    assert retry.restore() is not None
    stage.take(retry)
    assert statuses(stage) == [RequestStatus.COMPLETED]


@pytest.mark.parametrize("state", [[], LARGE_STATE], ids=["inline state", "state in a file"])
def test_a_savepoint_holds_all_that_it_needs(stage: WrittenStage, target: str, state: list[str]) -> None:
    savepoint = saved(stage, target, state)
    shutil.rmtree(local_path(stage.storage.base_uri))
    _, restored = begin_from(stage, savepoint.location)
    assert restored.state == {"done": state}
    assert [h.name for h in restored.document.snapshots] == ["orders"]
    assert all(h.uri.startswith(savepoint.location) for h in restored.document.snapshots)


@pytest.mark.parametrize("state", [[], LARGE_STATE], ids=["inline state", "state in a file"])
@pytest.mark.parametrize("name", ["moved as a whole", "savepoint-aaaaaa-bbbbbbbbbbbb"])
def test_a_savepoint_that_was_moved_restores(stage: WrittenStage, target: str, state: list[str], name: str) -> None:
    savepoint = saved(stage, target, state)
    moved = local_path(target).parent / name
    local_path(savepoint.location).rename(moved)
    _, restored = begin_from(stage, f"file://{moved}")
    assert restored.state == {"done": state}
    assert all(h.uri.startswith(f"file://{moved}/") for h in restored.document.snapshots)


def test_a_savepoint_outlives_the_job_and_the_snapshots_that_it_was_copied_from(
    stage: WrittenStage, target: str
) -> None:
    attempt = stage.attempt()
    ask(stage, target)
    discarding(attempt, stage.snapshot(attempt, "first"))
    savepoints = stage.storage.allowing(target)
    before = savepoints.list_files(savepoints_of(stage)[0].location)
    for name in ("second", "third"):
        discarding(attempt, stage.snapshot(attempt, name))
    assert not any("first" in name for name in stage.directories())
    assert savepoints.list_files(savepoints_of(stage)[0].location) == before


@pytest.mark.parametrize("kind", [CheckpointType.SAVEPOINT, CheckpointType.SAVEPOINT_SUSPEND])
def test_a_request_without_a_place_fails_and_the_stage_goes_on(stage: WrittenStage, kind: CheckpointType) -> None:
    attempt = stage.attempt()
    ask(stage, None, kind=kind)
    assert stage.take(attempt, stage.snapshot(attempt, "orders")).checkpoint_id == 1
    [request] = view(stage).requests
    assert request.status is RequestStatus.FAILED
    assert "savepoint_dir" in request.failure_message


def test_a_savepoint_that_cannot_be_written_fails_and_the_stage_goes_on(stage: WrittenStage, tmp_path: Path) -> None:
    (tmp_path / "a file").write_text("in the way")
    attempt = stage.attempt()
    ask(stage, f"file://{tmp_path}/a file")
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    stage.take(attempt, stage.snapshot(attempt, "customers"))
    assert statuses(stage) == [RequestStatus.FAILED]


def test_a_coordinator_that_is_away_when_the_savepoint_begins_costs_nothing(
    stage: WrittenStage, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = stage.attempt()
    ask(stage, target)
    honest = stage.coordinator.trigger

    def trigger(request: Any) -> Any:
        if request.serves:
            raise CoordinatorUnavailableError("away")
        return honest(request)

    with monkeypatch.context() as patch:
        patch.setattr(stage.coordinator, "trigger", trigger)
        stage.take(attempt, stage.snapshot(attempt, "orders"))
    assert statuses(stage) == [RequestStatus.QUEUED]
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    assert statuses(stage) == [RequestStatus.COMPLETED]


def test_stopping_with_a_savepoint_stops_the_stage_which_may_go_on_from_its_last_checkpoint(
    stage: WrittenStage, target: str
) -> None:
    attempt = stage.attempt()
    ask(stage, target, kind=CheckpointType.SAVEPOINT_SUSPEND, requested_by="the night shift")
    with pytest.raises(StoppedWithSavepointError, match="requested by the night shift") as stopped:
        stage.take(attempt, stage.snapshot(attempt, "orders"))
    assert stopped.value.pointer == savepoints_of(stage)[0].location
    attempt.finish(AttemptStatus.FAILED)
    restored = present(stage.attempt().restore())
    assert [h.name for h in restored.document.snapshots] == ["orders"]


@pytest.mark.parametrize("taken_by", ["another process", "the stage"])
def test_the_retry_of_a_stage_that_failed_before_it_stopped_stops(
    stage: WrittenStage, target: str, taken_by: str
) -> None:
    attempt = stage.attempt()
    stage.take(attempt)
    ask(stage, target, kind=CheckpointType.SAVEPOINT_SUSPEND)
    if taken_by == "the stage":
        with pytest.raises(StoppedWithSavepointError):
            stage.take(attempt)
        # The process is killed before its task has ended.
    else:
        stage.clock.advance(1)
        attempt.fail(ConnectionError("planned"))
        stage.clock.advance(1)
        serve(stage)
    [savepoint] = savepoints_of(stage)
    for _ in range(2):
        retry = stage.attempt()
        with pytest.raises(StoppedWithSavepointError, match="start another job from the savepoint") as stopped:
            stage.take(retry)
        retry.fail(stopped.value)
        assert stopped.value.pointer == savepoint.location
        assert stopping_savepoint(view(stage), retry.grant.attempt) == savepoint.location
    is_stopped = stopping_savepoint(view(stage), attempt.grant.attempt) is not None
    assert is_stopped is (taken_by == "the stage")
    cleared = stage.attempt(owner=make_owner(clear_marker="cleared"))
    stage.take(cleared)
    cleared.finish(AttemptStatus.FINISHED)


def test_the_retry_of_a_stage_that_began_after_its_savepoint_does_not_stop(stage: WrittenStage, target: str) -> None:
    finished = stage.attempt()
    stage.take(finished)
    finished.finish(AttemptStatus.FINISHED)
    ask(stage, target, kind=CheckpointType.SAVEPOINT_SUSPEND)
    serve(stage)
    for _ in range(2):
        attempt = stage.attempt(owner=make_owner(run_key="2026-01-02", run_id="the next run"))
        stage.take(attempt)
        attempt.finish(AttemptStatus.FAILED)


@pytest.mark.parametrize("kind", [CheckpointType.SAVEPOINT, CheckpointType.SAVEPOINT_TERMINATE])
def test_the_retry_of_a_stage_whose_savepoint_does_not_suspend_it_goes_on(
    stage: WrittenStage, target: str, kind: CheckpointType
) -> None:
    attempt = stage.attempt()
    stage.take(attempt)
    ask(stage, target, kind=kind)
    attempt.fail(ConnectionError("planned"))
    serve(stage)
    assert len(savepoints_of(stage)) == 1
    retry = stage.attempt()
    stage.take(retry)
    retry.finish(AttemptStatus.FINISHED)


def test_a_request_to_terminate_is_served_at_the_end_of_the_stage(stage: WrittenStage, target: str) -> None:
    attempt = stage.attempt()
    ask(stage, target, kind=CheckpointType.SAVEPOINT_TERMINATE)
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    assert statuses(stage) == [RequestStatus.QUEUED]
    attempt.finish(AttemptStatus.FINISHED)
    assert statuses(stage) == [RequestStatus.COMPLETED]


def test_a_checkpoint_after_an_unclaimed_savepoint_names_none_of_its_files(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    attempt, restored = begin_from(stage, savepoint.location)
    snapshots = StageSnapshots(attempt.storage, attempt.grant.attempt, restored)
    assert snapshots.copy_borrowed() == savepoint.state_size_bytes
    assert snapshots.copy_borrowed() == 0
    stage.take(attempt, *snapshots.handles)
    attempt.finish(AttemptStatus.FAILED)
    shutil.rmtree(local_path(savepoint.location))
    retry = present(stage.attempt("heir").restore())
    assert [(h.name, h.rows) for h in retry.document.snapshots] == [("orders", 2000)]


def test_a_checkpoint_after_a_claimed_savepoint_names_its_files(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    attempt, restored = begin_from(stage, savepoint.location, mode=RestoreMode.CLAIM)
    snapshots = StageSnapshots(stage.storage, attempt.grant.attempt, restored)
    assert snapshots.copy_borrowed() == 0
    assert all(h.uri.startswith(savepoint.location) for h in snapshots.handles)


def test_a_savepoint_that_its_own_operator_claimed_ends_with_the_checkpoint_that_it_became(
    stage: WrittenStage, target: str
) -> None:
    savepoint = saved(stage, target)
    # Cleared after a success, the task begins a generation of its own.
    cleared = make_owner(clear_marker="2")
    attempt = stage.attempt(
        owner=cleared, num_retained=1, restore_from=source_at(stage.storage, savepoint.location, mode=RestoreMode.CLAIM)
    )
    restored = present(attempt.restore())
    assert restored.checkpoint.location == savepoint.location
    stage.take(attempt, stage.snapshot(attempt, "orders anew"))
    attempt.finish(AttemptStatus.FINISHED)
    again = stage.attempt(owner=cleared, num_retained=1)
    again.restore()
    stage.take(again, stage.snapshot(again, "orders again"))
    again.finish(AttemptStatus.FINISHED)
    row = present(stage.coordinator.checkpoint(job_id_of(JOB), savepoint.checkpoint_id))
    is_there = (local_path(savepoint.location) / "_metadata").exists()
    assert (row.status is CheckpointStatus.COMPLETED) is is_there
    assert row.status is CheckpointStatus.DISPOSED


def test_a_checkpoint_of_another_job_can_be_restored_without_a_claim(stage: WrittenStage) -> None:
    attempt = stage.attempt()
    taken = stage.take(attempt, stage.snapshot(attempt, "orders"))
    _, restored = begin_from(stage, taken.location)
    assert [h.name for h in restored.document.snapshots] == ["orders"]


def test_a_checkpoint_of_a_job_cannot_be_claimed(stage: WrittenStage) -> None:
    attempt = stage.attempt()
    taken = stage.take(attempt, stage.snapshot(attempt, "orders"))
    with pytest.raises(InvalidConfigurationError, match="no_claim"):
        source_at(stage.storage, taken.location, mode=RestoreMode.CLAIM)


def test_a_savepoint_under_another_name_cannot_be_claimed(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    moved = local_path(target).parent / "my savepoint"
    local_path(savepoint.location).rename(moved)
    with pytest.raises(InvalidConfigurationError, match="renamed"):
        source_at(stage.storage, f"file://{moved}", mode=RestoreMode.CLAIM)


def test_a_savepoint_of_another_operator_is_refused_and_both_uids_are_named(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    with pytest.raises(IncompatibleCheckpointError, match=r"'aggregates'.*'aggregate'.*a similar name"):
        source_at(stage.storage, savepoint.location, uid="aggregates")


def test_an_operator_that_was_renamed_is_restored(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    found = present(source_at(stage.storage, savepoint.location, uid="totals", renamed_uids={"aggregate": "totals"}))
    assert found.pointer == savepoint.location


def test_state_of_another_operator_may_be_left_behind_on_request(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    assert source_at(stage.storage, savepoint.location, uid="totals", allow_non_restored_state=True) is None


@pytest.mark.parametrize("spelling", ["local://{}", "file:///{}", "{}/", "{}/_metadata"])
def test_a_claim_holds_however_the_place_is_written(stage: WrittenStage, target: str, spelling: str) -> None:
    savepoint = saved(stage, target)
    begin_from(stage, savepoint.location, mode=RestoreMode.CLAIM)
    path = savepoint.location.removeprefix("file://")
    written = spelling.format(path if "://" in spelling else savepoint.location)
    with pytest.raises(SavepointClaimedError):
        stage.attempt("rival", restore_from=source_at(stage.storage, written, mode=RestoreMode.CLAIM))


def test_the_place_of_a_savepoint_holds_no_secret(stage: WrittenStage) -> None:
    with pytest.raises(InvalidConfigurationError, match="storage_conn_id") as refused:
        source_at(stage.storage, "s3://key:hidden@bucket/savepoint-000000-000000000000")
    assert "hidden" not in str(refused.value)


def test_a_damaged_savepoint_does_not_matter_to_a_retry_with_checkpoints(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    attempt, restored = begin_from(stage, savepoint.location)
    stage.take(attempt, *restored.document.snapshots)
    attempt.finish(AttemptStatus.FAILED)
    (local_path(savepoint.location) / "_metadata").write_bytes(b"damaged")
    assert stage.attempt("heir", restore_from=source_at(stage.storage, savepoint.location)).restore() is not None
    with pytest.raises(CheckpointNotFoundError, match="begin with"):
        stage.attempt("another", restore_from=source_at(stage.storage, savepoint.location))


def test_snapshots_that_were_deleted_meanwhile_are_not_taken_for_copied(stage: WrittenStage) -> None:
    attempt = stage.attempt()
    taken = stage.take(attempt, stage.snapshot(attempt, "orders"))
    heir, restored = begin_from(stage, taken.location)
    shutil.rmtree(local_path(restored.document.snapshots[0].uri))
    with pytest.raises(CheckpointNotFoundError, match="deleted"):
        StageSnapshots(stage.storage, heir.grant.attempt, restored).copy_borrowed()


def test_a_savepoint_that_its_owner_deleted_by_hand_holds_up_no_discard(stage: WrittenStage, target: str) -> None:
    attempt = stage.attempt()
    ask(stage, target)
    for name in ("first", "second", "third"):
        discarding(attempt, stage.snapshot(attempt, name))
        shutil.rmtree(local_path(savepoints_of(stage)[0].location), ignore_errors=True)
    assert not any("first" in name for name in stage.directories())


def test_a_savepoint_that_is_gone_is_reported_where_it_is_needed(stage: WrittenStage, target: str) -> None:
    found = source_at(stage.storage, f"{target}/savepoint-000000-000000000000")
    with pytest.raises(CheckpointNotFoundError, match="savepoint-000000-000000000000"):
        stage.attempt("heir", restore_from=found)


def test_a_savepoint_whose_metadata_changed_since_it_was_read_is_not_restored(stage: WrittenStage, target: str) -> None:
    savepoint = saved(stage, target)
    found = source_at(stage.storage, savepoint.location)
    metadata = local_path(savepoint.location) / "_metadata"
    metadata.write_bytes(metadata.read_bytes() + b" ")
    with pytest.raises(Exception, match="Expected a readable checkpoint to restore"):
        stage.attempt("heir", restore_from=found).restore()
