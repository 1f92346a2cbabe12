"""
The part of a coordinator's contract about history: how it is listed, its figures, and that it stays bounded.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.attempt_work import last_answer, work_of
from airflow_provider_statecheck.checkpoint.checkpoint_summary import (
    CheckpointSummary,
    LoopSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptRef,
    ConfirmRestore,
    FinishAttempt,
    ReportProgress,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptRecord,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
)
from airflow_provider_statecheck.checkpoint.row_removal import DEFAULT_AGE
from airflow_provider_statecheck.checkpoint.store import CheckpointPage
from airflow_provider_statecheck.exceptions import CheckpointNotFoundError, StaleAttemptError
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from tests.messages import ManualClock, complete_checkpoint, make_registration, present

JOB = job_id_of("sales")


class HistoryContract:
    """What holds for the history of a job, whatever keeps its rows."""

    gateway: Gateway

    def listed(self, page: CheckpointPage) -> list[int]:
        return [c.checkpoint_id for c in self.gateway.checkpoints(JOB, page)]

    def leave_history(self, checkpoints: int, status: AttemptStatus | None = AttemptStatus.FAILED) -> AttemptRef:
        """Let an attempt retain one checkpoint of several, delete the others, and end."""
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(checkpoints):
            gone = tuple(c.checkpoint_id for c in complete_checkpoint(self.gateway, attempt).effects.discards)
            self.gateway.confirm_discards(attempt, gone)
        if status is not None:
            self.gateway.finish(FinishAttempt(attempt=attempt, status=status))
        return attempt

    # --- pages

    def test_pages_lead_from_the_newest_checkpoint_to_the_oldest(self) -> None:
        self.leave_history(5)
        assert self.listed(CheckpointPage(limit=2)) == [5, 4]
        assert self.listed(CheckpointPage(limit=2, before=4)) == [3, 2]
        assert self.listed(CheckpointPage(limit=2, before=2)) == [1]
        assert self.listed(CheckpointPage(before=1)) == []

    def test_a_page_shows_one_operator_or_one_status(self) -> None:
        self.leave_history(2)
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.trigger(TriggerCheckpoint(attempt=other, request_key=new_key()))
        assert self.listed(CheckpointPage(operator_id=operator_id_of("other"))) == [3]
        assert self.listed(CheckpointPage(status=CheckpointStatus.SUBSUMED)) == [1]
        both = CheckpointPage(status=CheckpointStatus.SUBSUMED, operator_id=operator_id_of("other"))
        assert self.listed(both) == []

    def test_one_checkpoint_is_read_by_its_id(self) -> None:
        self.leave_history(2)
        found = present(self.gateway.checkpoint(JOB, 1))
        assert (found.checkpoint_id, found.status) == (1, CheckpointStatus.SUBSUMED)
        assert self.gateway.checkpoint(JOB, 3) is None

    def test_there_is_no_latest_checkpoint_of_a_job_that_is_unknown(self) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.gateway.latest(JOB, operator_id_of("aggregate"))
        self.leave_history(0)
        assert self.gateway.latest(JOB, operator_id_of("aggregate")) is None
        assert self.gateway.latest(JOB, operator_id_of("other")) is None

    # --- an attempt that finishes forgets what is old

    def test_an_attempt_that_finishes_forgets_the_old_rows_of_its_operator(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        last = self.leave_history(1, status=None)
        assert self.listed(CheckpointPage()) == [4, 3, 2, 1], "nothing goes before the end"
        self.gateway.finish(FinishAttempt(attempt=last, status=AttemptStatus.FAILED))
        assert self.listed(CheckpointPage()) == [4, 3], "the third was discarded only now"
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [2]

    def test_what_is_younger_stays_when_an_attempt_finishes(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE - timedelta(hours=1)).total_seconds())
        self.leave_history(1)
        assert self.listed(CheckpointPage()) == [4, 3, 2, 1]
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [1, 2]

    def test_an_attempt_that_finishes_leaves_the_rows_of_other_operators(self, clock: ManualClock) -> None:
        self.leave_history(3)
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.finish(FinishAttempt(attempt=other, status=AttemptStatus.FINISHED))
        assert self.listed(CheckpointPage()) == [3, 2, 1]

    def test_an_attempt_stays_known_that_wrote_below_another_directory(self, clock: ManualClock) -> None:
        moved = self.gateway.register(make_registration(storage_base="memory://moved")).attempt
        self.gateway.finish(FinishAttempt(attempt=moved, status=AttemptStatus.FAILED))
        clock.advance((DEFAULT_AGE + timedelta(hours=1)).total_seconds())
        self.leave_history(1)
        # Only its row tells garbage collection to look there.
        assert [a.epoch for a in self.gateway.describe(JOB).attempts] == [1, 2]


SUMMARY = CheckpointSummary(
    steps=(StepSummary(name="sessions 🜁", outcome="computed", seconds=61.5, size_bytes=9, rows=3),),
    loops=(LoopSummary(name="days", finished=3, total=31),),
    sources=(SourceSummary(uid="stage/source", finished_splits=2, total_splits=7, remaining_seconds=12.5),),
    states=(StateSummary(uid="delays", name="totals", kind="value", type="int64", keys=5, size_bytes=900),),
    open_commits=("checkpoint 1: 2 committables",),
    left_out={"steps": 4},
    snapshot_seconds=1.5,
    write_seconds=0.25,
)
RESTORED = CheckpointSummary(
    steps=(StepSummary(name="sessions", outcome="restored", seconds=61.5),), seconds_saved=61.5
)


class SummaryContract:
    """What holds for the figures, whatever keeps the rows."""

    gateway: Gateway

    def row(self, checkpoint_id: int = 1) -> CheckpointRecord:
        return present(self.gateway.checkpoint(JOB, checkpoint_id))

    def newest_attempt(self) -> AttemptRecord:
        return max(self.gateway.describe(JOB).attempts, key=lambda attempt: attempt.epoch)

    def test_the_figures_of_an_acknowledgement_are_in_the_row(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt, summary=SUMMARY)
        assert self.row().summary == SUMMARY
        assert self.gateway.describe(JOB).checkpoints[0].summary == SUMMARY

    def test_a_driver_of_an_older_version_sends_no_figures(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt)
        assert self.row().summary is None
        assert self.newest_attempt().restored_summary is None

    def test_replies_do_not_repeat_the_figures_of_retained_checkpoints(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        complete_checkpoint(self.gateway, attempt, summary=SUMMARY)
        effects = complete_checkpoint(self.gateway, attempt, summary=SUMMARY).effects
        assert len((*effects.retained, *effects.discards)) == 2
        assert {checkpoint.summary for checkpoint in (*effects.retained, *effects.discards)} == {None}

    def test_a_grant_has_the_figures_of_its_candidates(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt, summary=SUMMARY)
        (candidate,) = self.gateway.register(make_registration()).candidates
        assert candidate.summary == SUMMARY, "a savepoint of the restored checkpoint copies them"

    def test_what_an_attempt_restored_is_in_its_row_without_a_checkpoint_of_its_own(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt)
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1))
        assert self.newest_attempt().restored_summary is None
        self.gateway.report_progress(ReportProgress(attempt=attempt, summary=RESTORED))
        assert self.newest_attempt().restored_summary == RESTORED

    def test_a_report_is_an_answer_at_the_time_of_the_coordinator_whatever_the_driver_says(
        self, clock: ManualClock
    ) -> None:
        ref = self.gateway.register(make_registration()).attempt
        clock.advance(60)
        self.gateway.report_progress(
            ReportProgress(attempt=ref, summary=CheckpointSummary(computing="days", answered_after=1e9))
        )
        attempt = self.newest_attempt()
        answered = last_answer(attempt, ())
        assert 60 <= (answered - attempt.registered_at).total_seconds() < 61
        complete_checkpoint(self.gateway, ref, summary=CheckpointSummary(computing="weeks"))
        assert last_answer(self.newest_attempt(), ()) == answered, "a checkpoint has times of its own"
        clock.advance(60)
        complete_checkpoint(self.gateway, ref)
        view = self.gateway.describe(JOB)
        assert work_of(view, ref.operator_id).answered_at == view.checkpoints[-1].completed_at

    def test_a_report_of_an_attempt_that_was_replaced_changes_nothing(self) -> None:
        replaced = self.gateway.register(make_registration()).attempt
        self.gateway.register(make_registration())
        with pytest.raises(StaleAttemptError):
            self.gateway.report_progress(ReportProgress(attempt=replaced, summary=RESTORED))
        assert [each.restored_summary for each in self.gateway.describe(JOB).attempts] == [None, None]

    def test_a_checkpoint_tells_what_the_attempt_works_on_and_keeps_what_it_restored(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.report_progress(ReportProgress(attempt=attempt, summary=replace(RESTORED, computing="clicks")))
        complete_checkpoint(
            self.gateway, attempt, summary=replace(SUMMARY, computing="increment 2", computing_after=9.0)
        )
        found = present(self.newest_attempt().restored_summary)
        assert found == replace(RESTORED, computing="increment 2", computing_after=9.0)
        complete_checkpoint(self.gateway, attempt, summary=SUMMARY)
        assert self.newest_attempt().restored_summary == RESTORED, "it works on nothing any more"

    def test_a_repeated_confirmation_counts_the_restore_once(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt)
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.report_progress(ReportProgress(attempt=attempt, summary=RESTORED))
        for _ in range(2):
            self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1))
        assert self.newest_attempt().restored_summary == RESTORED
        (statistics,) = self.gateway.describe(JOB).statistics
        assert statistics.content["checkpoints"]["restored"] == 1

    def test_the_end_of_an_attempt_reports_what_it_restored(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, restored_summary=RESTORED))
        assert self.newest_attempt().restored_summary == RESTORED

    def test_an_end_without_figures_keeps_those_of_the_restore(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt)
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.report_progress(ReportProgress(attempt=attempt, summary=RESTORED))
        self.gateway.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
        assert self.newest_attempt().restored_summary == RESTORED

    def test_the_time_of_a_commit_is_added_to_the_figures(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt, has_commit=True, summary=SUMMARY)
        for seconds in (2.5, 9.0):
            self.gateway.confirm_commits(attempt, (1,), seconds)
        assert self.row().summary == replace(SUMMARY, commit_seconds=2.5), "a repeated message changes nothing"

    def test_the_time_of_a_commit_is_recorded_without_other_figures(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt, has_commit=True)
        self.gateway.confirm_commits(attempt, (1,), 2.5)
        assert self.row().summary == CheckpointSummary(commit_seconds=2.5)
