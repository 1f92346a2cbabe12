"""The statistics of checkpoints."""

from __future__ import annotations

import json
import statistics
from collections import Counter
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from airflow_provider_statecheck.checkpoint.codec import encode
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import RestoreMode
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, OnClear, StatisticsRecord
from airflow_provider_statecheck.checkpoint.retention import custody_of
from airflow_provider_statecheck.checkpoint.statistics import (
    NEWEST_VALUES,
    CheckpointEntry,
    OperatorStatistics,
    RestoredEntry,
    StatsSummary,
    statistics_of,
    truncated_counts,
    truncated_location,
)
from airflow_provider_statecheck.checkpoint.store import JobView
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
    make_savepoint_request,
    make_source,
)
from tests.sqlite_rows import new_store


def summary_of(values: list[int]) -> StatsSummary:
    summary = StatsSummary()
    for value in values:
        summary = summary.added(value)
    return summary


@given(st.lists(st.integers(0, 2**62), min_size=1, max_size=50))
def test_minimum_average_and_maximum_are_those_of_all_values(values: list[int]) -> None:
    found = summary_of(values)
    assert (found.count, found.minimum, found.maximum) == (len(values), min(values), max(values))
    assert found.average == pytest.approx(statistics.fmean(values))


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=50), st.floats(0.1, 100))
def test_a_percentile_is_the_smallest_value_that_so_many_do_not_exceed(values: list[int], percent: float) -> None:
    found = summary_of(values).percentile(percent)
    enough = [v for v in values if sum(w <= v for w in values) >= percent / 100 * len(values) - 1e-9]
    assert found == min(enough)


def test_percentiles_are_those_of_the_newest_values_while_the_extremes_are_of_all() -> None:
    found = summary_of([10**9] + [0] * 10 + list(range(1, NEWEST_VALUES + 1)))
    assert len(found.newest) == NEWEST_VALUES
    assert (found.percentile(50), found.percentile(99), found.percentile(100)) == (100, 198, 200)
    assert (found.minimum, found.maximum, found.count) == (0, 10**9, NEWEST_VALUES + 11)


def test_nothing_has_no_average_and_no_percentile() -> None:
    assert (StatsSummary().average, StatsSummary().percentile(50), StatsSummary().minimum) == (None, None, None)


START = datetime(2026, 1, 1, tzinfo=UTC)


def entry(checkpoint_id: int, **changes: Any) -> CheckpointEntry:
    values: dict[str, Any] = {
        "checkpoint_id": checkpoint_id,
        "kind": "checkpoint",
        "is_savepoint": False,
        "status": "completed",
        "epoch": 1,
        "triggered_at": START,
        "ended_at": START + timedelta(seconds=2),
        "counts": (("items", 3),),
    }
    return CheckpointEntry(**values | changes)


def failed(checkpoint_id: int, **changes: Any) -> CheckpointEntry:
    return entry(checkpoint_id, status="aborted", failure_reason="io_exception", **changes)


def record(content: Any) -> StatisticsRecord:
    return StatisticsRecord(job_id=job_id_of("sales"), operator_id=operator_id_of("aggregate"), content=content)


def reread(statistics: OperatorStatistics) -> OperatorStatistics:
    return OperatorStatistics.of(record(json.loads(json.dumps(encode(statistics)))))


def test_statistics_survive_json() -> None:
    restored = RestoredEntry(checkpoint_id=1, is_savepoint=True, restored_at=START, epoch=2, attempt="dag.task")
    statistics = (
        OperatorStatistics()
        .ended(entry(1))
        .ended(failed(2, late_at=START))
        .ended(entry(3, kind="savepoint", is_savepoint=True))
        .restored(restored)
        .rejected_once("too_many_checkpoint_requests")
    )
    assert reread(statistics) == statistics
    assert reread(OperatorStatistics()) == OperatorStatistics()


def test_the_latest_is_the_one_of_the_highest_id_in_whatever_order_they_end() -> None:
    statistics = OperatorStatistics()
    for each in (entry(5), entry(4), failed(7), failed(6)):
        statistics = statistics.ended(each)
    assert statistics.latest_completed == entry(5)
    assert statistics.latest_failed == failed(7)
    assert [each.checkpoint_id for each in statistics.history] == [7, 6, 5, 4]


def test_an_entry_older_than_the_whole_history_is_counted_and_not_shown() -> None:
    statistics = OperatorStatistics()
    for checkpoint_id in (*range(10, 20), 1):
        statistics = statistics.ended(entry(checkpoint_id))
    assert [each.checkpoint_id for each in statistics.history] == [*range(19, 9, -1)]
    assert (statistics.checkpoints.completed, statistics.has_counted(1)) == (11, True)


def test_failures_are_counted_by_reason() -> None:
    statistics = OperatorStatistics().ended(failed(1)).ended(replace(failed(2), failure_reason="checkpoint_expired"))
    assert statistics.ended(failed(3)).failures == (("checkpoint_expired", 1), ("io_exception", 2))


def test_details_come_only_to_the_failed_entry_that_is_meant() -> None:
    statistics = OperatorStatistics().ended(entry(1)).ended(failed(2)).ended(failed(3))
    assert statistics.annotated(1, failure_cause="x") == statistics
    told = statistics.annotated(2, failure_cause="x")
    assert [each.failure_cause for each in told.history] == ["", "x", ""]
    assert told.latest_failed == failed(3)


def test_a_late_acknowledgement_is_known_as_one() -> None:
    statistics = OperatorStatistics().ended(failed(2)).ended(failed(3))
    late = statistics.annotated(2, late_at=START)
    assert (statistics.is_late(2), late.is_late(2), late.is_late(3)) == (False, True, False)


def test_an_entry_that_the_history_no_longer_has_takes_no_details() -> None:
    statistics = OperatorStatistics().ended(failed(1)).ended(failed(2))
    for checkpoint_id in range(3, 14):
        statistics = statistics.ended(entry(checkpoint_id))
    assert statistics.annotated(1, failure_cause="x") == statistics


@pytest.mark.parametrize(
    "content", [[], {"checkpoints": 1}, {"history": [{}]}, encode(OperatorStatistics()) | {"history": 7}]
)
def test_content_that_cannot_be_read_counts_as_none(content: dict[str, Any], caplog: pytest.LogCaptureFixture) -> None:
    assert OperatorStatistics.of(record(content)) == OperatorStatistics()
    assert "cannot be read" in caplog.text


def test_the_checkpoints_that_were_counted_last_are_remembered_by_id() -> None:
    statistics = OperatorStatistics()
    for checkpoint_id in range(1, 101):
        statistics = statistics.ended(entry(checkpoint_id))
    assert [i for i in range(1, 101) if statistics.has_counted(i)] == list(range(37, 101))


def test_only_a_few_counts_of_a_checkpoint_are_kept() -> None:
    assert truncated_counts({f"k{i}": i for i in range(9)}) == tuple((f"k{i}", i) for i in range(8))


def test_half_a_pointer_is_never_kept() -> None:
    assert truncated_location("s3://lake/chk-1") == "s3://lake/chk-1"
    assert truncated_location(f"s3://lake/{'x' * 1500}") == ""


JOB = job_id_of("sales")
SAVEPOINTS = "memory://savepoints"
PLACE = f"{SAVEPOINTS}/savepoint-0f6f7c-000000000001"


class Job:
    """A job with one operator."""

    def __init__(self, **registration: object) -> None:
        store = new_store(ManualClock())
        self.coordinator, self.savepoints = AttemptCoordinator(store), JobSavepoints(store)
        self.attempt = self.register(**registration)

    def register(self, **changes: object) -> AttemptRef:
        return self.coordinator.register(make_registration(**changes)).attempt

    def complete(self) -> None:
        complete_checkpoint(self.coordinator, self.attempt)

    def finish(self) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FINISHED))

    def take_savepoint(self) -> None:
        asked = self.savepoints.request(make_savepoint_request(self.attempt))
        message = TriggerCheckpoint(
            attempt=self.attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=SAVEPOINTS
        )
        pending = self.coordinator.trigger(message)
        self.coordinator.acknowledge(make_acknowledgement(self.attempt, pending))

    def custody(self) -> list[tuple[str, bool]]:
        view = self.coordinator.describe(JOB)
        found = [custody_of(view, checkpoint) for checkpoint in view.checkpoints]
        return [(each.owner.value, each.is_safe_to_delete) for each in found]

    def because(self) -> str:
        view = self.coordinator.describe(JOB)
        return custody_of(view, view.checkpoints[-1]).because


def test_a_retained_checkpoint_belongs_to_its_job_and_is_needed() -> None:
    job = Job()
    job.complete()
    assert job.custody() == [("job", False)]


def test_a_checkpoint_in_progress_is_being_written() -> None:
    job = Job()
    job.coordinator.trigger(TriggerCheckpoint(attempt=job.attempt, request_key=new_key()))
    assert (job.custody(), job.because()) == ([("job", False)], "it is being written")


def test_a_subsumed_checkpoint_may_go() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.complete()
    assert job.custody() == [("job", True), ("job", False)]


def test_an_aborted_checkpoint_may_have_files_of_later_ones() -> None:
    job = Job()
    pending = job.coordinator.trigger(TriggerCheckpoint(attempt=job.attempt, request_key=new_key()))
    reason = CheckpointFailureReason.CHECKPOINT_DECLINED
    job.coordinator.decline(DeclineCheckpoint(attempt=job.attempt, checkpoint_id=pending.checkpoint_id, reason=reason))
    assert job.custody() == [("job", False)]
    assert "later checkpoints may reference its files" in job.because()


def test_a_subsumed_checkpoint_stays_while_the_attempt_runs_that_was_restored_from_it() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.attempt = job.register(num_retained=1)
    job.complete()
    assert job.custody() == [("job", False), ("job", False)]
    job.finish()
    assert job.custody() == [("job", True), ("job", False)]


def test_a_checkpoint_that_was_rolled_back_stays_until_there_is_something_newer() -> None:
    job = Job(num_retained=2)
    job.complete()
    job.finish()
    for marker in ("", "cleared"):
        owner = make_owner(run_key="2026-01-02", run_id="next", clear_marker=marker)
        job.attempt = job.register(owner=owner, num_retained=2, on_clear=OnClear.RESTART)
        if not marker:
            job.complete()
    assert job.custody() == [("job", False), ("job", False)]
    assert job.because() == "it was rolled back, and nothing newer has replaced it yet"
    job.complete()
    assert job.custody()[1] == ("job", True)


def test_a_checkpoint_whose_bytes_are_gone_needs_no_care() -> None:
    job = Job(num_retained=1)
    job.complete()
    job.complete()
    job.coordinator.confirm_discards(job.attempt, (1,))
    view = job.coordinator.describe(JOB)
    assert custody_of(view, view.checkpoints[0]).because == "its files are deleted"


def test_a_savepoint_belongs_to_the_user_and_never_counts_as_safe() -> None:
    job = Job()
    job.take_savepoint()
    assert job.custody() == [("user", False)]
    assert "dispose deletes it, unless another job claimed it" in job.because()


def test_a_disposed_savepoint_may_go() -> None:
    job = Job()
    job.take_savepoint()
    place = job.coordinator.describe(JOB).checkpoints[-1].location
    job.savepoints.dispose(place, JOB)
    assert job.custody() == [("user", True)]


def test_a_savepoint_that_was_restored_without_a_claim_belongs_to_somebody_else_for_ever() -> None:
    job = Job(restore_from=make_source(PLACE), num_retained=1)
    for _ in range(2):
        job.complete()
    job.finish()
    assert job.custody() == [("other", False), ("job", True), ("job", False)]


def test_a_savepoint_that_was_claimed_belongs_to_the_job_which_may_go_on_using_its_files() -> None:
    job = Job(restore_from=make_source(PLACE, mode=RestoreMode.CLAIM), num_retained=1)
    job.coordinator.confirm_restore(ConfirmRestore(attempt=job.attempt, checkpoint_id=1, claim=True))
    assert job.custody() == [("job", False)]
    job.complete()
    job.finish()
    assert job.custody() == [("job", False), ("job", False)]
    view = job.coordinator.describe(JOB)
    assert "later checkpoints may reference its files" in custody_of(view, view.checkpoints[0]).because


STEPS = ("trigger", "acknowledge", "decline", "expire", "register", "finish", "repeat")


class Stage:
    """A driver that does anything at any time, with the coordinator that it speaks to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.coordinator = AttemptCoordinator(new_store(self.clock))
        self.attempt: AttemptRef = self.coordinator.register(make_registration()).attempt
        self.triggered = [0]
        self.restores = 0

    def do(self, step: str, which: int) -> None:
        try:
            getattr(self, step)(self.triggered[which % len(self.triggered)])
        except StaleAttemptError:
            assert step != "register"

    def trigger(self, _: int) -> None:
        message = TriggerCheckpoint(attempt=self.attempt, request_key=new_key())
        self.triggered.append(self.coordinator.trigger(message).checkpoint_id)

    def acknowledge(self, checkpoint_id: int) -> None:
        self.coordinator.acknowledge(make_acknowledgement(self.attempt, checkpoint_id))

    def repeat(self, checkpoint_id: int) -> None:
        for _ in range(2):
            self.acknowledge(checkpoint_id)

    def decline(self, checkpoint_id: int) -> None:
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        self.coordinator.decline(DeclineCheckpoint(attempt=self.attempt, checkpoint_id=checkpoint_id, reason=reason))

    def expire(self, _: int) -> None:
        self.clock.advance(400)
        self.acknowledge(self.triggered[0])

    def register(self, _: int) -> None:
        grant = self.coordinator.register(make_registration())
        self.attempt = grant.attempt
        if grant.is_restore:
            self.restores += 1
            message = ConfirmRestore(attempt=self.attempt, checkpoint_id=grant.candidates[0].checkpoint_id)
            for _ in range(2):
                self.coordinator.confirm_restore(message)

    def finish(self, _: int) -> None:
        self.coordinator.finish(FinishAttempt(attempt=self.attempt, status=AttemptStatus.FAILED))


def counted_rows(view: JobView) -> tuple[int, int, int, int]:
    # What was under way when its attempt ended has neither completed nor failed.
    ended = CheckpointFailureReason.ATTEMPT_ENDED.value
    statuses = Counter(c.status.value for c in view.checkpoints if c.failure_reason != ended)
    completed = statuses["completed"] + statuses["subsumed"]
    return statuses.total(), statuses["pending"], completed, statuses["aborted"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 20)), max_size=40))
def test_counts_are_those_of_the_rows(steps: list[tuple[str, int]]) -> None:
    stage = Stage()
    for step, which in steps:
        stage.do(step, which)
    view = stage.coordinator.describe(stage.attempt.job_id)
    [operator] = view.operators
    statistics = statistics_of(view, operator)
    counts = statistics.counts
    assert (counts.total, counts.in_progress, counts.completed, counts.failed) == counted_rows(view)
    assert (counts.restored, statistics.duration.count) == (stage.restores, counts.completed)
    assert sum(dict(statistics.failures).values()) == counts.failed
    assert [e.checkpoint_id for e in statistics.history] == [c.checkpoint_id for c in view.checkpoints][:-11:-1]
