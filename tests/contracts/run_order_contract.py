"""
What holds for the order of runs without a logical date, as a suite that passes over every store.

Subclass :class:`RunOrderContract` and give the fixtures ``store`` and ``clock``.
"""

from __future__ import annotations

from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.messages import ConfirmRestore, FinishAttempt, SkippedCheckpoint
from airflow_provider_statecheck.checkpoint.records import (
    ActionRecord,
    AttemptOwner,
    AttemptStatus,
    JobAction,
    OnClear,
)
from airflow_provider_statecheck.checkpoint.start_decision import choose
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import NoRestorableCheckpointError, RunSupersededError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from tests.contracts.maintenance_contract import DAY, KnownRuns, NoTokens
from tests.contracts.runs_of_a_job import AGAIN, JOB, OPERATOR, RunsWithTasks, day, unchanged
from tests.messages import ManualClock, complete_checkpoint, make_owner, present


def undated(name: str, **changes: Any) -> AttemptOwner:
    """Return the owner of an attempt in a run without a date, as an asset or the API triggers one."""
    return make_owner(**{"run_key": name, "run_id": name} | changes)


def part(key: str, run_id: str, date: str = "", **changes: Any) -> AttemptOwner:
    """Return the owner of an attempt in a run of a partition."""
    values = {"run_key": key, "run_id": run_id, "is_of_partition": True, "partition_date": date}
    return make_owner(**values | changes)


class RunOrderContract(RunsWithTasks):
    """A run that has advanced the state does so once, whatever comes after it and whatever its name is."""

    def require_refused(self, owner: AttemptOwner, **settings: Any) -> RunSupersededError:
        """Require that a run is refused, and changes nothing."""
        with unchanged(self.gateway), pytest.raises(RunSupersededError) as refused:
            self.begin(owner, **settings)
        return refused.value

    @pytest.mark.parametrize("again", [{}, {"clear_marker": AGAIN}], ids=["retried", "cleared"])
    @pytest.mark.parametrize("on_clear", OnClear)
    @pytest.mark.parametrize("status", [AttemptStatus.FINISHED, AttemptStatus.FAILED])
    @pytest.mark.parametrize("then", [undated("second"), day(9)], ids=["undated", "dated"])
    def test_a_run_without_a_date_that_advanced_the_state_before_the_newest_is_refused(
        self, again: dict[str, str], on_clear: OnClear, status: AttemptStatus, then: AttemptOwner
    ) -> None:
        self.work(undated("first"), status=status)
        self.work(then)
        refused = self.require_refused(undated("first", **again), on_clear=on_clear)
        assert (refused.run_key, refused.stands_at, refused.checkpoint_id) == ("first", then.run_key, 2)
        assert "already contains this run" in str(refused)

    def test_a_dated_run_that_advanced_the_state_before_one_without_a_date_is_refused(self) -> None:
        self.work(day(1))
        self.work(undated("second"))
        assert "already contains this run" in str(self.require_refused(day(1, clear_marker=AGAIN)))

    def test_an_earlier_date_is_refused_although_a_run_without_a_date_came_after_the_later_one(self) -> None:
        self.work(day(3))
        self.work(undated("second"))
        refused = self.require_refused(day(2))
        assert f"later run {day(3).run_key!r}" in str(refused)
        assert self.begin(day(4)).is_restore

    def test_every_one_of_several_older_runs_without_a_date_is_refused(self) -> None:
        names = ("first", "second", "third", "fourth")
        for name in names:
            self.work(undated(name), 3, num_retained=1, retained_runs=0)
        for name in names[:-1]:
            self.require_refused(undated(name, clear_marker=AGAIN))
        assert self.begin(undated("fifth")).is_restore

    def test_a_run_without_a_checkpoint_has_advanced_nothing(self) -> None:
        self.work(undated("first"))
        self.work(undated("idle"), 0)
        self.work(undated("second"))
        assert self.candidates(self.begin(undated("idle", clear_marker=AGAIN)))[0] == 2

    def test_the_newest_run_without_a_date_starts_again_as_before(self) -> None:
        self.work(undated("first"))
        self.work(undated("second"))
        grant = self.begin(undated("second", clear_marker=AGAIN))
        assert (self.candidates(grant), grant.generation) == ([1], 1)

    def test_the_same_holds_among_test_runs(self) -> None:
        for name in ("first", "second"):
            self.work(undated(name), job_name="test/sales")
        with pytest.raises(RunSupersededError):
            self.begin(undated("first"), job_name="test/sales")

    def test_each_instance_of_a_mapped_task_has_advanced_its_own_state(self) -> None:
        self.work(undated("first"), uid="load[a]")
        self.work(undated("second"), uid="load[a]")
        self.work(undated("second"), uid="load[b]")
        self.begin(undated("first", clear_marker=AGAIN), uid="load[b]")
        with pytest.raises(RunSupersededError):
            self.begin(undated("first", clear_marker=AGAIN), uid="load[a]")

    # --- work that the state no longer contains

    def rewind(self, store: JobStore, run: str) -> None:
        """Rewind the job to before a run."""
        JobRewinding(store, self.liveness).rewind(RewindJob(job_id=JOB, run_key=run))

    def test_runs_that_were_rewound_work_again_in_any_order(self, store: JobStore) -> None:
        for name in ("first", "second", "third"):
            self.work(undated(name), 3, retained_runs=3)
        self.rewind(store, "second")
        assert self.candidates(self.work(undated("third", clear_marker=AGAIN), retained_runs=3))[0] == 3
        assert self.candidates(self.work(undated("second", clear_marker=AGAIN), retained_runs=3))[0] == 10
        self.require_refused(undated("third", clear_marker=AGAIN))
        self.require_refused(undated("first", clear_marker=AGAIN))

    def test_a_run_that_started_again_and_failed_works_again_after_another_one(self) -> None:
        self.work(undated("first"))
        self.work(undated("second"), 3)
        self.work(undated("second", clear_marker=AGAIN), 0, AttemptStatus.FAILED)
        self.work(undated("third"))
        assert self.candidates(self.begin(undated("second", clear_marker=AGAIN)))[0] == 5

    def test_runs_after_a_chosen_checkpoint_work_again(self, store: JobStore, clock: ManualClock) -> None:
        for name in ("first", "second"):
            self.work(undated(name))
        with store.transaction(JOB) as tx:
            choice = ActionRecord(
                job_id=JOB,
                request_key="0" * 32,
                action=JobAction.RESTORE,
                operator_id=OPERATOR,
                checkpoint_id=1,
                requested_by="ann",
                requested_at=clock.now(),
            )
            choose(tx, present(tx.operator(OPERATOR)), choice)
        self.work(undated("third"))
        assert self.candidates(self.begin(undated("second", clear_marker=AGAIN)))[0] == 3

    def test_a_run_whose_checkpoints_could_not_be_read_works_again(self) -> None:
        self.work(undated("first"), num_retained=2)
        self.work(undated("second"), 3, num_retained=1)
        grant = self.begin(undated("third"))
        assert self.candidates(grant) == [4, 1]
        skipped = (SkippedCheckpoint(checkpoint_id=4, reason="damaged"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=1, skipped=skipped))
        complete_checkpoint(self.gateway, grant.attempt)
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        assert self.candidates(self.begin(undated("second", clear_marker=AGAIN)))[0] == 5

    def test_runs_of_an_earlier_generation_have_advanced_nothing(self) -> None:
        self.work(undated("first"))
        self.work(undated("first", clear_marker=AGAIN))
        self.work(undated("second"))
        self.require_refused(undated("first", clear_marker="8/8"))

    # --- maintenance

    def test_it_is_known_after_old_rows_were_removed(self, store: JobStore, clock: ManualClock) -> None:
        for name in ("first", "second", "third"):
            self.work(undated(name), 5, num_retained=1, retained_runs=0)
        maintenance = JobMaintenance(store, KnownRuns(), NoTokens(), clock)
        view = maintenance.describe(JOB)
        maintenance.confirm_discards(JOB, tuple(c.checkpoint_id for c in view.checkpoints))
        clock.advance(400 * DAY)
        maintenance.forget(JOB, DAY)
        left = [c.checkpoint_id for c in maintenance.describe(JOB).checkpoints]
        assert left == [5, 10, 15], "the last one of each run"
        for name in ("first", "second"):
            self.require_refused(undated(name, clear_marker=AGAIN))

    # --- partitions

    @pytest.mark.parametrize(
        ("status", "on_clear", "restored", "reason"),
        [
            (
                AttemptStatus.FAILED,
                OnClear.RESUME_UNCHANGED,
                [2, 1],
                "a new run of the partition of a run whose attempt failed",
            ),
            (AttemptStatus.FAILED, OnClear.RESTART, [1], "on_clear is restart"),
            (
                AttemptStatus.FINISHED,
                OnClear.RESUME_UNCHANGED,
                [1],
                "whose attempt finished, restarted from checkpoint 1",
            ),
        ],
    )
    def test_a_new_run_of_a_partition_resumes_a_failed_run_and_replaces_a_finished_one(
        self, status: AttemptStatus, on_clear: OnClear, restored: list[int], reason: str
    ) -> None:
        self.work(part("eu", "run-1"))
        self.work(part("us", "run-2"), status=status)
        grant = self.begin(part("us", "run-3"), on_clear=on_clear)
        assert self.candidates(grant) == restored
        assert reason in grant.start_reason

    def test_a_new_run_of_a_partition_that_the_state_contains_is_refused(self) -> None:
        self.work(part("eu", "run-1"))
        self.work(part("us", "run-2"))
        self.require_refused(part("eu", "run-3"))

    def test_the_dates_of_partitions_order_their_runs(self) -> None:
        first, second, third = ("2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", "2026-01-03T00:00:00+00:00")
        self.work(part("jan-1", "run-1", first))
        self.work(part("jan-3", "run-3", third))
        assert "later run 'jan-3'" in str(self.require_refused(part("jan-2", "run-2", second)))
        assert self.begin(part("jan-4", "run-4", "2026-01-04T00:00:00+00:00")).is_restore

    def test_partitions_of_one_date_have_no_order(self) -> None:
        date = "2026-01-01T00:00:00+00:00"
        self.work(part("eu", "run-1", date))
        self.work(part("us", "run-2", date))
        assert self.begin(part("asia", "run-3", date)).is_restore

    def test_a_date_in_the_key_of_a_partition_does_not_count_where_the_partition_has_one(self) -> None:
        # The hours of a day in Auckland, as a timetable there names them.
        self.work(part("2026-01-03T05:00:00", "run-1", "2026-01-02T16:00:00+00:00"))
        assert self.begin(part("2026-01-03T06:00:00", "run-2", "2026-01-02T17:00:00+00:00")).is_restore

    def test_a_run_stays_the_same_when_it_loses_its_partition(self) -> None:
        self.work(part("eu", "run-1"))
        self.work(part("us", "run-2"))
        grant = self.begin(undated("run-2", clear_marker=AGAIN))
        assert self.candidates(grant) == [1]
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED))
        self.work(undated("run-3"))
        self.require_refused(undated("run-1", clear_marker=AGAIN))

    def test_a_run_of_a_partition_that_was_known_by_its_run_id_is_the_same_run(self) -> None:
        self.work(undated("run-1"))
        self.work(undated("run-2"))
        assert self.candidates(self.work(part("us", "run-2", clear_marker=AGAIN))) == [1]
        self.require_refused(part("eu", "run-1", clear_marker=AGAIN))

    def test_what_such_a_run_cannot_restart_from_is_an_error(self) -> None:
        self.work(part("eu", "run-1"), retained_runs=0)
        self.work(part("us", "run-2"), 3, num_retained=1, retained_runs=0)
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError):
            self.begin(part("us", "run-3"))
