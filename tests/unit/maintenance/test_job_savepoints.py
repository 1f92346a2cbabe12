"""Savepoints of a whole job, taken from the rows and files of its stages, without Spark."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import TakeLeadership
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.properties import CheckpointType
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    OnClear,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.checkpoint.transitions import roll_back
from airflow_provider_statecheck.exceptions import (
    CheckpointDeclinedError,
    CheckpointExpiredError,
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StaleAttemptError,
    StorageError,
)
from airflow_provider_statecheck.maintenance import job_savepoints
from airflow_provider_statecheck.maintenance.job_savepoints import WholeJobSavepoints
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.checkpoint_writer import CheckpointContent
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.metadata_file import CheckpointDocument, document_uris, load_document
from tests.job_savepoints import begin_savepoint
from tests.messages import make_owner
from tests.unit.written_stage import JOB, WrittenStage


class SavedJob:
    """A job whose stages run one after another, and the service that takes its savepoints."""

    def __init__(self, path: Path) -> None:
        self.stage = WrittenStage(CheckpointStorage.open(f"{path}/checkpoints"))
        self.target = f"file://{path}/savepoints"
        self.service = self.new_service()

    def new_service(self) -> WholeJobSavepoints:
        """Return the service of another process."""
        return WholeJobSavepoints(
            rows=AlignedCheckpoints(self.stage.store),
            maintenance=self.stage.maintenance,
            savepoints=self.stage.savepoints,
            open_storage=CheckpointStorage.open,
            directory=self.target,
        )

    def begin(self, uid: str, **changes: Any) -> StageAttempt:
        return self.stage.attempt(uid=uid, **changes)

    def take(self, attempt: StageAttempt, state: Any = None) -> CheckpointRecord:
        name = f"rows of {attempt.registration.uid}"
        return self.stage.take(attempt, self.stage.snapshot(attempt, name), state=state)

    def run(self, uid: str, **changes: Any) -> CheckpointRecord:
        attempt = self.begin(uid, **changes)
        taken = self.take(attempt, state=[uid])
        attempt.finish(AttemptStatus.FINISHED)
        return taken

    def request(self, **changes: Any) -> str:
        key = new_key()
        self.service.request(self.view, request_key=key, **changes)
        return key

    def serve(self) -> None:
        self.service.take(job_id_of(JOB))

    def saved(self, **changes: Any) -> str:
        """Take a savepoint for which no stage is awaited, and return the key of its request."""
        key = self.request(**changes)
        self.serve()
        assert self.outcome(key).status is RequestStatus.COMPLETED
        return key

    def prepare(self, attempt: StageAttempt) -> CheckpointRecord:
        """Complete a checkpoint whose commits are not confirmed."""
        pending = attempt.begin_checkpoint(None)
        assert pending is not None
        taken = attempt.complete_checkpoint(pending, CheckpointContent(has_commit=True))
        assert taken is not None
        return taken

    def run_and_lose(self, uid: str) -> None:
        """Run a stage whose snapshot is deleted afterwards."""
        attempt = self.begin(uid)
        snapshot = self.stage.snapshot(attempt, "rows")
        self.stage.take(attempt, snapshot)
        attempt.finish(AttemptStatus.FINISHED)
        self.stage.storage.delete_directory(snapshot.uri)

    @property
    def view(self) -> JobView:
        return self.stage.coordinator.describe(job_id_of(JOB))

    def has(self, key: str) -> bool:
        return any(r.request_key == key for r in self.view.requests)

    def outcome(self, key: str) -> CheckpointRequest:
        return next(r for r in self.view.requests if r.request_key == key)

    def savepoint(self, key: str) -> CheckpointRecord:
        number = self.outcome(key).checkpoint_id
        return next(c for c in self.view.checkpoints if c.checkpoint_id == number)

    def document(self, key: str) -> CheckpointDocument:
        savepoint = self.savepoint(key)
        return load_document(CheckpointStorage.open(self.target), savepoint)

    def members(self, key: str) -> dict[str, int]:
        return {member.uid: member.checkpoint_id for member in self.document(key).members}

    def operator(self, uid: str) -> OperatorRecord:
        return next(o for o in self.view.operators if o.uid == uid)


def test_the_members_of_stages_that_have_ended_are_their_last_checkpoints(job: SavedJob) -> None:
    first, second = job.run("extract"), job.run("load[de]")
    key = job.saved()
    assert job.members(key) == {"extract": first.checkpoint_id, "load[de]": second.checkpoint_id}


def test_a_running_stage_gives_its_first_checkpoint_after_the_trigger(job: SavedJob) -> None:
    job.run("extract")
    running = job.begin("load")
    earlier = job.take(running)
    key = job.request()
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    job.stage.clock.advance(1)
    later = job.take(running)
    job.serve()
    assert job.members(key)["load"] == later.checkpoint_id > earlier.checkpoint_id
    running.finish(AttemptStatus.FINISHED)


def test_a_savepoint_is_complete_in_one_directory_that_can_be_moved(job: SavedJob, tmp_path: Path) -> None:
    job.run("extract")
    job.run("load")
    key = job.saved()
    savepoint, document = job.savepoint(key), job.document(key)
    assert document.relocatable
    assert all(uri.startswith(f"{savepoint.location}/") for uri in document_uris(document))
    moved = tmp_path / "elsewhere"
    shutil.move(savepoint.location.removeprefix("file://"), moved)
    shutil.rmtree(tmp_path / "checkpoints")
    source = job.stage.source_at(f"file://{moved}", uid="load")
    restored = job.begin("load", job="heir", restore_from=source).restore()
    assert restored is not None
    assert restored.state == {"done": ["load"]}
    assert not restored.damaged


def test_each_member_records_the_run_that_it_has_reached(job: SavedJob) -> None:
    job.run("extract", owner=make_owner(run_key="2026-01-02T00:00:00+00:00"))
    job.run("load", owner=make_owner(run_key="2026-01-01T00:00:00+00:00"))
    key = job.saved()
    runs = {member.uid: member.run for member in job.document(key).members}
    assert runs == {"extract": "2026-01-02T00:00:00+00:00", "load": "2026-01-01T00:00:00+00:00"}


def test_a_stage_that_ended_without_a_checkpoint_is_listed_without_a_member(job: SavedJob) -> None:
    job.run("extract")
    job.begin("notify").finish(AttemptStatus.FINISHED)
    key = job.saved()
    assert job.members(key).keys() == {"extract"}
    assert {state.uid for state in job.document(key).operator_states} == {"extract", "notify"}


@pytest.mark.parametrize("kind", [CheckpointType.SAVEPOINT, CheckpointType.SAVEPOINT_TERMINATE])
@pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_a_running_stage_that_ends_without_a_checkpoint_is_listed_without_a_member(
    job: SavedJob, status: AttemptStatus, kind: CheckpointType
) -> None:
    job.run("extract")
    running = job.begin("notify")
    key = job.request(kind=kind)
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    running.finish(status)
    job.serve()
    assert job.members(key).keys() == {"extract"}
    assert job.document(key).empty_uids == {"notify"}


def test_a_stage_that_was_listed_without_a_member_is_not_awaited_if_it_begins_again_before_the_other_members_are_copied(
    job: SavedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = sorted(("extract", "notify"), key=operator_id_of)
    given = job.run(second)
    running = job.begin(first)
    key = job.request()
    running.finish(AttemptStatus.FAILED)

    def full(*_: object) -> None:
        raise StorageError("the storage does not answer")

    with monkeypatch.context() as broken:
        broken.setattr(job_savepoints, "load_document", full)
        with pytest.raises(StorageError):
            job.serve()
    job.begin(first)
    job.serve()
    assert job.members(key) == {second: given.checkpoint_id}
    assert job.document(key).empty_uids == {first}


def test_a_savepoint_of_which_all_stages_end_without_a_checkpoint_is_declined(job: SavedJob) -> None:
    job.begin("notify").finish(AttemptStatus.FINISHED)
    running = job.begin("load")
    key = job.request()
    running.finish(AttemptStatus.FINISHED)
    job.serve()
    assert "all of its stages have ended without a checkpoint" in job.outcome(key).failure_message


def test_a_running_stage_that_ends_with_only_the_savepoint_that_it_started_from_declines(job: SavedJob) -> None:
    job.run("load")
    key = job.request()
    job.serve()
    source = job.stage.source_at(job.savepoint(key).location, uid="load")
    job.run("report", job="heir")
    running = job.begin("load", job="heir", restore_from=source)
    again = new_key()
    job.service.request(job.stage.coordinator.describe(job_id_of("heir")), request_key=again)
    running.finish(AttemptStatus.FAILED)
    request, _ = job.service.wait_for(job_id_of("heir"), again, 0)
    assert "stage 'load' has ended, and no checkpoint of its own is retained" in request.failure_message


def test_a_stage_that_begins_after_the_trigger_is_not_in_the_savepoint(job: SavedJob) -> None:
    running = job.begin("extract")
    key = job.request()
    job.run("late")
    job.take(running)
    job.serve()
    assert job.members(key).keys() == {"extract"}


def test_a_checkpoint_is_a_member_once_its_commits_are_confirmed(job: SavedJob) -> None:
    attempt = job.begin("load")
    pending = attempt.begin_checkpoint(None)
    key = job.request()
    job.stage.clock.advance(1)
    assert pending is not None
    taken = attempt.complete_checkpoint(pending, CheckpointContent(has_commit=True))
    assert taken is not None
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    attempt.confirm_commits((taken.checkpoint_id,))
    job.serve()
    assert job.members(key) == {"load": taken.checkpoint_id}


def test_a_retry_gives_the_member_of_the_attempt_that_failed(job: SavedJob) -> None:
    failing = job.begin("load")
    job.take(failing, state=["before"])
    key = job.request()
    failing.finish(AttemptStatus.FAILED)
    retry = job.begin("load")
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    job.stage.clock.advance(1)
    taken = job.take(retry, state=["after"])
    job.serve()
    assert job.members(key) == {"load": taken.checkpoint_id}


def test_a_stage_that_fails_for_good_gives_its_last_checkpoint(job: SavedJob) -> None:
    failing = job.begin("load")
    taken = job.take(failing)
    key = job.request()
    failing.finish(AttemptStatus.FAILED)
    job.serve()
    assert job.members(key) == {"load": taken.checkpoint_id}


def test_a_chosen_member_is_retained_until_the_savepoint_has_ended(job: SavedJob) -> None:
    first = job.run("extract")
    running = job.begin("load")
    key = job.request()
    job.serve()
    again = job.begin("extract", owner=make_owner(run_key="later"), retained_runs=0)
    job.take(again)
    job.take(again)
    assert job.operator("extract").pinned_checkpoint == first.checkpoint_id
    assert job.stage.statuses()[first.checkpoint_id] == "completed"
    job.take(running)
    job.serve()
    assert job.members(key)["extract"] == first.checkpoint_id
    assert job.operator("extract").pinned_checkpoint is None
    job.take(again)
    assert job.stage.statuses()[first.checkpoint_id] == "SUBSUMED"


def test_a_stage_that_starts_over_declines_the_savepoint(job: SavedJob) -> None:
    attempt = job.begin("load")
    job.take(attempt)
    attempt.finish(AttemptStatus.FINISHED)
    job.begin("extract")
    key = job.request()
    job.begin("load", on_clear=OnClear.RESTART, owner=make_owner(clear_marker="cleared"))
    job.serve()
    failed = job.outcome(key)
    assert failed.status is RequestStatus.FAILED
    assert "'load' has started over" in failed.failure_message


def test_a_retry_gives_the_member_of_the_attempt_that_failed_without_a_checkpoint(job: SavedJob) -> None:
    job.run("extract")
    job.begin("load").finish(AttemptStatus.FAILED)
    job.begin("load")
    key = job.request()
    job.begin("load").finish(AttemptStatus.FAILED)
    retry = job.begin("load")
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    job.stage.clock.advance(1)
    taken = job.take(retry)
    job.serve()
    assert job.members(key)["load"] == taken.checkpoint_id


def test_another_process_goes_on_with_a_savepoint(job: SavedJob) -> None:
    job.run("extract")
    running = job.begin("load")
    key = job.request()
    job.serve()
    job.take(running)
    job.service = job.new_service()
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED
    assert not [a for a in job.view.attempts if a.operator_id == ALIGNED_OPERATOR_ID and a.ended_at is None]


def test_a_second_savepoint_is_refused_until_the_first_one_has_ended(job: SavedJob) -> None:
    running = job.begin("load")
    first = job.request()
    with pytest.raises(ConcurrentAttemptError, match=first):
        job.request()
    job.stage.clock.advance(1)
    job.take(running)
    job.serve()
    job.stage.clock.advance(1)
    second = job.request()
    job.stage.clock.advance(1)
    job.take(running)
    job.serve()
    assert job.members(second)["load"] > job.members(first)["load"]


def test_no_process_leads_while_a_savepoint_awaits_its_stages(job: SavedJob) -> None:
    job.begin("load")
    job.request()
    before = len(job.view.attempts)
    for _ in range(5):
        job.serve()
    assert len(job.view.attempts) == before


def test_a_process_that_another_one_has_overtaken_goes_on_waiting(job: SavedJob) -> None:
    running = job.begin("load")
    key = job.request()
    job.stage.clock.advance(1)
    job.take(running)
    overtaking = job.new_service()

    def overtake(seconds: float) -> None:
        overtaking.take(job_id_of(JOB))

    fenced: Any = FencedRows(job.service.rows)
    job.service = replace(job.service, rows=fenced, pause=overtake)
    request, awaited = job.service.wait_for(job_id_of(JOB), key, 60)
    assert (request.status, awaited, fenced.calls) == (RequestStatus.COMPLETED, (), 1)


class FencedRows:
    """Rows whose first acknowledgement finds a newer leader."""

    def __init__(self, rows: Any) -> None:
        self._rows = rows
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._rows, name)

    def acknowledge(self, request: Any) -> Any:
        self.calls += 1
        raise StaleAttemptError("Attempt 1 was replaced by attempt 2.", epoch=1, current_epoch=2)


def test_a_stage_that_was_rewound_before_its_member_was_copied_declines(job: SavedJob) -> None:
    first, _ = job.run("load"), job.run("load", owner=make_owner(run_key="later"), retained_runs=5)
    assert job.stage.statuses()[first.checkpoint_id] == "completed"
    job.begin("extract")
    key = job.request()
    with job.stage.store.transaction(job_id_of(JOB)) as tx:
        newest = tx.open_checkpoints(operator_id_of("load"))[-1]
        roll_back(tx, [newest])
    job.serve()
    assert "'load' was rolled back" in job.outcome(key).failure_message


@pytest.mark.parametrize("is_new_generation", [True, False], ids=["at the end of a run", "with newer checkpoints"])
def test_state_that_retention_has_released_refuses_the_savepoint(job: SavedJob, is_new_generation: bool) -> None:
    job.run("load")
    job.run("extract")
    with job.stage.store.transaction(job_id_of(JOB)) as tx:
        operator = tx.operator(operator_id_of("load"))
        assert operator is not None
        roll_back(tx, tx.open_checkpoints(operator.operator_id))
        tx.save_operator(replace(operator, generation=operator.generation + is_new_generation))
    with pytest.raises(CheckpointNotFoundError, match="retention has released"):
        job.request()
    assert not job.view.requests


def test_requests_of_a_coordinator_of_a_program_are_left_to_it(job: SavedJob) -> None:
    taken = job.run("load")
    begun = begin_savepoint(AlignedCheckpoints(job.stage.store), taken.operator_id)
    job.serve()
    assert job.stage.statuses()[begun.checkpoint_id] == "pending"
    with pytest.raises(ConcurrentAttemptError):
        job.request()


def test_a_request_is_the_same_request_when_it_is_repeated(job: SavedJob) -> None:
    job.run("load")
    key = new_key()
    for _ in range(2):
        job.service.request(job.view, request_key=key)
    job.serve()
    assert len([c for c in job.view.checkpoints if c.operator_id == ALIGNED_OPERATOR_ID]) == 1


def test_a_savepoint_is_the_latest_checkpoint_of_no_stage_and_subsumes_none(job: SavedJob) -> None:
    taken = job.run("load")
    job.request()
    job.serve()
    latest = job.stage.coordinator.latest(job_id_of(JOB), operator_id_of("load"))
    assert latest is not None
    assert latest.checkpoint_id == taken.checkpoint_id
    retry = job.begin("load", owner=make_owner(run_key="next")).restore()
    assert retry is not None
    assert retry.checkpoint.checkpoint_id == taken.checkpoint_id


def test_a_savepoint_whose_directory_the_user_has_deleted_does_not_hold_up_the_next_one(job: SavedJob) -> None:
    taken = job.run("load")
    deleted = job.savepoint(job.saved()).location
    CheckpointStorage.open(job.target).delete_directory(deleted)
    assert job.members(job.saved()) == {"load": taken.checkpoint_id}


def test_a_job_without_state_has_no_savepoint(job: SavedJob) -> None:
    job.begin("load").finish(AttemptStatus.FAILED)
    with pytest.raises(CheckpointNotFoundError, match="run a stage first"):
        job.request()


def test_a_program_with_a_coordinator_of_its_own_refuses_the_savepoint(job: SavedJob) -> None:
    job.run("load")
    owner = make_owner(logical_task="sales.py", label="sales.py")
    AlignedCheckpoints(job.stage.store).lead(
        TakeLeadership(job_name=JOB, attempt_key=new_key(), owner=owner, storage_base=job.stage.storage.base_uri)
    )
    with pytest.raises(ConcurrentAttemptError, match=r"sales\.py"):
        job.request()


def test_a_savepoint_needs_a_directory(job: SavedJob) -> None:
    job.run("load")
    job.service = replace(job.service, directory=None)
    with pytest.raises(InvalidConfigurationError, match="savepoint_dir"):
        job.request()
    key = job.request(target=job.target)
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED


def test_a_stage_whose_files_are_damaged_declines_the_savepoint(job: SavedJob) -> None:
    job.run("extract")
    job.run_and_lose("load")
    key = job.request()
    job.serve()
    assert job.outcome(key).status is RequestStatus.FAILED
    with pytest.raises(CheckpointDeclinedError, match="rows"):
        job.service.pointer_of(job_id_of(JOB), key, 0)
    assert not any("savepoint" in name for name in CheckpointStorage.open(job.target).list_files(job.target))


def test_the_pointer_of_a_savepoint_is_its_directory(job: SavedJob) -> None:
    job.run("load")
    key = job.request()
    assert job.service.pointer_of(job_id_of(JOB), key, 0) == job.savepoint(key).location


def test_a_savepoint_that_is_late_is_reported_with_the_stages_that_it_awaits(job: SavedJob) -> None:
    job.begin("load")
    key = job.request()
    with pytest.raises(CheckpointExpiredError, match="it awaits load"):
        job.service.pointer_of(job_id_of(JOB), key, 0)
    assert job.outcome(key).status is RequestStatus.RUNNING


def test_a_wait_goes_on_while_the_coordinator_is_unavailable(job: SavedJob, monkeypatch: pytest.MonkeyPatch) -> None:
    running = job.begin("load")
    key = job.request()

    def unavailable(*_: object) -> None:
        raise CoordinatorUnavailableError("Expected an answer, found none.")

    with monkeypatch.context() as outage:
        outage.setattr(job.stage.maintenance, "describe", unavailable)
        with pytest.raises(CoordinatorUnavailableError):
            job.service.pointer_of(job_id_of(JOB), key, 0)
        steps = iter([lambda: None, outage.undo, lambda: job.stage.clock.advance(1), lambda: job.take(running)])
        job.service = replace(job.service, pause=lambda _: next(steps)())
        assert job.service.pointer_of(job_id_of(JOB), key, 60) == job.savepoint(key).location


def test_a_stage_that_has_only_restored_a_member_of_another_job_has_no_member_yet(job: SavedJob) -> None:
    job.run("load")
    key = job.saved()
    source = job.stage.source_at(job.savepoint(key).location, uid="write", renamed_uids={"load": "write"})
    heir = job.begin("write", job="heir", restore_from=source)
    assert heir.restore() is not None
    heir.finish(AttemptStatus.FAILED)
    again = new_key()
    job.service.request(job.stage.coordinator.describe(job_id_of("heir")), request_key=again)
    request, _ = job.service.wait_for(job_id_of("heir"), again, 0)
    assert "found only the one that it started from, of stage 'load'" in request.failure_message


@pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.FAILED])
def test_a_stage_that_has_ended_with_only_the_savepoint_that_it_started_from_refuses_the_savepoint(
    job: SavedJob, status: AttemptStatus
) -> None:
    job.run("load")
    key = job.saved()
    source = job.stage.source_at(job.savepoint(key).location, uid="load")
    job.run("report", job="heir")
    # Its source had no rows, or it failed before it had restored the savepoint.
    job.begin("load", job="heir", restore_from=source).finish(status)
    with pytest.raises(
        CheckpointNotFoundError, match=r"of stage 'load' for .*, found only the savepoint that the stage"
    ):
        job.service.request(job.stage.coordinator.describe(job_id_of("heir")), request_key=new_key())
    job.run("load", job="heir", restore_from=source)
    job.service.request(job.stage.coordinator.describe(job_id_of("heir")), request_key=new_key())


def test_a_complete_savepoint_keeps_no_manifest_of_an_acknowledgement(job: SavedJob) -> None:
    job.run("extract")
    job.run("load[de]")

    savepoint = job.savepoint(job.saved())

    top = CheckpointStorage.open(savepoint.location).list_files(savepoint.location)
    assert [path for path in top if "/" not in path] == ["_metadata"]
