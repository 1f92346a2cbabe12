"""What holds for state that goes from run to run, as a part of the contract of every coordinator."""

from __future__ import annotations

import re
import shlex

import pytest

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    ConfirmRestore,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, OnClear
from airflow_provider_statecheck.exceptions import (
    ConcurrentAttemptError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    RunSupersededError,
    StaleAttemptError,
)
from tests.contracts.runs_of_a_job import AGAIN, JOB, OPERATOR, RunningTasks, RunsOfAJob, day, unchanged
from tests.messages import complete_checkpoint, make_acknowledgement, make_owner, make_registration, present


class AcrossRunsContract(RunsOfAJob):
    """
    The state of a job with a name of its own stands at one run, goes on to later ones, and can be taken back by one.
    """

    @pytest.fixture
    def liveness(self) -> RunningTasks:
        """Return which tasks run, as the coordinator knows it."""
        return RunningTasks()

    # --- from run to run

    def test_a_later_run_goes_on_from_the_newest_checkpoint(self) -> None:
        self.week(1)
        grant = self.begin(day(2))
        assert (self.candidates(grant), grant.generation) == ([2, 1], 1)

    @pytest.mark.parametrize("first", ["2026-01-03T00:00:00+00:00", "asset__9"])
    def test_a_run_without_a_logical_date_goes_on_wherever_the_state_stands(self, first: str) -> None:
        self.work(make_owner(run_key=first, run_id="first"))
        grant = self.begin(make_owner(run_key="asset__1", run_id="asset__1"))
        assert self.candidates(grant) == [1]

    def test_a_dated_run_goes_on_where_the_state_stands_at_a_run_without_a_date(self) -> None:
        self.work(make_owner(run_key="asset__1", run_id="asset__1"))
        assert self.candidates(self.begin(day(1))) == [1]

    def test_a_checkpoint_says_which_run_took_it(self) -> None:
        self.work(day(3))
        assert [c.run_key for c in self.gateway.describe(JOB).checkpoints] == ["2026-01-03T00:00:00+00:00"]

    def test_an_operator_says_which_run_began_its_generation(self) -> None:
        self.week(1, 2)
        assert [o.first_run for o in self.gateway.describe(JOB).operators] == ["2026-01-01T00:00:00+00:00"]

    # --- an earlier run

    def test_an_earlier_run_is_refused_and_told_where_the_state_stands(self) -> None:
        self.week(4, 5)
        with pytest.raises(RunSupersededError, match="before:2026-01-03") as refused:
            self.begin(day(3))
        assert (refused.value.stands_at, refused.value.checkpoint_id) == ("2026-01-05T00:00:00+00:00", 4)

    def test_the_command_in_the_refusal_of_an_earlier_run_can_be_run_as_it_is(self) -> None:
        name = "sales of John's shop"
        complete_checkpoint(self.gateway, self.gateway.register(make_registration(job_name=name, owner=day(5))).attempt)
        with pytest.raises(RunSupersededError) as refused:
            self.gateway.register(make_registration(job_name=name, owner=day(3)))
        _, command, _ = re.split('with "|" and clear', str(refused.value))
        expected = ["airflow", "statecheck", "rewind", name, "--before", day(3).run_key]
        assert shlex.split(command) == expected

    @pytest.mark.parametrize("ended", [True, False], ids=["ended", "running"])
    def test_an_earlier_run_that_is_refused_changes_nothing(self, ended: bool) -> None:
        later = self.begin(day(5))
        complete_checkpoint(self.gateway, later.attempt, has_commit=True)
        self.gateway.trigger(TriggerCheckpoint(attempt=later.attempt, request_key=new_key()))
        if ended:
            self.gateway.finish(FinishAttempt(attempt=later.attempt, status=AttemptStatus.FAILED))
        with unchanged(self.gateway), pytest.raises(RunSupersededError):
            self.begin(day(4, clear_marker=AGAIN), on_clear=OnClear.RESTART)

    @pytest.mark.parametrize("on_clear", OnClear)
    def test_a_run_that_worked_before_the_later_one_is_refused_too(self, on_clear: OnClear) -> None:
        self.week(3, 4, 5)
        with pytest.raises(RunSupersededError):
            self.begin(day(3, clear_marker=AGAIN), on_clear=on_clear)

    def test_a_later_run_that_took_no_checkpoint_supersedes_nothing(self) -> None:
        self.work(day(3))
        self.work(day(5), checkpoints=0)
        assert self.candidates(self.begin(day(4))) == [1]

    def test_an_earlier_run_is_refused_in_the_namespace_of_tests_too(self) -> None:
        self.work(day(5), job_name="test/sales")
        with pytest.raises(RunSupersededError):
            self.begin(day(4), job_name="test/sales")

    # --- a run that goes on

    def test_a_retry_of_the_run_at_which_the_state_stands_goes_on(self) -> None:
        self.week(1)
        self.work(day(2), 2, AttemptStatus.FAILED)
        assert self.candidates(self.begin(day(2)))[0] == 4

    def test_a_run_cleared_before_it_finished_goes_on(self) -> None:
        self.week(1)
        self.work(day(2), 2, AttemptStatus.FAILED)
        assert self.candidates(self.begin(day(2, clear_marker=AGAIN)))[0] == 4

    def test_a_run_cleared_after_success_goes_on_where_on_clear_is_resume(self) -> None:
        self.week(1, 2)
        grant = self.begin(day(2, clear_marker=AGAIN), on_clear=OnClear.RESUME)
        assert self.candidates(grant)[0] == 4

    def test_a_retry_goes_on_although_a_later_run_tried_in_between(self) -> None:
        self.week(1)
        self.work(day(2), 1, AttemptStatus.FAILED)
        self.work(day(3), 0, AttemptStatus.FAILED)
        assert self.candidates(self.begin(day(2)))[0] == 3

    # --- a run that begins again

    @pytest.mark.parametrize(
        ("status", "again", "on_clear"),
        [
            (AttemptStatus.FINISHED, {"clear_marker": AGAIN}, OnClear.RESUME_UNCHANGED),
            (AttemptStatus.FINISHED, {"clear_marker": AGAIN}, OnClear.RESTART),
            (AttemptStatus.FAILED, {"clear_marker": AGAIN}, OnClear.RESTART),
            (AttemptStatus.FINISHED, {"run_id": "manual__2"}, OnClear.RESUME_UNCHANGED),
            (AttemptStatus.FAILED, {"run_id": "manual__2"}, OnClear.RESUME),
        ],
        ids=["cleared after success", "restart", "restart after failure", "new run", "new run after failure"],
    )
    def test_a_run_that_begins_again_restores_the_end_of_the_run_before(
        self, status: AttemptStatus, again: dict[str, str], on_clear: OnClear
    ) -> None:
        self.week(1)
        self.work(day(2), 2, status)
        grant = self.begin(day(2, **again), on_clear=on_clear)
        assert self.candidates(grant) == [2]
        assert (grant.is_restore, grant.generation) == (True, 1)
        assert "restarted from checkpoint 2 of run '2026-01-01" in grant.start_reason

    def test_what_such_a_run_took_before_is_never_restored_again(self) -> None:
        self.week(1, 2)
        self.begin(day(2, clear_marker=AGAIN))
        assert self.ids(CheckpointStatus.SUBSUMED) == [1, 3, 4]
        latest = present(self.gateway.latest(JOB, OPERATOR))
        assert latest.checkpoint_id == 2
        assert self.candidates(self.begin(day(2, clear_marker=AGAIN))) == [2]
        assert self.candidates(self.begin(day(3))) == [2]

    def test_the_bytes_of_what_it_took_before_are_discarded_when_there_is_something_newer(self) -> None:
        self.week(1, 2)
        again = self.begin(day(2, clear_marker=AGAIN))
        assert [c.checkpoint_id for c in again.effects.discards] == [1]
        assert [c.checkpoint_id for c in again.effects.retained] == [2, 3, 4]
        effects = complete_checkpoint(self.gateway, again.attempt).effects
        assert [c.checkpoint_id for c in effects.discards] == [1, 3, 4]

    def test_the_bytes_of_what_it_took_before_stay_while_it_fails(self) -> None:
        self.week(1, 2)
        self.work(day(2, clear_marker=AGAIN), 0, AttemptStatus.FAILED)
        effects = self.begin(day(2, clear_marker=AGAIN)).effects
        assert [c.checkpoint_id for c in effects.discards] == [1]

    def test_the_bytes_of_what_it_took_before_go_when_it_ends_without_a_checkpoint(self) -> None:
        self.week(1, 2)
        again = self.begin(day(2, clear_marker=AGAIN))
        effects = self.gateway.finish(FinishAttempt(attempt=again.attempt, status=AttemptStatus.FINISHED))
        assert [c.checkpoint_id for c in effects.discards] == [1, 3, 4]

    def test_a_run_does_not_begin_again_where_the_state_before_it_is_known_to_be_damaged(self) -> None:
        self.work(day(1))
        second = self.begin(day(2))
        complete_checkpoint(self.gateway, second.attempt)
        self.gateway.finish(FinishAttempt(attempt=second.attempt, status=AttemptStatus.FINISHED))
        third = self.begin(day(3))
        skipped = (SkippedCheckpoint(checkpoint_id=1, reason="damaged"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=third.attempt, checkpoint_id=2, skipped=skipped))
        self.gateway.finish(FinishAttempt(attempt=third.attempt, status=AttemptStatus.FINISHED))
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="damaged"):
            self.begin(day(2, clear_marker=AGAIN))

    def test_nothing_of_what_it_took_before_is_committed_any_more(self) -> None:
        first = self.begin(day(1))
        complete_checkpoint(self.gateway, first.attempt, has_commit=True)
        second = self.begin(day(2))
        complete_checkpoint(self.gateway, second.attempt, has_commit=True)
        again = self.begin(day(2, clear_marker=AGAIN), on_clear=OnClear.RESTART)
        assert again.effects.commits == (1,), "what the run before left open is committed"
        assert [c.has_open_commit for c in self.gateway.describe(JOB).checkpoints] == [True, False]

    def test_a_retry_of_a_run_that_began_again_goes_on_from_its_own(self) -> None:
        self.week(1, 2)
        self.work(day(2, clear_marker=AGAIN), 1, AttemptStatus.FAILED)
        assert self.candidates(self.begin(day(2, clear_marker=AGAIN))) == [5, 2]

    def test_a_run_can_begin_again_more_than_once(self) -> None:
        self.week(1, 2)
        for number in range(3):
            grant = self.work(day(2, clear_marker=f"{number}/9"), 2)
            assert self.candidates(grant) == [2]

    def test_runs_are_taken_back_one_after_the_other_the_newest_first(self) -> None:
        self.week(3, 4, 5, retained_runs=2)
        self.work(day(5, clear_marker=AGAIN), 0, AttemptStatus.FAILED, retained_runs=2)
        grant = self.begin(day(4, clear_marker=AGAIN), retained_runs=2)
        assert self.candidates(grant) == [2]
        assert self.ids() == [2]

    def test_a_run_cleared_after_success_begins_again_although_a_later_run_tried_in_between(self) -> None:
        self.week(1, 2)
        self.work(day(3), 0, AttemptStatus.FAILED)
        assert self.candidates(self.begin(day(2, clear_marker=AGAIN))) == [2]

    def test_a_run_that_took_no_checkpoint_begins_again_where_the_state_stands(self) -> None:
        self.week(1)
        self.work(day(2), 0)
        grant = self.begin(day(2, clear_marker=AGAIN))
        assert (self.candidates(grant), grant.generation) == ([2, 1], 1)

    def test_the_first_run_that_begins_again_begins_with_nothing_in_a_new_generation(self) -> None:
        self.week(1)
        grant = self.begin(day(1, clear_marker=AGAIN))
        assert (grant.is_restore, grant.generation, grant.candidates) == (False, 2, ())

    def test_a_run_does_not_begin_with_nothing_where_the_state_before_it_is_not_retained(self) -> None:
        self.week(1, 2, retained_runs=0)
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="retained_runs"):
            self.begin(day(2, clear_marker=AGAIN))

    def test_a_checkpoint_before_the_run_that_could_not_be_read_is_tried_and_then_passed_over(self) -> None:
        self.week(1, 2, num_retained=4)
        grant = self.begin(day(2, clear_marker=AGAIN), num_retained=4)
        assert self.candidates(grant) == [2, 1]
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=1, skipped=skipped))
        assert self.gateway.describe(JOB).attempts[-1].restored_from == 1

    def test_registration_of_a_run_that_begins_again_may_be_repeated(self) -> None:
        self.week(1, 2)
        request = make_registration(owner=day(2, clear_marker=AGAIN))
        assert self.gateway.register(request) == self.gateway.register(request)

    def test_what_a_run_took_back_completes_later_is_refused(self) -> None:
        self.week(1)
        zombie = self.begin(day(2)).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=zombie, request_key=new_key()))
        self.begin(day(2, clear_marker=AGAIN), on_clear=OnClear.RESTART)
        with pytest.raises(StaleAttemptError):
            self.gateway.acknowledge(make_acknowledgement(zombie, pending.checkpoint_id))
        assert self.ids() == [1, 2]

    def test_a_second_test_run_of_one_date_goes_on(self) -> None:
        self.work(day(1), job_name="test/sales")
        self.work(day(2), job_name="test/sales")
        again = self.begin(day(2, run_id="temporary__2"), job_name="test/sales")
        assert self.candidates(again) == [2, 1]

    # --- retention

    @pytest.mark.parametrize(("retained_runs", "kept"), [(0, [9, 10]), (1, [8, 9, 10]), (3, [4, 6, 8, 9, 10])])
    def test_the_end_of_each_of_the_last_runs_is_retained_beside_the_newest(
        self, retained_runs: int, kept: list[int]
    ) -> None:
        self.week(1, 2, 3, 4, 5, retained_runs=retained_runs)
        assert self.ids() == kept

    def test_the_end_of_the_run_before_is_retained_however_many_checkpoints_a_run_takes(self) -> None:
        self.week(1)
        reply = complete_checkpoint(self.gateway, self.begin(day(2), num_retained=1).attempt)
        assert self.ids() == [2, 3]
        assert 2 in {c.checkpoint_id for c in reply.effects.retained}
        self.work(day(2), 5, num_retained=1)
        assert self.ids() == [2, 8]

    def test_a_number_of_retained_runs_out_of_range_is_refused(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="retained_runs"):
            self.begin(day(1), retained_runs=-1)

    # --- two runs at once

    def test_another_run_of_a_task_that_runs_is_refused_and_told_who_it_is(self, liveness: RunningTasks) -> None:
        self.begin(day(1, label="task dag.task of the first day"))
        liveness.let_run("scheduled__2026-01-01")
        with unchanged(self.gateway), pytest.raises(ConcurrentAttemptError, match="on_overlap='wait'") as refused:
            self.begin(day(2))
        assert refused.value.holder == "task dag.task of the first day"

    def test_another_task_that_runs_with_the_same_uid_is_refused(self, liveness: RunningTasks) -> None:
        self.begin(day(1))
        liveness.let_run("scheduled__2026-01-01")
        with pytest.raises(ConcurrentAttemptError, match="another uid"):
            self.begin(day(1, logical_task="dag/other"))

    def test_an_attempt_whose_task_does_not_run_is_fenced_by_the_next_run(self, liveness: RunningTasks) -> None:
        self.begin(day(1))
        liveness.let_run("scheduled__2026-01-02")
        self.begin(day(2))
        assert [a.status for a in self.gateway.describe(JOB).attempts] == [AttemptStatus.FENCED, AttemptStatus.RUNNING]

    def test_a_retry_fences_its_own_run_whoever_is_said_to_run(self, liveness: RunningTasks) -> None:
        self.begin(day(1))
        liveness.let_run("scheduled__2026-01-01")
        assert self.begin(day(1)).attempt.epoch == 2

    def test_another_run_of_the_same_task_is_fenced_in_the_namespace_of_tests(self, liveness: RunningTasks) -> None:
        self.begin(day(1, run_id="killed"), job_name="test/sales")
        liveness.let_run("killed")
        assert self.begin(day(1, run_id="next"), job_name="test/sales").attempt.epoch == 2

    def test_an_attempt_that_ended_stops_nobody_although_its_task_runs(self, liveness: RunningTasks) -> None:
        self.work(day(1))
        liveness.let_run("scheduled__2026-01-01")
        assert self.begin(day(2)).is_restore

    def test_runs_that_wait_register_the_earliest_first(self, liveness: RunningTasks) -> None:
        liveness.let_run("scheduled__2026-01-02", "scheduled__2026-01-03")
        with pytest.raises(ConcurrentAttemptError, match="scheduled__2026-01-02") as refused:
            self.begin(day(3), waits=True)
        assert refused.value.holder == "the earlier run scheduled__2026-01-02"
        self.work(day(2), waits=True)
        liveness.let_run("scheduled__2026-01-03")
        assert self.begin(day(3), waits=True).is_restore

    def test_a_run_that_does_not_wait_does_not_let_others_pass(self, liveness: RunningTasks) -> None:
        liveness.let_run("scheduled__2026-01-02", "scheduled__2026-01-03")
        assert self.begin(day(3)).attempt.epoch == 1

    def test_a_retry_that_waits_registers_before_an_earlier_run_that_waits_for_it(self, liveness: RunningTasks) -> None:
        liveness.let_run("scheduled__2026-01-03")
        self.begin(day(3), waits=True)
        liveness.let_run("scheduled__2026-01-02", "scheduled__2026-01-03")
        with pytest.raises(ConcurrentAttemptError):
            self.begin(day(2), waits=True)
        assert self.begin(day(3), waits=True).attempt.epoch == 2

    def test_a_registration_that_is_repeated_does_not_wait_again(self, liveness: RunningTasks) -> None:
        request = make_registration(owner=day(3), waits=True)
        granted = self.gateway.register(request)
        liveness.let_run("scheduled__2026-01-02", "scheduled__2026-01-03")
        assert self.gateway.register(request) == granted

    def test_test_runs_do_not_wait_for_others(self, liveness: RunningTasks) -> None:
        liveness.let_run("scheduled__2026-01-02")
        assert self.begin(day(3), job_name="test/sales", waits=True).attempt.epoch == 1

    def test_an_earlier_run_is_told_that_it_is_too_late_before_it_is_told_to_wait(self, liveness: RunningTasks) -> None:
        complete_checkpoint(self.gateway, self.begin(day(2)).attempt)
        liveness.let_run("scheduled__2026-01-02")
        with pytest.raises(RunSupersededError):
            self.begin(day(1))
