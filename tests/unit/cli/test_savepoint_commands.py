"""Taking and disposing of savepoints by command."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, ALIGNED_UID, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    ConfirmRestore,
    RestoreSource,
)
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.transitions import SAVEPOINT_TIMEOUT
from airflow_provider_statecheck.cli import savepoint_commands
from airflow_provider_statecheck.exceptions import StoppedWithSavepointError, StorageError
from airflow_provider_statecheck.maintenance.savepoints import serve_idle
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import decode_metadata
from tests.messages import make_leadership, make_owner, make_registration, make_savepoint_request
from tests.unit.cli.conftest import Run, rows
from tests.unit.written_stage import JOB, WrittenStage, local_path

of_job_or_stage = pytest.mark.parametrize("uid", [(), ("--uid", "aggregate")], ids=["job", "stage"])


def changed(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    """Let the commands take savepoints in another way."""
    taking: Any = vars(savepoint_commands)["job_savepoints"]
    service = replace(taking(storage_conn_id=None), **changes)
    monkeypatch.setattr(savepoint_commands, "job_savepoints", lambda **_: service)


def full_disk(*_: object) -> None:
    raise StorageError("the disk is full")


def savepoints(stage: WrittenStage) -> list[CheckpointRecord]:
    return [c for c in stage.coordinator.describe(job_id_of(JOB)).checkpoints if c.properties.is_savepoint]


def taken(stage: WrittenStage, run: Run, *options: str) -> str:
    [row] = rows(run("savepoint", JOB, *options, "--output", "json"))
    return str(row["pointer"])


def test_a_savepoint_of_a_finished_job_is_taken_at_once(finished: WrittenStage, run: Run, tmp_path: Path) -> None:
    outcome = run("savepoint", JOB, "--output", "json")
    [row] = rows(outcome)
    assert (outcome.status, row["operator"], row["status"]) == (0, "(aligned)", "completed")
    assert row["pointer"].startswith(f"file://{tmp_path}/savepoints/savepoint-")
    names = finished.storage.allowing(row["pointer"]).list_files(row["pointer"])
    assert {"_metadata"} < set(names)
    assert len([n for n in names if n.endswith(".parquet")]) == 2


def test_a_target_comes_before_the_configured_directory(finished: WrittenStage, run: Run, tmp_path: Path) -> None:
    assert taken(finished, run, "--target", f"file://{tmp_path}/mine").startswith(f"file://{tmp_path}/mine/savepoint-")


def test_a_job_has_one_savepoint_with_all_its_operators_and_an_operator_one_of_its_own(
    finished: WrittenStage, run: Run
) -> None:
    other = finished.attempt(uid="customers")
    finished.take(other)
    other.finish(AttemptStatus.FINISHED)
    [row] = rows(run("savepoint", JOB, "--output", "json"))
    assert (row["operator"], row["status"]) == ("(aligned)", "completed")
    uri = f"{row['pointer']}/_metadata"
    document = decode_metadata(finished.storage.allowing(row["pointer"]).read_bytes(uri), uri=uri)
    assert {member.uid for member in document.members} == {"aggregate", "customers"}
    [one] = rows(run("savepoint", JOB, "--uid", "customers", "--output", "json"))
    assert (one["operator"], one["status"]) == ("customers", "completed")


@pytest.mark.parametrize("uid", [(), ("--uid", ALIGNED_UID)])
def test_a_job_whose_program_coordinates_it_is_left_without_a_request(
    finished: WrittenStage, run: Run, uid: tuple[str, ...]
) -> None:
    AlignedCheckpoints(finished.store).lead(make_leadership(job_name=JOB))
    outcome = run("savepoint", JOB, *uid)
    assert (outcome.status, "take the savepoint in that program" in outcome.err) == (1, True)
    assert finished.coordinator.describe(job_id_of(JOB)).requests == ()


def test_a_job_without_a_checkpoint_has_nothing_to_copy(stage: WrittenStage, run: Run) -> None:
    stage.attempt().finish(AttemptStatus.FAILED)
    outcome = run("savepoint", JOB, "--output", "json")
    assert (outcome.status, "run a stage first" in outcome.err) == (2, True)
    outcome = run("savepoint", JOB, "--uid", "aggregate", "--output", "json")
    assert outcome.status == 1
    assert "no completed checkpoint" in rows(outcome)[0]["failure"]


@of_job_or_stage
def test_a_savepoint_without_a_place_names_the_setting(
    finished: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch, uid: tuple[str, ...]
) -> None:
    changed(monkeypatch, directory=None)
    outcome = run("savepoint", JOB, *uid, "--output", "json")
    assert outcome.status in (1, 2)
    assert re.search("savepoint[_-]dir", outcome.err + outcome.out)


@of_job_or_stage
def test_a_running_stage_is_waited_for(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch, uid: tuple[str, ...]
) -> None:
    attempt = stage.attempt(num_retained=1)
    changed(monkeypatch, pause=lambda seconds: stage.take(attempt))
    outcome = run("savepoint", JOB, *uid, "--target", f"{stage.storage.base_uri}/savepoints", "--output", "json")
    assert (outcome.status, rows(outcome)[0]["status"]) == (0, "completed")


def test_a_running_stage_that_takes_no_checkpoint_in_time_is_named(stage: WrittenStage, run: Run) -> None:
    stage.attempt()
    outcome = run("savepoint", JOB, "--timeout", "5", "--output", "json")
    assert (outcome.status, rows(outcome)[0]["status"]) == (1, "running")
    assert "next checkpoint of aggregate" in outcome.err


@of_job_or_stage
def test_an_interrupted_command_names_its_request_which_gc_goes_on_with(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch, uid: tuple[str, ...]
) -> None:
    def interrupt(_: float) -> None:
        raise KeyboardInterrupt

    attempt = stage.attempt()
    changed(monkeypatch, pause=interrupt)
    outcome = run("savepoint", JOB, *uid, "--target", f"{stage.storage.base_uri}/savepoints")
    [request] = stage.coordinator.describe(job_id_of(JOB)).requests
    assert (outcome.status, outcome.out) == (130, "")
    assert outcome.err.splitlines()[0].startswith(f"If request {request.request_key} is recorded, it stays open;")
    assert outcome.err.splitlines()[1:] == ["error: interrupted"]
    stage.clock.advance(1)
    stage.take(attempt)
    attempt.finish(AttemptStatus.FINISHED)
    run("gc", "--yes", JOB)
    assert [row.status for row in savepoints(stage)] == [CheckpointStatus.COMPLETED]


def test_a_running_stage_need_not_be_waited_for(stage: WrittenStage, run: Run) -> None:
    stage.attempt()
    assert run("savepoint", JOB, "--no-wait").status == 0


@pytest.mark.parametrize(("stop", "kind"), [("suspend", "savepoint_suspend"), ("terminate", "savepoint_terminate")])
@of_job_or_stage
def test_stopping_is_asked_of_the_job_or_of_one_stage(
    stage: WrittenStage, run: Run, stop: str, kind: str, uid: tuple[str, ...]
) -> None:
    stage.attempt()
    assert run("savepoint", JOB, "--no-wait", "--stop", stop, *uid).status == 0
    [request] = stage.coordinator.describe(job_id_of(JOB)).requests
    assert request.properties.snapshot_type == kind
    assert (request.operator_id == ALIGNED_OPERATOR_ID) is (uid == ())


def test_a_stage_that_does_not_stop_is_an_error_that_names_the_savepoint(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = stage.attempt()
    attempt.release()  # it goes on, as one that has waited for a day

    def go_on(_: float) -> None:
        stage.clock.advance(1)
        stage.take(attempt)

    changed(monkeypatch, pause=go_on)
    outcome = run("savepoint", JOB, "--stop", "suspend", "--timeout", "5", "--output", "json")
    [row] = rows(outcome)
    assert (outcome.status, row["status"]) == (1, "completed")
    assert f"stop with savepoint {row['pointer']}, found that these still run: aggregate;" in outcome.err


@pytest.mark.parametrize("stop", ["suspend", "terminate"])
@of_job_or_stage
def test_a_stop_succeeds_when_the_stage_has_ended_with_the_savepoint(
    stage: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch, stop: str, uid: tuple[str, ...]
) -> None:
    attempt = stage.attempt()
    attempt.release()  # in one thread, it cannot wait for the command

    def end(_: float) -> None:
        stage.clock.advance(1)
        with suppress(StoppedWithSavepointError):
            stage.take(attempt)
        attempt.finish(AttemptStatus.FINISHED)

    changed(monkeypatch, pause=end)
    target = f"{stage.storage.base_uri}/savepoints"
    outcome = run("savepoint", JOB, "--stop", stop, *uid, "--target", target, "--output", "json")
    [row] = rows(outcome)
    assert (outcome.status, row["status"], outcome.err) == (0, "completed", "")
    assert row["pointer"].startswith(target)


def test_a_stage_whose_end_is_awaited_is_named(stage: WrittenStage, run: Run) -> None:
    stage.attempt()
    outcome = run("savepoint", JOB, "--stop", "terminate", "--timeout", "5", "--output", "json")
    assert (outcome.status, rows(outcome)[0]["status"]) == (1, "running")
    assert "awaits the end of aggregate" in outcome.err


def test_a_savepoint_is_of_the_generation_that_a_retry_would_restore(finished: WrittenStage, run: Run) -> None:
    owner = make_owner(clear_marker="4/1")
    finished.attempt(owner=owner).finish(AttemptStatus.FAILED)
    outcome = run("savepoint", JOB, "--uid", "aggregate", "--output", "json")
    assert "no completed checkpoint" in rows(outcome)[0]["failure"]
    assert finished.attempt(owner=owner).grant.is_restore is False


def test_garbage_collection_takes_the_savepoints_that_wait(stage: WrittenStage, run: Run) -> None:
    attempt = stage.attempt()
    run("savepoint", JOB, "--uid", "aggregate", "--no-wait")
    stage.take(attempt, stage.snapshot(attempt, "orders"))
    [request] = stage.coordinator.describe(job_id_of(JOB)).requests
    assert request.status is RequestStatus.FAILED  # the stage was configured with no place
    attempt = stage.attempt()
    run("savepoint", JOB, "--uid", "aggregate", "--no-wait")
    attempt.finish(AttemptStatus.FAILED)
    assert run("gc", JOB, "--dry-run").status == 0
    assert len(savepoints(stage)) == 1
    assert run("gc", "--yes", JOB).status == 0
    assert [c.status.value for c in savepoints(stage)] == ["aborted", "completed"]


def test_a_copy_whose_process_died_is_taken_anew_when_its_time_is_over(finished: WrittenStage, run: Run) -> None:
    operator = finished.coordinator.describe(job_id_of(JOB)).operators[0]
    asked = finished.savepoints.request(make_savepoint_request(operator))
    finished.savepoints.begin(operator.job_id, asked.request_key, "memory://dead", new_key())
    run("gc", "--yes", JOB)
    assert [c.status.value for c in savepoints(finished)] == ["pending"]
    finished.clock.advance(25 * 3600)
    run("gc", "--yes", JOB)
    assert [c.status.value for c in savepoints(finished)] == ["aborted", "completed"]


def test_a_broken_storage_fails_the_savepoint_and_leaves_the_checkpoint(
    finished: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = finished.files()
    monkeypatch.setattr(CheckpointStorage, "copy_file", full_disk)
    outcome = run("savepoint", JOB, "--uid", "aggregate", "--output", "json")
    assert (outcome.status, rows(outcome)[0]["failure"]) == (1, "the disk is full")
    assert finished.files() == before


def test_a_savepoint_whose_target_cannot_be_created_says_why(finished: WrittenStage, run: Run) -> None:
    outcome = run("savepoint", JOB, "--uid", "aggregate", "--target", "/proc/nowhere", "--output", "json")
    assert outcome.status == 1
    assert re.search("Cannot write file:///proc/nowhere/.*No such file or directory", rows(outcome)[0]["failure"])


def test_a_savepoint_below_a_file_fails_and_does_not_keep_its_job(
    finished: WrittenStage, run: Run, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    assert run("savepoint", JOB, "--target", f"{tmp_path}/file").status == 1
    assert run("gc", "--yes", JOB).status == 0
    assert run("prune", JOB, "--yes").status == 0


def test_a_savepoint_of_a_job_goes_on_when_the_storage_answers_again(
    finished: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStorage, "copy_file", full_disk)
        outcome = run("savepoint", JOB, "--output", "json")
    assert (outcome.status, "the disk is full" in outcome.err) == (3, True)
    assert run("gc", "--yes", JOB).status == 0
    assert [c.status.value for c in savepoints(finished)] == ["completed"]


@pytest.mark.parametrize("options", [(), ("--uid", "aggregate")], ids=["job", "operator"])
@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("s4://lake/savepoints", "found 's4'"),
        ("s3x:/sp", "s3x:/sp"),
        (f"s3://lake/base/{job_id_of(JOB)}/chk-1", "with which they would be deleted"),
    ],
)
def test_a_place_that_is_none_is_refused_before_the_request(
    finished: WrittenStage, run: Run, options: tuple[str, ...], target: str, said: str
) -> None:
    outcome = run("savepoint", JOB, *options, "--target", target)
    assert (outcome.status, outcome.out, said in outcome.err) == (2, "", True)
    assert finished.coordinator.describe(job_id_of(JOB)).requests == ()
    assert run("gc", "--yes", JOB).status == 0
    assert run("prune", JOB, "--yes").status == 0


def test_a_failed_savepoint_on_an_unknown_filesystem_keeps_no_job_from_its_removal(
    finished: WrittenStage, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    failed = failed_on_unknown_filesystem(finished)
    outcome = run("gc", "--yes", JOB)
    assert (outcome.status, caplog.text.count("there is no filesystem for s4://lake/savepoints/")) == (0, 1)
    assert finished.statuses()[failed.checkpoint_id] == "ABORTED"  # its writer may not have ended
    finished.clock.advance(SAVEPOINT_TIMEOUT.total_seconds())
    assert run("gc", JOB, "--dry-run").status == run("gc", "--yes", JOB).status == 0
    assert finished.statuses()[failed.checkpoint_id] == "aborted"
    assert run("prune", JOB, "--yes").status == 0


def test_a_savepoint_that_was_written_on_a_filesystem_unknown_here_keeps_its_job(
    finished: WrittenStage, run: Run
) -> None:
    failed = failed_on_unknown_filesystem(finished)
    with finished.store.transaction(failed.job_id) as tx:
        written = replace(failed, status=CheckpointStatus.DISPOSED, metadata_uri=f"{failed.location}/_metadata")
        tx.update_checkpoint(written, expected=CheckpointStatus.ABORTED)
    outcome = run("gc", "--yes", JOB)
    assert (outcome.status, "found 's4'" in outcome.err + outcome.out) == (1, True)
    assert run("prune", JOB, "--yes").status == 1


def failed_on_unknown_filesystem(stage: WrittenStage) -> CheckpointRecord:
    """Return the row of a savepoint that failed, as it was possible before such a directory was refused."""
    [operator] = stage.coordinator.describe(job_id_of(JOB)).operators
    stage.savepoints.request(make_savepoint_request(operator, target="s4://lake/savepoints"))
    view = stage.coordinator.describe(job_id_of(JOB))
    serve_idle(stage.savepoints, view, CheckpointStorage.open, None)
    [failed] = savepoints(stage)
    assert failed.status is CheckpointStatus.ABORTED
    return failed


def test_a_disposed_savepoint_is_gone_with_its_row_confirmed(finished: WrittenStage, run: Run) -> None:
    pointer = taken(finished, run)
    outcome = run("dispose", "--yes", pointer, "-o", "json")
    assert (outcome.status, "deleted" in outcome.err) == (0, True)
    [shown] = rows(outcome)
    assert (shown["pointer"], shown["bytes"] > 0) == (pointer, True)
    assert not local_path(pointer).exists()
    [row] = savepoints(finished)
    assert (row.status.value, row.awaits_discard) == ("disposed", False)


def test_a_dry_run_of_dispose_deletes_nothing(finished: WrittenStage, run: Run) -> None:
    pointer = taken(finished, run)
    assert "would be deleted" in run("dispose", pointer, "--dry-run").err
    assert (local_path(pointer) / "_metadata").exists()


def test_a_savepoint_is_disposed_without_its_job(finished: WrittenStage, run: Run, tmp_path: Path) -> None:
    pointer = taken(finished, run)
    assert run("prune", JOB, "--yes").status == 0
    assert local_path(pointer).exists()
    assert run("dispose", "--yes", pointer).status == 0
    assert not local_path(pointer).exists()


def test_a_savepoint_is_disposed_when_its_state_is_gone_already(finished: WrittenStage, run: Run) -> None:
    pointer = taken(finished, run)
    finished.storage.delete_directory(f"{pointer}/shared")
    assert run("dispose", "--yes", pointer).status == 0
    assert not local_path(pointer).exists()


@pytest.mark.parametrize("content", [b"", b"statecheck-metadata 1 0000\n{}"])
def test_a_savepoint_whose_metadata_is_damaged_is_disposed(finished: WrittenStage, run: Run, content: bytes) -> None:
    pointer = taken(finished, run)
    (local_path(pointer) / "_metadata").write_bytes(content)
    assert run("dispose", "--yes", pointer).status == 0
    assert not local_path(pointer).exists()
    assert [(c.status.value, c.awaits_discard) for c in savepoints(finished)] == [("disposed", False)]


def test_a_dispose_that_was_cut_short_goes_on(
    finished: WrittenStage, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pointer = taken(finished, run)
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStorage, "delete_directory", full_disk)
        assert run("dispose", "--yes", pointer).status == 3
    assert not (local_path(pointer) / "_metadata").exists()
    assert run("dispose", "--yes", pointer).status == 0
    assert not local_path(pointer).exists()


@of_job_or_stage
def test_a_savepoint_that_was_deleted_by_hand_is_disposed_and_verified_no_more(
    finished: WrittenStage, run: Run, uid: tuple[str, ...]
) -> None:
    pointer = taken(finished, run, *uid)
    finished.storage.delete_directory(pointer)
    assert run("verify", JOB).status == 1
    dry = run("dispose", pointer, "--dry-run")
    assert (dry.status, "with no files would be deleted" in dry.err, run("verify", JOB).status) == (0, True, 1)
    assert run("dispose", "--yes", pointer).status == 0
    assert [(c.status.value, c.awaits_discard) for c in savepoints(finished)] == [("disposed", False)]
    assert run("verify", JOB).status == 0
    assert run("dispose", "--yes", pointer).status == 2


def test_an_unknown_savepoint_is_not_found(finished: WrittenStage, run: Run, tmp_path: Path) -> None:
    outcome = run("dispose", "--yes", f"file://{tmp_path}/savepoint-000000-000000000000")
    assert (outcome.status, "found no files" in outcome.err) == (2, True)


def test_a_checkpoint_of_a_job_is_not_disposed(finished: WrittenStage, run: Run) -> None:
    before = finished.files()
    pointer = finished.coordinator.describe(job_id_of(JOB)).checkpoints[0].location
    assert run("dispose", "--yes", pointer).status == 2
    assert finished.files() == before


def test_a_claimed_savepoint_is_not_disposed(finished: WrittenStage, run: Run) -> None:
    pointer = taken(finished, run, "--uid", "aggregate")
    source = RestoreSource(
        pointer=pointer,
        metadata_uri=f"{pointer}/_metadata",
        metadata_size=0,
        metadata_sha256="",
        mode=RestoreMode.CLAIM,
    )
    grant = finished.coordinator.register(make_registration(job_name="heir", restore_from=source))
    finished.coordinator.confirm_restore(
        ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
    )
    for options in ((), ("--dry-run",)):
        outcome = run("dispose", "--yes", pointer, *options)
        assert (outcome.status, "claimed" in outcome.err, "deleted" in outcome.err) == (1, True, False)
    assert local_path(pointer).exists()


def test_the_listing_tells_savepoints_from_checkpoints(finished: WrittenStage, run: Run) -> None:
    taken(finished, run)
    assert [row["kind"] for row in rows(run("checkpoints", JOB, "--output", "json"))] == ["checkpoint", "savepoint"]


@pytest.fixture
def record(finished: WrittenStage) -> CheckpointRecord:
    """Return the checkpoint of a job that does not run."""
    [record] = finished.coordinator.describe(job_id_of(JOB)).checkpoints
    return record


def test_the_rescaled_savepoint_lies_below_the_target_and_its_pointer_is_printed(
    stage: WrittenStage, record: CheckpointRecord, run: Run, tmp_path: Path
) -> None:
    target = f"file://{tmp_path}/rescaled"
    outcome = run("rescale", record.location, "--max-parallelism", "64", "--target", target, "--output", "json")
    assert outcome.status == 0
    [row] = rows(outcome)
    assert row["pointer"].startswith(f"{target}/savepoint-{record.job_id[:6]}-")
    uri = f"{row['pointer']}/_metadata"
    document = decode_metadata(stage.storage.allowing(target).read_bytes(uri), uri=uri)
    assert [handle.name for handle in document.snapshots] == ["orders"]
    assert "is unchanged" in outcome.err


def test_rescaling_a_checkpoint_that_is_not_there_is_wrong_usage(run: Run, tmp_path: Path) -> None:
    pointer = f"file://{tmp_path}/none/chk-7"
    outcome = run("rescale", pointer, "--max-parallelism", "64", "--target", f"file://{tmp_path}/rescaled")
    assert outcome.status == 2


def test_rescaling_needs_a_number_of_key_groups(run: Run) -> None:
    outcome = run("rescale", "file:///chk-7")
    assert outcome.status == 2
    assert "--max-parallelism" in outcome.err


def test_more_key_groups_than_the_limit_are_refused_for_a_checkpoint_without_operator_state(
    record: CheckpointRecord, run: Run, tmp_path: Path
) -> None:
    target = tmp_path / "rescaled"
    outcome = run("rescale", record.location, "--max-parallelism", "32769", "--target", f"file://{target}")
    assert (outcome.status, "max_parallelism <= 32768" in outcome.err, target.exists()) == (2, True, False)
    assert run("rescale", record.location, "--max-parallelism", "32768", "--target", f"file://{target}").status == 0


def test_without_a_target_the_rescaled_savepoint_goes_where_savepoints_go_or_nowhere(
    record: CheckpointRecord, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("rescale", record.location, "--max-parallelism", "64").status == 0
    monkeypatch.setattr(savepoint_commands, "configured_savepoint_dir", lambda: None)
    outcome = run("rescale", record.location, "--max-parallelism", "64")
    assert outcome.status == 2
    assert "give a target" in outcome.err
