"""Savepoints of a whole job with which the job stops: what their stages wait for, and what they go on after."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, CheckpointType
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRecord, RequestStatus
from airflow_provider_statecheck.exceptions import (
    CheckpointError,
    CheckpointExpiredError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    StoppedWithSavepointError,
)
from airflow_provider_statecheck.maintenance.job_savepoints import savepoint_kind
from airflow_provider_statecheck.spark.attempt import StageAttempt
from airflow_provider_statecheck.spark.endings import stopping_savepoint
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.testing.faults import WRITING_CALLS, FaultMode, InProcessPlan, Killed, faulty_storage
from tests.job_savepoints import begin_savepoint
from tests.messages import make_owner
from tests.unit.maintenance.test_job_savepoints import SavedJob
from tests.unit.written_stage import JOB

SUSPEND, TERMINATE = CheckpointType.SAVEPOINT_SUSPEND, CheckpointType.SAVEPOINT_TERMINATE
DAY = 86_400.0


class StoppedJob(SavedJob):
    """A job that stops, with drivers whose waits let time pass and other processes work."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.waits: list[float] = []
        self.while_waiting: list[Callable[[], object]] = []
        """What happens in the pauses of a driver, one after the other; then nothing happens."""

    def driven(self, uid: str, **changes: Any) -> StageAttempt:
        """Begin an attempt whose driver waits by the clock of the job."""
        begin = self.stage.clock.now()
        driver = {"pause": self._pause, "monotonic": lambda: (self.stage.clock.now() - begin).total_seconds()}
        return self.begin(uid, driver=driver, **changes)

    def _pause(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.stage.clock.advance(seconds)
        if self.while_waiting:
            self.while_waiting.pop(0)()

    def take_after(self, attempt: StageAttempt) -> CheckpointRecord:
        """Take a checkpoint a second later."""
        self.stage.clock.advance(1)
        return self.take(attempt)

    def stopped(self, attempt: StageAttempt) -> StoppedWithSavepointError:
        """Take a checkpoint with which the stage stops, and end its attempt as its task does."""
        with pytest.raises(StoppedWithSavepointError) as stopped:
            self.take_after(attempt)
        attempt.fail(stopped.value)
        return stopped.value

    def fail_while_waiting(self, attempt: StageAttempt) -> None:
        """Take a checkpoint after which the driver loses its connection while it waits."""
        self.while_waiting = [_lose]
        with pytest.raises(ConnectionError):
            self.take_after(attempt)

    def newest(self, attempt: StageAttempt) -> int:
        """Return the newest checkpoint of the stage."""
        latest = self.stage.coordinator.latest(job_id_of(JOB), attempt.grant.attempt.operator_id)
        assert latest is not None
        return latest.checkpoint_id


@pytest.fixture
def job(tmp_path: Path) -> StoppedJob:
    return StoppedJob(tmp_path)


def test_a_stage_waits_after_its_member_and_stops_when_the_savepoint_is_complete(job: StoppedJob) -> None:
    job.run("extract")
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.while_waiting = [lambda: None, job.serve]
    stopped = job.stopped(running)
    assert len(job.waits) == 2
    assert stopped.pointer == job.savepoint(key).location
    assert job.savepoint(key).properties.snapshot_type is SUSPEND
    assert job.members(key)["load"] == job.newest(running)


def test_the_first_boundary_after_the_trigger_is_where_the_stages_stop(job: StoppedJob) -> None:
    first, second = job.driven("first"), job.driven("second")
    job.take(first)
    key = job.request(kind=SUSPEND)
    given: list[StoppedWithSavepointError] = []
    job.while_waiting = [lambda: given.append(job.stopped(second)), job.serve]
    given.append(job.stopped(first))
    assert {str(each.pointer) for each in given} == {job.savepoint(key).location}
    assert job.members(key) == {"first": job.newest(first), "second": job.newest(second)}


def test_a_stage_waits_when_its_commits_are_confirmed(job: StoppedJob) -> None:
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    taken = job.prepare(running)
    assert not job.waits
    job.while_waiting = [job.serve]
    with pytest.raises(StoppedWithSavepointError):
        running.confirm_commits((taken.checkpoint_id,))
    assert job.members(key) == {"load": taken.checkpoint_id}


def test_commits_of_a_checkpoint_before_the_trigger_do_not_make_a_stage_wait(job: StoppedJob) -> None:
    running = job.driven("load")
    taken = job.prepare(running)
    key = job.request(kind=SUSPEND)
    running.confirm_commits((taken.checkpoint_id,))
    assert not job.waits
    job.while_waiting = [job.serve]
    job.stopped(running)
    assert job.members(key)["load"] > taken.checkpoint_id


def test_stages_go_on_if_the_savepoint_fails(job: StoppedJob) -> None:
    job.run_and_lose("extract")
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.while_waiting = [job.serve]
    job.take_after(running)
    assert job.outcome(key).status is RequestStatus.FAILED
    job.take_after(running)
    assert len(job.waits) == 1
    running.finish(AttemptStatus.FINISHED)


def test_a_stage_goes_on_waiting_while_the_coordinator_is_unavailable(
    job: StoppedJob, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = job.driven("load")
    key = job.request(kind=SUSPEND)

    def unavailable(*_: object) -> None:
        raise CoordinatorUnavailableError("Expected an answer, found none.")

    job.while_waiting = [
        lambda: monkeypatch.setattr(job.stage.coordinator, "checkpoint", unavailable),
        lambda: None,
        monkeypatch.undo,
        job.serve,
    ]
    assert job.stopped(running).pointer == job.savepoint(key).location
    assert len(job.waits) == 4


def test_stages_go_on_when_the_savepoint_expires(job: StoppedJob) -> None:
    job.begin("extract")
    running = job.driven("load")
    key = job.request(kind=SUSPEND)

    def expire() -> None:
        job.stage.clock.advance(DAY)
        job.serve()

    job.while_waiting = [job.serve, expire]
    job.take_after(running)
    assert job.outcome(key).failure_message == "The checkpoint expired before 'extract' had acknowledged"
    assert len(job.waits) == 2


def test_stages_go_on_after_a_day_in_which_no_process_takes_the_savepoint(job: StoppedJob) -> None:
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.while_waiting = [lambda: job.stage.clock.advance(DAY)]
    job.take_after(running)
    job.take_after(running)
    assert (len(job.waits), job.outcome(key).status) == (1, RequestStatus.RUNNING)
    job.serve()
    assert job.outcome(key).status is RequestStatus.FAILED


def _lose() -> None:
    raise ConnectionError("planned")


def test_a_retry_of_a_stage_that_failed_while_it_waited_stops_at_its_next_checkpoint(job: StoppedJob) -> None:
    other, failing = job.driven("other"), job.driven("load")
    key = job.request(kind=SUSPEND)
    job.fail_while_waiting(failing)
    given = job.newest(failing)
    failing.finish(AttemptStatus.FAILED)
    retry = job.driven("load")
    assert retry.restore() is not None
    job.while_waiting = [lambda: job.stopped(other), job.serve]
    job.stopped(retry)
    assert job.members(key)["load"] in (given, job.newest(retry))


@pytest.mark.parametrize("retry_begins", ["before", "after"])
def test_a_retry_stops_although_the_savepoint_is_complete_before_its_first_checkpoint(
    job: StoppedJob, retry_begins: str
) -> None:
    failing = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.fail_while_waiting(failing)
    failing.finish(AttemptStatus.FAILED)
    if retry_begins == "after":
        job.serve()
    retry = job.driven("load")
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED
    assert retry.restore() is not None
    stopped = job.stopped(retry)
    assert stopped.pointer == job.savepoint(key).location
    assert stopping_savepoint(job.view, retry.grant.attempt) == job.savepoint(key).location
    again = job.driven("load")
    job.stopped(again)
    cleared = job.driven("load", owner=make_owner(clear_marker="cleared"))
    job.take_after(cleared)
    job.take_after(cleared)
    cleared.finish(AttemptStatus.FINISHED)


def test_retries_of_a_stage_that_failed_without_a_checkpoint_stop(job: StoppedJob) -> None:
    job.driven("load")
    key = job.request(kind=SUSPEND)
    failing = job.driven("load")
    job.fail_while_waiting(failing)
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED
    failing.finish(AttemptStatus.FAILED)
    retry = job.driven("load")
    stopped = job.stopped(retry)
    assert stopped.pointer == job.savepoint(key).location
    assert stopping_savepoint(job.view, retry.grant.attempt) == job.savepoint(key).location


def test_the_retry_of_a_stage_that_had_failed_at_the_trigger_stops(job: StoppedJob) -> None:
    failed = job.driven("load")
    job.take_after(failed)
    failed.finish(AttemptStatus.FAILED)
    job.stage.clock.advance(1)
    key = job.request(kind=SUSPEND)
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED
    retry = job.driven("load")
    stopped = job.stopped(retry)
    assert stopped.pointer == job.savepoint(key).location
    assert stopping_savepoint(job.view, retry.grant.attempt) == job.savepoint(key).location
    assert stopping_savepoint(job.view, failed.grant.attempt) is None
    cleared = job.driven("load", owner=make_owner(clear_marker="cleared"))
    job.take_after(cleared)
    cleared.finish(AttemptStatus.FINISHED)


def test_the_retry_of_a_stage_that_had_failed_at_the_trigger_stops_although_the_clock_is_behind(
    job: StoppedJob,
) -> None:
    job.run("extract")
    job.stage.clock.advance(-60)
    failed = job.driven("load")
    job.take(failed)
    failed.finish(AttemptStatus.FAILED)
    key = job.request(kind=SUSPEND)
    job.serve()
    retry = job.driven("load")
    assert job.stopped(retry).pointer == job.savepoint(key).location


@pytest.mark.parametrize("is_failed", [True, False], ids=["failed before", "failed after"])
def test_the_retry_of_a_stage_stops_although_the_clock_was_set_back_after_the_trigger(
    job: StoppedJob, is_failed: bool
) -> None:
    failing = job.driven("load")
    job.take_after(failing)
    if is_failed:
        failing.finish(AttemptStatus.FAILED)
    job.stage.clock.advance(1)
    key = job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    if not is_failed:
        failing.finish(AttemptStatus.FAILED)
    job.serve()
    assert job.outcome(key).status is RequestStatus.COMPLETED
    job.stage.clock.advance(-3600)
    retry = job.driven("load")
    assert job.stopped(retry).pointer == job.savepoint(key).location


def test_a_run_that_was_deleted_after_it_had_stopped_and_created_again_does_not_stop(job: StoppedJob) -> None:
    owner = make_owner(run_key="2026-01-02", label="task dag.load, try 1", airflow=(("task_id", "load"),))
    job.run("load")
    stopping = job.driven("load", owner=owner)
    key = job.request(kind=SUSPEND)
    job.while_waiting = [job.serve]
    assert job.stopped(stopping).pointer == job.savepoint(key).location
    stopping.finish(AttemptStatus.FAILED)
    again = job.driven("load", owner=owner)
    job.take_after(again)
    again.finish(AttemptStatus.FINISHED)
    assert stopping_savepoint(job.view, again.grant.attempt) is None


def test_the_retry_of_a_stage_that_began_after_the_savepoint_does_not_stop(job: StoppedJob) -> None:
    job.run("load")
    job.saved(kind=SUSPEND)
    # All of this is within the resolution of the clock.
    for _ in range(2):
        attempt = job.driven("load", owner=make_owner(run_key="2026-01-02", run_id="the next run"))
        job.take(attempt)
        attempt.finish(AttemptStatus.FAILED)


def test_a_stage_that_begins_after_the_trigger_stops_too(job: StoppedJob) -> None:
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    late = job.driven("late")
    job.while_waiting = [lambda: job.stopped(running), job.serve]
    assert job.stopped(late).pointer == job.savepoint(key).location
    assert job.members(key).keys() == {"load"}


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "failed"])
def test_the_retry_of_a_stage_that_began_after_the_trigger_and_failed_while_it_waited_stops(
    job: StoppedJob, is_killed: bool
) -> None:
    job.run("extract")
    key = job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    late = job.driven("late")
    job.fail_while_waiting(late)
    if not is_killed:
        late.finish(AttemptStatus.FAILED)
    job.serve()
    retry = job.driven("late")
    assert job.stopped(retry).pointer == job.savepoint(key).location
    assert stopping_savepoint(job.view, retry.grant.attempt) == job.savepoint(key).location
    cleared = job.driven("late", owner=make_owner(clear_marker="cleared"))
    job.take_after(cleared)
    cleared.finish(AttemptStatus.FINISHED)


def test_the_retry_of_a_stage_that_went_on_after_the_savepoint_goes_on(job: StoppedJob) -> None:
    job.run("extract")
    job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    late = job.driven("late")
    job.serve()
    job.take_after(late)
    late.finish(AttemptStatus.FAILED)
    retry = job.driven("late")
    job.take_after(retry)
    retry.finish(AttemptStatus.FINISHED)


def test_a_savepoint_that_returns_to_the_queue_lets_the_stages_go_on_to_the_next_one(job: StoppedJob) -> None:
    job.run("extract")
    running = job.driven("load")
    sound, key = job.service, new_key()
    plan = InProcessPlan(point=1, mode=FaultMode.KILL)
    job.service = replace(
        sound, open_storage=lambda uri: faulty_storage(CheckpointStorage.open(uri), plan, WRITING_CALLS)
    )
    with pytest.raises(Killed):
        job.service.request(job.view, kind=SUSPEND, request_key=key)
    job.service = sound
    first = job.savepoint(key).checkpoint_id

    def lead_again() -> None:
        job.stage.clock.advance(120)  # longer than a process that triggers may be silent
        job.serve()

    job.while_waiting = [lead_again, job.serve]
    job.take_after(running)
    assert job.savepoint(key).checkpoint_id > first
    job.stopped(running)
    assert job.members(key)["load"] == job.newest(running)


def test_a_wait_ends_with_the_attempt(job: StoppedJob) -> None:
    running = job.driven("load")
    job.request(kind=SUSPEND)
    job.while_waiting = [lambda: running.finish(AttemptStatus.FAILED)]
    job.take_after(running)
    assert len(job.waits) == 1


def test_a_coordinator_of_a_program_stops_no_stage(job: StoppedJob) -> None:
    running = job.driven("load")
    properties = CheckpointProperties.for_sync_savepoint(terminate=False)
    begin_savepoint(AlignedCheckpoints(job.stage.store), running.grant.attempt.operator_id, properties=properties)
    job.take_after(running)
    assert not job.waits


def test_a_savepoint_that_does_not_stop_the_job_makes_no_stage_wait(job: StoppedJob) -> None:
    running = job.driven("load")
    for kind in (CheckpointType.SAVEPOINT, TERMINATE):
        key = job.request(kind=kind)
        job.take_after(running)
        job.serve()
        if kind is TERMINATE:
            assert job.outcome(key).status is RequestStatus.RUNNING
    assert not job.waits


def test_a_stage_that_terminates_gives_its_last_checkpoint_when_it_has_ended(job: StoppedJob) -> None:
    ended = job.run("extract")
    running = job.driven("load")
    key = job.request(kind=TERMINATE)
    for _ in range(2):
        job.take_after(running)
        job.serve()
        assert job.outcome(key).status is RequestStatus.RUNNING
    last = job.take_after(running)
    running.finish(AttemptStatus.FINISHED)
    job.serve()
    assert job.members(key) == {"extract": ended.checkpoint_id, "load": last.checkpoint_id}
    assert job.savepoint(key).properties.snapshot_type is TERMINATE


def test_the_member_of_a_stage_that_terminates_has_confirmed_commits(job: StoppedJob) -> None:
    running = job.driven("load")
    before = job.take(running)
    key = job.request(kind=TERMINATE)
    job.stage.clock.advance(1)
    pending = job.prepare(running)
    running.finish(AttemptStatus.FAILED)
    job.serve()
    assert job.outcome(key).status is RequestStatus.RUNNING
    retry = job.driven("load")
    retry.restore()
    retry.confirm_commits((pending.checkpoint_id,))
    retry.finish(AttemptStatus.FINISHED)
    job.serve()
    assert job.members(key) == {"load": pending.checkpoint_id}
    assert before.checkpoint_id < pending.checkpoint_id


def test_the_call_waits_until_the_stages_have_stopped(job: StoppedJob) -> None:
    job.run("extract")
    running = job.driven("load")
    key = job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    taking = job.new_service()
    ends: list[StoppedWithSavepointError] = []

    def drive(_: float) -> None:
        job.while_waiting = [lambda: taking.take(job_id_of(JOB))]
        ends.append(job.stopped(running))

    job.service = replace(job.service, pause=drive)
    assert job.service.pointer_of(job_id_of(JOB), key, 60) == job.savepoint(key).location
    assert len(ends) == 1


def test_a_stage_that_does_not_stop_in_time_is_named_with_the_savepoint(job: StoppedJob) -> None:
    running, late = job.begin("load"), job.begin("late")
    key = job.request(kind=SUSPEND)
    job.stage.clock.advance(1)
    for attempt in (running, late):
        attempt.release()
        job.take(attempt)
    late.finish(AttemptStatus.FINISHED)
    job.stage.clock.advance(1)
    with pytest.raises(CheckpointError, match="found that these still run: load;") as error:
        job.service.pointer_of(job_id_of(JOB), key, 0)
    assert not isinstance(error.value, CheckpointExpiredError)
    assert error.value.pointer == job.savepoint(key).location
    running.finish(AttemptStatus.FAILED)
    job.stage.clock.advance(1)
    resumed = job.begin("load")
    assert job.service.pointer_of(job_id_of(JOB), key, 0) == job.savepoint(key).location
    resumed.finish(AttemptStatus.FINISHED)


def test_a_stage_that_is_awaited_to_its_end_is_named(job: StoppedJob) -> None:
    job.begin("load")
    key = job.request(kind=TERMINATE)
    with pytest.raises(
        CheckpointExpiredError, match="it awaits load; the maintenance Dag completes it when they have ended"
    ):
        job.service.pointer_of(job_id_of(JOB), key, 0)


def test_the_savepoint_with_which_a_driver_stopped_is_found_in_the_rows(job: StoppedJob) -> None:
    failed, running = job.driven("failed"), job.driven("load")
    refs = [each.grant.attempt for each in (failed, running)]
    job.take(failed)
    key = job.request(kind=SUSPEND)
    failed.finish(AttemptStatus.FAILED)
    assert [stopping_savepoint(job.view, ref) for ref in refs] == [None, None]
    job.while_waiting = [job.serve]
    job.stopped(running)
    assert [stopping_savepoint(job.view, ref) for ref in refs] == [None, job.savepoint(key).location]
    job.stage.clock.advance(1)
    resumed = job.driven("load", owner=make_owner(clear_marker="cleared"))
    job.take_after(resumed)
    resumed.finish(AttemptStatus.FAILED)
    assert stopping_savepoint(job.view, resumed.grant.attempt) is None
    assert stopping_savepoint(job.view, replace(refs[0], epoch=9)) is None


def test_a_stop_is_suspend_or_terminate() -> None:
    assert [savepoint_kind(stop) for stop in (None, "suspend", "terminate")] == [
        CheckpointType.SAVEPOINT,
        SUSPEND,
        TERMINATE,
    ]
    with pytest.raises(InvalidConfigurationError, match="'suspend', 'terminate' or None, found 'now'"):
        savepoint_kind("now")
