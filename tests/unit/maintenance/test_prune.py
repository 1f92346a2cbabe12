from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import epoch_name, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.records import ActionRecord, AttemptStatus, JobAction, RequestStatus
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, StorageError
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.gc import PrunedJob, PruneRequest, prune_job
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.views.checkpoint_storages import OperatorDirectories
from airflow_provider_statecheck.testing.faults import (
    WRITING_CALLS,
    FaultMode,
    FaultPlan,
    InProcessPlan,
    Killed,
    faulty_rows,
    faulty_storage,
)
from tests.contracts.maintenance_contract import AIRFLOW
from tests.messages import make_owner
from tests.soak import rest_in_soak
from tests.unit.written_stage import JOB, WrittenStage, local_path, no_storage

TEST = "test/sales"
BY_RUN = "nightly/2026-01-01"
MONTH = DEFAULT_AGE.total_seconds() + 1
OLD = PruneRequest(older_than=timedelta(days=10))
TESTS = PruneRequest(test_jobs=True)
OWNER = make_owner(run_key="2026-01-01", run_id="run-1", airflow=AIRFLOW)


def prune(stage: WrittenStage, job: str, request: PruneRequest, **options: Any) -> PrunedJob:
    gateway = options.get("gateway", stage.maintenance)
    return prune_job(gateway, job_id_of(job), request, options.get("opener", CheckpointStorage.open))


def named(job: str, **changes: Any) -> PruneRequest:
    return PruneRequest(job_ids=(job_id_of(job),), **changes)


def jobs(stage: WrittenStage) -> set[str]:
    return {job.name for job in stage.maintenance.jobs()}


def test_old_rows_go_and_what_a_restore_needs_stays(stage):
    stage.run()
    stage.run()
    stage.clock.advance(MONTH)
    first = prune(stage, JOB, PruneRequest())
    assert (first.checkpoints, first.attempts) == (0, 1), "their bytes were gone only now"
    stage.clock.advance(MONTH)
    second = prune(stage, JOB, PruneRequest())
    assert (second.checkpoints, second.attempts) == (5, 0)
    assert stage.statuses() == {6: "completed"}
    assert stage.attempt().restore() is not None


def test_the_last_attempt_of_the_run_at_which_the_state_stands_is_kept(stage):
    for run, checkpoints in (("2026-01-01", 1), ("2026-01-02", 0), ("2026-01-03", 0)):
        attempt = stage.attempt(owner=make_owner(run_key=run, run_id=run))
        for _ in range(checkpoints):
            stage.take(attempt)
        attempt.finish(AttemptStatus.FINISHED)
    stage.clock.advance(MONTH)
    prune(stage, JOB, PruneRequest())
    left = stage.maintenance.describe(job_id_of(JOB)).attempts
    assert [attempt.owner.run_key for attempt in left] == ["2026-01-01", "2026-01-03"]


def test_rows_are_kept_for_a_month_unless_an_age_is_given(stage):
    stage.run()
    stage.run()
    stage.clock.advance(MONTH / 2)
    assert not prune(stage, JOB, PruneRequest()).has_changes
    assert prune(stage, JOB, OLD).attempts == 1


def test_a_test_job_goes_with_every_byte(stage):
    stage.run(TEST)
    stage.run(JOB)
    report = prune(stage, TEST, TESTS)
    assert (report.is_removed, jobs(stage)) == (True, {JOB})
    assert stage.directories(TEST) == set()
    assert report.deleted_bytes > 0


def test_files_that_functions_own_go_with_their_job_only(stage):
    ref = stage.run(JOB).grant.attempt
    directories = OperatorDirectories(stage.storage, ref)
    uri = f"{directories.taskowned}/{epoch_name(ref.epoch)}"
    stage.storage.write_bytes(uri, b"a log that is read later")
    prune(stage, JOB, OLD)
    assert stage.storage.exists(uri)
    assert prune(stage, JOB, named(JOB)).is_removed
    assert stage.files() == {}


@pytest.mark.parametrize("request_", [PruneRequest(), OLD, TESTS], ids=["rows", "old", "tests"])
def test_a_job_with_a_name_of_its_own_goes_only_when_it_is_named(stage, request_):
    stage.run(JOB)
    stage.runs.over.add("scheduled__2026-01-01")
    stage.clock.advance(12 * MONTH)
    prune(stage, JOB, request_)
    assert stage.statuses()[3] == "completed"
    assert prune(stage, JOB, named(JOB)).is_removed
    assert stage.files() == {}


def test_a_job_named_after_a_run_goes_when_that_is_over_and_old_enough(stage):
    stage.run(BY_RUN, owner=OWNER)
    stage.runs.over.add("run-1")
    assert not prune(stage, BY_RUN, OLD).has_changes
    stage.clock.advance(MONTH)
    assert not prune(stage, BY_RUN, PruneRequest()).is_removed, "whole jobs go only where an age was asked for"
    assert prune(stage, BY_RUN, OLD).is_removed
    assert stage.files() == {}


def test_a_job_whose_run_is_not_over_stays_at_any_age(stage):
    stage.run(BY_RUN, owner=OWNER)
    stage.clock.advance(12 * MONTH)
    assert prune(stage, BY_RUN, OLD).kept == ["run 'run-1' has not ended"]
    assert stage.statuses(BY_RUN)[3] == "completed"


def test_a_test_job_is_kept_while_it_is_younger_than_the_age(stage):
    stage.run(TEST)
    request = PruneRequest(test_jobs=True, older_than=timedelta(days=10))
    assert not prune(stage, TEST, request).has_changes
    stage.clock.advance(MONTH)
    assert prune(stage, TEST, request).is_removed


def test_a_test_job_stays_where_only_an_age_is_given(stage):
    stage.run(TEST)
    stage.clock.advance(12 * MONTH)
    assert not prune(stage, TEST, OLD).is_removed


@pytest.mark.parametrize("request_", [TESTS, named(TEST)], ids=["tests", "named"])
def test_a_job_with_an_open_attempt_is_left_alone(stage, request_):
    stage.attempt(TEST)
    report = prune(stage, TEST, request_)
    assert (report.is_removed, jobs(stage)) == (False, {TEST})
    assert "has not ended" in report.kept[0]


@pytest.mark.parametrize("request_", [TESTS, named(TEST)], ids=["tests", "named"])
def test_a_dry_run_tells_what_goes_and_changes_nothing(stage, request_):
    stage.run(TEST)
    view, files = stage.maintenance.describe(job_id_of(TEST)), stage.files()
    values = {"job_ids": request_.job_ids, "test_jobs": request_.test_jobs}
    told = prune(stage, TEST, PruneRequest(**values, dry_run=True))
    assert (stage.maintenance.describe(job_id_of(TEST)), stage.files()) == (view, files)
    assert told == prune(stage, TEST, request_)


def test_a_dry_run_counts_old_rows(stage):
    stage.run()
    stage.run()
    stage.clock.advance(MONTH)
    told = prune(stage, JOB, PruneRequest(dry_run=True))
    assert (told.attempts, len(stage.maintenance.describe(job_id_of(JOB)).attempts)) == (1, 2)
    # The files of ended checkpoints go with them.
    assert told.deleted_bytes == prune(stage, JOB, PruneRequest()).deleted_bytes > 0


def test_rows_stay_while_their_storage_does_not_answer(stage):
    stage.run(TEST)
    report = prune(stage, TEST, TESTS, opener=no_storage)
    assert (report.is_removed, jobs(stage)) == (False, {TEST})
    assert report.unreachable
    assert prune(stage, TEST, TESTS).is_removed
    assert stage.files() == {}


def test_rows_stay_while_orphans_cannot_be_deleted(stage, monkeypatch):
    """No checkpoint names them; without the job's rows nobody would ever find them."""
    attempt = stage.attempt(TEST)
    stage.snapshot(attempt, "orphan")
    attempt.finish(AttemptStatus.FAILED)

    def denied(self: CheckpointStorage, uri: str) -> None:
        raise StorageError("denied")

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStorage, "delete_directory", denied)
        assert prune(stage, TEST, TESTS).problems
    assert jobs(stage) == {TEST}
    assert prune(stage, TEST, TESTS).is_removed
    assert stage.files() == {}


def test_a_problem_is_told_once(stage):
    stage.run(TEST)
    stage.run(TEST)
    stage.clock.advance(2 * MONTH)
    request = PruneRequest(test_jobs=True, older_than=timedelta(days=10))
    assert len(prune(stage, TEST, request, opener=no_storage).unreachable) == 1


def test_attempts_stay_whose_bytes_were_left_because_a_retained_checkpoint_cannot_be_read(stage, tmp_path):
    """Their rows alone tell in which directory those bytes lie."""
    stage.run(checkpoints=0)
    moved = WrittenStage(CheckpointStorage.open(str(tmp_path / "moved")), stage.clock, stage.store)
    moved.run()
    row = stage.maintenance.describe(job_id_of(JOB)).checkpoints[-1]
    metadata = local_path(row.metadata_uri)
    content = metadata.read_bytes()
    metadata.write_bytes(b"damaged")
    stage.clock.advance(MONTH)
    report = prune(stage, JOB, PruneRequest())
    assert (report.attempts, len(report.kept)) == (0, 1)
    assert len(stage.maintenance.describe(job_id_of(JOB)).attempts) == 2
    metadata.write_bytes(content)
    assert prune(stage, JOB, PruneRequest()).attempts == 1


@pytest.mark.parametrize("age", [timedelta(0), timedelta(hours=23), timedelta(days=-1)])
def test_an_age_of_less_than_a_day_is_refused(age):
    with pytest.raises(InvalidConfigurationError, match="a day or more"):
        PruneRequest(older_than=age)


def ask(stage: WrittenStage, job: str) -> str:
    """Let a user request the removal of a job."""
    stage.clock.advance(1)
    key = new_key()
    stage.actions.request(
        UserAction(job_id=job_id_of(job), action=JobAction.PRUNE, request_key=key, requested_by="anna")
    )
    return key


def request_of(stage: WrittenStage, job: str) -> ActionRecord:
    return stage.maintenance.describe(job_id_of(job)).actions[0]


@pytest.mark.parametrize("request_", [PruneRequest(), OLD, TESTS], ids=["rows", "old", "tests"])
def test_a_job_goes_that_a_user_asked_to_remove(stage, request_):
    stage.run(JOB)
    stage.run("kept")
    ask(stage, JOB)
    assert not prune(stage, "kept", request_).is_removed
    assert prune(stage, JOB, request_).is_removed
    assert (jobs(stage), stage.directories(JOB)) == ({"kept"}, set())


def test_a_prune_of_other_jobs_by_name_leaves_a_request_open(stage):
    stage.run(JOB)
    stage.run("other")
    ask(stage, JOB)
    assert not prune(stage, JOB, named("other")).is_removed
    assert request_of(stage, JOB).status is RequestStatus.QUEUED


def test_a_dry_run_tells_what_a_request_removes_and_leaves_it_open(stage):
    stage.run(JOB)
    ask(stage, JOB)
    view, files = stage.maintenance.describe(job_id_of(JOB)), stage.files()
    told = prune(stage, JOB, PruneRequest(dry_run=True))
    assert (stage.maintenance.describe(job_id_of(JOB)), stage.files()) == (view, files)
    assert told == prune(stage, JOB, PruneRequest())


def test_a_job_that_started_again_is_kept_with_its_files_and_the_reason_is_told(stage):
    stage.run(JOB)
    ask(stage, JOB)
    stage.clock.advance(1)
    stage.run(JOB)
    files = stage.files()
    report = prune(stage, JOB, PruneRequest())
    assert (report.is_removed, stage.files()) == (False, files)
    assert "has started since the request" in report.kept[0]
    failed = request_of(stage, JOB)
    assert (failed.status, failed.message) == (RequestStatus.FAILED, f"the job is kept: {report.kept[0]}")
    assert not prune(stage, JOB, PruneRequest()).has_changes, "it is not served twice"


def test_a_request_stays_open_while_the_storage_does_not_answer(stage):
    stage.run(JOB)
    ask(stage, JOB)
    assert prune(stage, JOB, PruneRequest(), opener=no_storage).unreachable
    assert request_of(stage, JOB).status is RequestStatus.RUNNING
    assert prune(stage, JOB, PruneRequest()).is_removed
    assert stage.files() == {}


def killed_removals(
    stage: WrittenStage, prefix: str, request: PruneRequest, mode: FaultMode
) -> Iterator[tuple[str, str]]:
    """Kill the removal of a job at each of its durable steps, and yield the job with the key of the user's request."""
    for point in count(1):
        job = f"{prefix}/{point}"
        stage.run(job, checkpoints=2)
        key = ask(stage, job) if prefix == "asked" else ""
        try:
            prune_with(stage, job, request, InProcessPlan(point=point, mode=mode))
        except Killed:
            yield job, key
        else:
            assert point > 10
            return


def prune_with(stage: WrittenStage, job: str, request: PruneRequest, plan: InProcessPlan) -> None:
    gateway = faulty_rows(stage.maintenance, plan, JobMaintenance)
    prune(stage, job, request, gateway=gateway, opener=lambda _: faulty_storage(stage.storage, plan, WRITING_CALLS))


MODES = rest_in_soak([FaultMode.KILL, FaultMode.KILL_AFTER], FaultMode.KILL_AFTER)
REMOVALS = [pytest.param("asked", PruneRequest(), id="requested"), pytest.param("test", TESTS, id="test job")]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("prefix", "request_"), REMOVALS)
def test_a_removal_that_is_killed_at_any_step_is_ended_by_the_next(stage, prefix, request_, mode):
    for job, key in killed_removals(stage, prefix, request_, mode):
        if job in jobs(stage):
            assert not key or request_of(stage, job).status.is_open, job
            assert prune(stage, job, request_).is_removed, job
        assert (jobs(stage), stage.files()) == (set(), {}), job
        if key:
            stage.attempt(job).finish(AttemptStatus.FAILED)
            done = request_of(stage, job)
            assert (done.request_key, done.status) == (key, RequestStatus.COMPLETED), job
            assert not prune(stage, job, request_).is_removed, "the request is served once"
            prune(stage, job, named(job))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(("prefix", "request_"), REMOVALS)
def test_an_attempt_after_a_removal_that_was_killed_at_any_step_keeps_what_it_writes(stage, prefix, request_, mode):
    for job, key in killed_removals(stage, prefix, request_, mode):
        stage.clock.advance(1)
        is_removed = job not in jobs(stage)
        attempt = stage.attempt(job)
        attempt.restore()
        stage.take(attempt, stage.snapshot(attempt, "after"))
        if key:
            attempt.finish(AttemptStatus.FAILED)
        assert not prune(stage, job, request_).is_removed, job
        if key:
            expected = RequestStatus.COMPLETED if is_removed else RequestStatus.FAILED
            assert request_of(stage, job).status is expected, job
        assert stage.attempt(job).restore() is not None, job


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
def test_a_prune_whose_storage_fails_at_any_call_is_ended_by_the_next(stage, mode):
    plan = FaultPlan()

    def opener(base: str) -> Any:
        return faulty_storage(CheckpointStorage.open(base), plan)

    stage.run("test/counted", checkpoints=2)
    prune(stage, "test/counted", TESTS, opener=opener)
    for point in range(1, len(plan.calls) + 1):
        job = f"test/{point}"
        stage.run(job, checkpoints=2)
        plan = FaultPlan(point, mode)
        prune(stage, job, TESTS, opener=opener)
        plan = FaultPlan()
        if job in jobs(stage):
            assert prune(stage, job, TESTS).is_removed
        assert (jobs(stage), stage.files()) == (set(), {})
