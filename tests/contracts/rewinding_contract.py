"""
What holds for jobs that are rewound, as a suite that passes over every store.

Subclass :class:`RewindingContract` and give the fixture ``store``.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    ConfirmRestore,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    StaleAttemptError,
)
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob, RewoundOperator
from tests.contracts.runs_of_a_job import AGAIN, JOB, RunsWithTasks, day, rows_of, unchanged
from tests.messages import ManualClock, complete_checkpoint, make_owner, present


class RewindingContract(RunsWithTasks):
    """
    The state of a job is taken back over several runs at once, and stands where it stood before the first of them.
    """

    @pytest.fixture(autouse=True)
    def _rewinding(self, _coordinator: None, store: JobStore) -> None:
        self.rewinding = JobRewinding(store, self.liveness)

    def rewind(self, number: int, **changes: Any) -> tuple[RewoundOperator, ...]:
        """Rewind the job to before the run of a day."""
        return self.rewinding.rewind(RewindJob(**{"job_id": JOB, "run_key": day(number).run_key} | changes))

    def test_the_state_stands_where_it_stood_before_the_run(self) -> None:
        self.week(1, 2, 3, 4, retained_runs=3)
        done = self.rewind(3)
        assert [[c.checkpoint_id for c in each.taken_back] for each in done] == [[8, 7, 6]]
        assert [each.stands_at.checkpoint_id for each in done if each.stands_at is not None] == [4]
        assert self.ids() == [2, 4]

    def test_the_runs_work_again_in_their_order_and_each_goes_on_from_the_one_before(self) -> None:
        self.week(1, 2, 3, 4, retained_runs=3)
        self.rewind(3)
        third = self.work(day(3, clear_marker=AGAIN), 1, retained_runs=3)
        fourth = self.work(day(4, clear_marker=AGAIN), 1, retained_runs=3)
        assert [self.candidates(third), self.candidates(fourth)] == [[4, 2], [9, 4, 2]]
        assert (third.generation, fourth.generation) == (1, 1)

    @pytest.mark.parametrize("marker", [AGAIN, None], ids=["cleared", "retried"])
    def test_the_last_run_may_be_the_only_one(self, marker: str | None) -> None:
        self.week(1, 2)
        self.rewind(2)
        again = day(2) if marker is None else day(2, clear_marker=marker)
        assert self.candidates(self.begin(again)) == [2]

    def test_a_run_that_took_no_checkpoint_may_be_named(self) -> None:
        self.week(1, 2, 4, retained_runs=3)
        self.rewind(3)
        assert self.candidates(self.begin(day(3), retained_runs=3)) == [4, 2]

    def test_a_run_without_a_logical_date_is_named_by_its_id(self) -> None:
        self.week(1)
        for name in ("asset__1", "asset__2"):
            self.work(make_owner(run_key=name, run_id=name), retained_runs=3)
        (done,) = self.rewind(1, run_key="asset__1")
        assert [c.run_key for c in done.taken_back] == ["asset__2", "asset__1"]
        assert present(done.stands_at).run_key == day(1).run_key

    def test_it_may_be_repeated(self) -> None:
        self.week(1, 2, 3, retained_runs=3)
        self.rewind(2)
        before = rows_of(self.gateway.describe(JOB))
        (again,) = self.rewind(2)
        assert (again.taken_back, again.stands_at is not None) == ((), True)
        assert rows_of(self.gateway.describe(JOB)) == before

    def test_a_dry_run_says_the_same_and_changes_nothing(self, clock: ManualClock) -> None:
        self.week(1, 2, 3, retained_runs=3)
        before = self.gateway.describe(JOB)
        clock.advance(60)
        dry = self.rewind(2, dry_run=True)
        after = self.gateway.describe(JOB)
        assert (after.job, rows_of(after)) == (before.job, rows_of(before)), "not even the job's version"
        assert self.rewind(2) == dry

    def test_nothing_of_what_is_taken_back_is_committed_any_more(self) -> None:
        for number in (1, 2):
            grant = self.begin(day(number))
            complete_checkpoint(self.gateway, grant.attempt, has_commit=True)
        self.rewind(2)
        assert self.begin(day(2)).effects.commits == (1,), "what the run before left open is committed"

    def test_its_bytes_stay_until_there_is_something_newer(self, clock: ManualClock) -> None:
        self.week(1, 2, 3, retained_runs=3)
        clock.advance(1)
        self.rewind(2)
        clock.advance(1)
        again = self.begin(day(2, clear_marker=AGAIN), retained_runs=3)
        assert self.discards(again) == [1]
        self.gateway.finish(FinishAttempt(attempt=again.attempt, status=AttemptStatus.FAILED))
        again = self.begin(day(2, clear_marker=AGAIN), retained_runs=3)
        assert self.discards(again) == [1]
        effects = complete_checkpoint(self.gateway, again.attempt).effects
        assert [c.checkpoint_id for c in effects.discards] == [1, 3, 4, 5, 6]

    @staticmethod
    def discards(grant: AttemptGrant) -> list[int]:
        """Return of which checkpoints the bytes are to be deleted."""
        return [c.checkpoint_id for c in grant.effects.discards]

    def test_before_the_first_run_the_job_begins_with_nothing_in_a_new_generation(self) -> None:
        self.week(1, 2)
        (done,) = self.rewind(1)
        assert (len(done.taken_back), done.stands_at) == (3, None)
        grant = self.begin(day(1, clear_marker=AGAIN))
        assert (grant.is_restore, grant.candidates) == (False, ())
        assert grant.generation > 1
        second = self.begin(day(2, clear_marker=AGAIN))
        assert second.is_restore is False, "the first one took no checkpoint"

    def test_what_lies_before_the_first_run_counts_as_before_it(self) -> None:
        self.week(3, 4)
        (done,) = self.rewind(2)
        assert done.stands_at is None
        assert self.begin(day(2)).is_restore is False

    def test_it_never_begins_with_nothing_where_the_state_before_the_run_is_not_retained(self) -> None:
        self.week(1, 2, 3, retained_runs=0)
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="retained_runs"):
            self.rewind(2)

    def test_it_is_refused_where_the_state_before_the_run_is_known_to_be_damaged(self) -> None:
        self.work(day(1))
        self.work(day(2))
        third = self.begin(day(3))
        skipped = (SkippedCheckpoint(checkpoint_id=1, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=third.attempt, checkpoint_id=2, skipped=skipped))
        self.gateway.finish(FinishAttempt(attempt=third.attempt, status=AttemptStatus.FINISHED))
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="checksum differs"):
            self.rewind(2)

    def test_a_job_is_not_rewound_under_a_task_that_works(self) -> None:
        self.week(1, 2)
        self.begin(day(3))
        self.liveness.let_run(day(3).run_id)
        with unchanged(self.gateway), pytest.raises(ConcurrentAttemptError, match=r"found dag\.task"):
            self.rewind(2)

    def test_an_attempt_whose_task_is_dead_is_fenced(self) -> None:
        self.week(1, 2)
        dead = self.begin(day(3))
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=dead.attempt, request_key=new_key()))
        self.rewind(2)
        assert self.ids(CheckpointStatus.ABORTED) == [pending.checkpoint_id]
        with pytest.raises(StaleAttemptError):
            complete_checkpoint(self.gateway, dead.attempt)

    def test_a_script_that_was_fenced_cannot_finish(self) -> None:
        self.week(1, 2)
        script = self.begin(day(3)).attempt
        self.rewind(2)
        for status in (AttemptStatus.FINISHED, AttemptStatus.FAILED):
            with pytest.raises(StaleAttemptError, match="was shut out"):
                self.gateway.finish(FinishAttempt(attempt=script, status=status))
        with pytest.raises(StaleAttemptError, match="was shut out"):
            self.gateway.confirm_commits(script, (1,))

    def test_all_operators_go_back_or_none(self) -> None:
        self.week(1, 2, uid="kept")
        self.week(1, 2, uid="lost", retained_runs=0)
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="lost"):
            self.rewind(2)

    def test_one_operator_can_be_rewound_alone(self) -> None:
        self.week(1, 2, uid="one")
        self.week(1, 2, uid="other")
        (done,) = self.rewind(2, uid="one")
        assert (done.uid, [c.checkpoint_id for c in done.taken_back]) == ("one", [4, 3])
        assert self.ids() == [2, 6, 7, 8]

    @pytest.mark.parametrize("form", ["2026-01-02", "2026-01-02T00:00:00Z", "2026-01-02T02:00:00+02:00"])
    def test_a_logical_date_may_be_written_in_any_form(self, form: str) -> None:
        self.work(day(1))
        self.work(make_owner(run_key="asset__1", run_id="asset__1"))
        self.work(day(2))
        (done,) = self.rewind(2, run_key=form)
        assert [c.checkpoint_id for c in done.taken_back] == [3]
        (done,) = self.rewind(1, run_key=form.replace("-02T", "-01T").replace("01-02", "01-01"))
        assert done.stands_at is None

    def test_an_empty_run_is_refused(self) -> None:
        self.week(1, 2)
        with pytest.raises(InvalidConfigurationError, match="logical date"):
            self.rewind(2, run_key="")

    def test_a_dead_attempt_is_named(self) -> None:
        self.week(1)
        self.begin(day(2))
        (done,) = self.rewind(2, dry_run=True)
        assert present(done.fenced).owner == day(2)

    def test_a_job_without_state_of_runs_is_told(self) -> None:
        self.week(1)
        with pytest.raises(CheckpointNotFoundError, match="state across runs"):
            self.rewind(1, uid="other")

    def test_a_job_that_is_not_there_is_told(self) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.rewind(2)
