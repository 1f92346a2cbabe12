"""The part of a coordinator's contract that is about the figures of checkpoints and attempts."""

from __future__ import annotations

from dataclasses import replace

from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.messages import ConfirmCommits, ConfirmRestore, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptRecord, AttemptStatus, CheckpointRecord
from airflow_provider_statecheck.checkpoint.snapshot_summary import (
    LoopSummary,
    SnapshotSummary,
    SourceSummary,
    StateSummary,
    StepSummary,
)
from airflow_provider_statecheck.gateway.verbs import CheckpointCoordinatorGateway as Gateway
from tests.messages import complete_checkpoint, make_registration

JOB = job_id_of("sales")
SUMMARY = SnapshotSummary(
    steps=(StepSummary(name="sessions 🜁", outcome="computed", seconds=61.5, size_bytes=9, rows=3),),
    loops=(LoopSummary(name="days", finished=3, total=31),),
    sources=(SourceSummary(uid="stage/source", finished_splits=2, total_splits=7, remaining_seconds=12.5),),
    states=(StateSummary(uid="delays", name="totals", kind="value", type="int64", keys=5, size_bytes=900),),
    open_commits=("checkpoint 1: 2 committables",),
    left_out={"steps": 4},
    snapshot_seconds=1.5,
    write_seconds=0.25,
)
RESTORED = SnapshotSummary(steps=(StepSummary(name="sessions", outcome="restored", seconds=61.5),), seconds_saved=61.5)


class SummaryContract:
    """What holds for the figures, whatever keeps the rows."""

    gateway: Gateway

    def row(self, checkpoint_id: int = 1) -> CheckpointRecord:
        """Return the row of a checkpoint."""
        found = self.gateway.checkpoint(JOB, checkpoint_id)
        assert found is not None
        return found

    def newest_attempt(self) -> AttemptRecord:
        """Return the row of the newest attempt."""
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
        self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1, restored_summary=RESTORED))
        assert self.newest_attempt().restored_summary == RESTORED

    def test_a_repeated_confirmation_counts_the_restore_once(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt)
        attempt = self.gateway.register(make_registration()).attempt
        for summary in (None, RESTORED, None):
            self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1, restored_summary=summary))
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
        self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1, restored_summary=RESTORED))
        self.gateway.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
        assert self.newest_attempt().restored_summary == RESTORED

    def test_the_time_of_a_commit_is_added_to_the_figures(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt, has_commit=True, summary=SUMMARY)
        for seconds in (2.5, 9.0):
            self.gateway.confirm_commits(ConfirmCommits(attempt=attempt, checkpoint_ids=(1,), seconds=seconds))
        assert self.row().summary == replace(SUMMARY, commit_seconds=2.5), "a repeated message changes nothing"

    def test_the_time_of_a_commit_is_recorded_without_other_figures(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt, has_commit=True)
        self.gateway.confirm_commits(ConfirmCommits(attempt=attempt, checkpoint_ids=(1,), seconds=2.5))
        assert self.row().summary == SnapshotSummary(commit_seconds=2.5)
