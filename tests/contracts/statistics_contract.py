"""
What every store of rows must keep of the checkpoints of an operator: counts, summaries, and the latest ones.

A subclass gives the store as the fixture ``store``.
"""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointException, CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import JobId, OperatorId, job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeResult,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    EndSavepoint,
    FinishAttempt,
    PendingCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, StatisticsRecord
from airflow_provider_statecheck.checkpoint.statistics import HISTORY_SIZE, CheckpointStatsSnapshot, refused
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import ConcurrentAttemptError, CoordinatorError, StorageError
from airflow_provider_statecheck.flink.components import CheckpointStatsTracker
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.contracts.maintenance_contract import KnownRuns, NoTokens
from tests.messages import (
    ManualClock,
    make_acknowledgement,
    make_owner,
    make_registration,
    make_savepoint_request,
    make_source,
    present,
)

JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")
SAVEPOINTS = "memory://savepoints"
PLACE = f"{SAVEPOINTS}/savepoint-0f6f7c-000000000001"
IO = CheckpointFailureReason.IO_EXCEPTION
LARGEST_ROW = 64 * 1024


def tracker_of(store: JobStore, operator_id: OperatorId, **options: int) -> CheckpointStatsTracker:
    attempt = AttemptRef(job_id=JOB, operator_id=operator_id, epoch=1)
    return CheckpointStatsTracker(AlignedCheckpoints(store), attempt, **options)


class StatisticsContract:
    """The rules, each a test."""

    @pytest.fixture(autouse=True)
    def _parts(self, store: JobStore) -> None:
        self.rows = store
        self.coordinator = AttemptCoordinator(store)
        self.tracker = tracker_of(store, OPERATOR)

    @pytest.fixture
    def attempt(self) -> AttemptRef:
        """Return an attempt that runs."""
        return self.coordinator.register(make_registration()).attempt

    def trigger(self, attempt: AttemptRef, **changes: Any) -> int:
        values: dict[str, Any] = {"attempt": attempt, "request_key": new_key()}
        return self.coordinator.trigger(TriggerCheckpoint(**values | changes)).checkpoint_id

    def complete(self, attempt: AttemptRef, **changes: Any) -> int:
        """Take one checkpoint."""
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        self.coordinator.acknowledge(make_acknowledgement(attempt, pending, **changes))
        return pending.checkpoint_id

    def fail(self, attempt: AttemptRef, message: str = "disk full") -> int:
        """Begin a checkpoint and give it up."""
        checkpoint_id = self.trigger(attempt)
        self.coordinator.decline(
            DeclineCheckpoint(attempt=attempt, checkpoint_id=checkpoint_id, reason=IO, message=message)
        )
        return checkpoint_id

    def begin_savepoint(self, attempt: AttemptRef) -> PendingCheckpoint:
        """Let a stage begin a savepoint."""
        asked = JobSavepoints(self.rows).request(make_savepoint_request(attempt))
        return self.coordinator.trigger(
            TriggerCheckpoint(
                attempt=attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=SAVEPOINTS
            )
        )

    @staticmethod
    def numbers(snapshot: CheckpointStatsSnapshot) -> tuple[int, int, int, int]:
        """Return how many there were, in progress, completed and failed."""
        counts = snapshot.counts
        return counts.total, counts.in_progress, counts.completed, counts.failed

    def complete_in_vain(self, attempt: AttemptRef, checkpoint_id: int) -> None:
        """Complete a checkpoint in a transaction that fails at its end."""
        with self.rows.transaction(JOB) as tx:
            pending = tx.checkpoint(checkpoint_id)
            if pending is not None:
                message = make_acknowledgement(attempt, checkpoint_id)
                transitions.complete(tx, pending, transitions.acknowledged(tx, pending, message))
            raise CoordinatorError("given up")

    def row_of(self, job_id: JobId = JOB) -> StatisticsRecord:
        """Return the one row that is kept."""
        [row] = self.rows.describe(job_id).statistics
        return row

    def test_an_operator_without_checkpoints_has_counts_of_zero(self, attempt: AttemptRef) -> None:
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.history, snapshot.latest_failed) == ((0, 0, 0, 0), (), None)
        assert (snapshot.state_size.average, snapshot.duration.percentile(99)) == (None, None)

    def test_a_triggered_checkpoint_is_in_progress_and_in_the_history(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.trigger(attempt)
        snapshot = self.tracker.create_snapshot()
        assert self.numbers(snapshot) == (1, 1, 0, 0)
        [entry] = snapshot.history
        assert (entry.checkpoint_id, entry.status, entry.duration) == (checkpoint_id, "pending", None)

    def test_a_completed_checkpoint_is_counted_with_its_sizes_and_duration(
        self, attempt: AttemptRef, clock: ManualClock
    ) -> None:
        checkpoint_id = self.trigger(attempt)
        clock.advance(1.5)
        self.coordinator.acknowledge(
            make_acknowledgement(attempt, checkpoint_id, state_size_bytes=70, full_size_bytes=900)
        )
        snapshot = self.tracker.create_snapshot()
        assert self.numbers(snapshot) == (1, 0, 1, 0)
        latest = present(snapshot.latest_completed)
        assert (latest.state_size_bytes, latest.full_size_bytes, latest.counts) == (70, 900, (("snapshots", 1),))
        assert latest.location.endswith(f"/chk-{checkpoint_id}")
        assert (latest.epoch, latest.attempt) == (attempt.epoch, "dag.task")
        assert (snapshot.duration.maximum, latest.duration and latest.duration.total_seconds()) == (1500, 1.5)
        assert snapshot.history == (latest,)

    @pytest.mark.parametrize(
        ("increment_seconds", "milliseconds"), [(98.5, 1500), (0.0, 100_000), (1e9, 0), (-5.0, 100_000)]
    )
    def test_the_increment_for_which_an_id_was_drawn_ahead_is_not_part_of_the_duration(
        self, attempt: AttemptRef, clock: ManualClock, increment_seconds: float, milliseconds: int
    ) -> None:
        checkpoint_id = self.trigger(attempt)
        clock.advance(100)
        self.coordinator.acknowledge(make_acknowledgement(attempt, checkpoint_id, increment_seconds=increment_seconds))
        assert self.tracker.create_snapshot().duration.maximum == milliseconds

    def test_the_increment_is_not_part_of_the_duration_of_a_failed_checkpoint_either(
        self, attempt: AttemptRef, clock: ManualClock
    ) -> None:
        checkpoint_id = self.trigger(attempt)
        clock.advance(100)
        self.coordinator.decline(
            DeclineCheckpoint(attempt=attempt, checkpoint_id=checkpoint_id, reason=IO, increment_seconds=98.5)
        )
        assert present(self.tracker.create_snapshot().latest_failed).duration == timedelta(seconds=1.5)

    def test_summaries_have_minimum_average_maximum_and_percentiles_of_completed_ones(
        self, attempt: AttemptRef
    ) -> None:
        for size in (30, 10, 20):
            self.complete(attempt, state_size_bytes=size, full_size_bytes=10 * size)
        self.fail(attempt)
        state, full = self.tracker.create_snapshot().state_size, self.tracker.create_snapshot().full_size
        assert (state.count, state.minimum, state.average, state.maximum) == (3, 10, 20.0, 30)
        assert (full.percentile(50), full.percentile(99)) == (200, 300)

    def test_a_failed_checkpoint_is_kept_with_reason_cause_pointer_and_attempt(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.fail(attempt, "disk full on node 7")
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.failures) == ((1, 0, 0, 1), (("io_exception", 1),))
        failed = present(snapshot.latest_failed)
        assert (failed.failure_reason, failed.failure_cause) == ("io_exception", "disk full on node 7")
        assert (failed.location[-6:], failed.attempt) == (f"/chk-{checkpoint_id}", "dag.task")

    def test_an_expired_checkpoint_is_a_failed_one(self, attempt: AttemptRef, clock: ManualClock) -> None:
        self.trigger(attempt)
        clock.advance(601)
        for _ in range(2):
            self.trigger(attempt)
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.failures) == ((3, 2, 0, 1), (("checkpoint_expired", 1),))

    def test_what_was_under_way_when_its_attempt_ended_is_no_failed_checkpoint(self, attempt: AttemptRef) -> None:
        self.trigger(attempt)
        second = self.coordinator.register(make_registration()).attempt
        self.trigger(second)
        self.coordinator.finish(FinishAttempt(attempt=second, status=AttemptStatus.FAILED))
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.failures, snapshot.latest_failed) == ((0, 0, 0, 0), (), None)
        assert [entry.failure_reason for entry in snapshot.history] == ["attempt_ended", "attempt_ended"]

    def test_an_older_pending_checkpoint_that_is_subsumed_counts_as_failed_but_not_as_latest_completed(
        self, attempt: AttemptRef
    ) -> None:
        older = self.trigger(attempt)
        newer = self.complete(attempt)
        snapshot = self.tracker.create_snapshot()
        assert self.numbers(snapshot) == (2, 0, 1, 1)
        assert present(snapshot.latest_completed).checkpoint_id == newer
        assert present(snapshot.latest_failed).checkpoint_id == older

    def test_a_repeated_message_is_counted_once(self, attempt: AttemptRef) -> None:
        request = TriggerCheckpoint(attempt=attempt, request_key=new_key())
        checkpoint_id = self.coordinator.trigger(request).checkpoint_id
        self.coordinator.trigger(request)
        for _ in range(2):
            self.coordinator.acknowledge(make_acknowledgement(attempt, checkpoint_id))
        failed = self.fail(attempt)
        self.coordinator.decline(DeclineCheckpoint(attempt=attempt, checkpoint_id=failed, reason=IO))
        assert self.numbers(self.tracker.create_snapshot()) == (2, 0, 1, 1)

    def test_what_is_rolled_back_is_not_counted(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.trigger(attempt)
        with pytest.raises(CoordinatorError, match="given up"):
            self.complete_in_vain(attempt, checkpoint_id)
        assert (self.numbers(self.tracker.create_snapshot()), self.rows.describe(JOB).statistics) == ((1, 1, 0, 0), ())

    def test_two_transitions_within_one_transaction_are_both_counted(self, attempt: AttemptRef) -> None:
        for _ in range(3):
            self.trigger(attempt)
        self.complete(attempt)
        assert self.numbers(self.tracker.create_snapshot()) == (4, 0, 1, 3)

    def test_the_history_is_bounded_newest_first_while_counts_and_summaries_go_on(self, attempt: AttemptRef) -> None:
        ids = [self.complete(attempt, state_size_bytes=i) for i in range(HISTORY_SIZE + 3)]
        snapshot = self.tracker.create_snapshot()
        assert [entry.checkpoint_id for entry in snapshot.history] == ids[:-11:-1]
        assert (snapshot.counts.completed, snapshot.state_size.count, snapshot.state_size.minimum) == (13, 13, 0)

    def test_latest_entries_stay_when_the_history_has_forgotten_them(self, attempt: AttemptRef) -> None:
        failed = self.fail(attempt)
        for _ in range(HISTORY_SIZE):
            self.complete(attempt)
        snapshot = self.tracker.create_snapshot()
        assert failed not in [entry.checkpoint_id for entry in snapshot.history]
        assert present(snapshot.latest_failed).checkpoint_id == failed

    def test_a_history_of_size_zero_still_has_counts_summary_and_latest(self, attempt: AttemptRef) -> None:
        self.complete(attempt, state_size_bytes=5)
        self.fail(attempt)
        snapshot = tracker_of(self.rows, OPERATOR, history_size=0).create_snapshot()
        assert (snapshot.history, self.numbers(snapshot), snapshot.state_size.maximum) == ((), (2, 0, 1, 1), 5)
        assert snapshot.latest_completed is not None
        assert snapshot.latest_failed is not None

    def test_operators_are_counted_apart(self, attempt: AttemptRef) -> None:
        other = self.coordinator.register(make_registration(uid="customers")).attempt
        self.complete(attempt)
        self.fail(other)
        found = [self.numbers(tracker_of(self.rows, ref.operator_id).create_snapshot()) for ref in (attempt, other)]
        assert found == [(1, 0, 1, 0), (1, 0, 0, 1)]

    def test_savepoints_are_counted_by_kind_and_leave_the_latest_checkpoint(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.complete(attempt)
        savepoint = self.begin_savepoint(attempt)
        pending = self.tracker.create_snapshot()
        assert (pending.checkpoints.in_progress, pending.savepoints.in_progress) == (0, 1)
        self.coordinator.acknowledge(make_acknowledgement(attempt, savepoint))
        snapshot = self.tracker.create_snapshot()
        assert (snapshot.checkpoints.completed, snapshot.savepoints.completed) == (1, 1)
        assert present(snapshot.latest_savepoint).location == savepoint.location
        assert present(snapshot.latest_completed).checkpoint_id == checkpoint_id

    def test_a_savepoint_that_is_copied_where_nothing_runs_is_counted_at_its_end(self, attempt: AttemptRef) -> None:
        self.complete(attempt)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        savepoints = JobSavepoints(self.rows)
        for failure in (None, "the disk is full"):
            asked = savepoints.request(make_savepoint_request(attempt))
            begun = savepoints.begin(JOB, asked.request_key, SAVEPOINTS, new_key())
            assert self.tracker.create_snapshot().savepoints.in_progress == 1
            end = EndSavepoint(
                job_id=JOB,
                checkpoint_id=begun.checkpoint_id,
                metadata_uri=f"{begun.location}/_metadata",
                state_size_bytes=9,
                failure=failure,
            )
            savepoints.end(end)
            savepoints.end(end)
        counts = self.tracker.create_snapshot().savepoints
        assert (counts.total, counts.completed, counts.failed) == (2, 1, 1)

    def test_a_restore_is_counted_once_per_attempt_with_what_was_restored(
        self, attempt: AttemptRef, clock: ManualClock
    ) -> None:
        checkpoint_id = self.complete(attempt, full_size_bytes=33)
        for number in (2, 3):
            owner = make_owner(label=f"dag.task try {number}")
            again = self.coordinator.register(make_registration(owner=owner)).attempt
            for _ in range(2):
                self.coordinator.confirm_restore(ConfirmRestore(attempt=again, checkpoint_id=checkpoint_id))
                clock.advance(1)
            assert self.tracker.create_snapshot().counts.restored == number - 1
        restored = present(self.tracker.create_snapshot().latest_restored)
        assert (restored.checkpoint_id, restored.epoch, restored.full_size_bytes) == (checkpoint_id, 3, 33)
        assert (restored.attempt, restored.location[-6:]) == ("dag.task try 3", f"/chk-{checkpoint_id}")
        assert self.numbers(self.tracker.create_snapshot()) == (1, 0, 1, 0)

    def test_a_fall_back_to_an_older_checkpoint_is_what_was_restored(self, attempt: AttemptRef) -> None:
        older, newer = self.complete(attempt), self.complete(attempt)
        again = self.coordinator.register(make_registration()).attempt
        for checkpoint_id in (newer, older):
            self.coordinator.confirm_restore(ConfirmRestore(attempt=again, checkpoint_id=checkpoint_id))
        snapshot = self.tracker.create_snapshot()
        assert (snapshot.counts.restored, present(snapshot.latest_restored).checkpoint_id) == (1, older)

    def test_a_savepoint_that_an_operator_begins_from_is_restored_but_not_taken(self) -> None:
        grant = self.coordinator.register(make_registration(restore_from=make_source(PLACE)))
        found = self.tracker.create_snapshot()
        assert (self.numbers(found), found.history) == ((0, 0, 0, 0), ())
        self.coordinator.confirm_restore(
            ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id)
        )
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.savepoints.restored) == ((0, 0, 0, 0), 1)
        assert present(snapshot.latest_restored).location == PLACE

    def test_a_late_acknowledgement_updates_the_numbers_of_a_failed_entry_and_no_count(
        self, attempt: AttemptRef, clock: ManualClock
    ) -> None:
        checkpoint_id = self.trigger(attempt)
        clock.advance(700)
        late = make_acknowledgement(attempt, checkpoint_id, state_size_bytes=70, full_size_bytes=900)
        assert self.coordinator.acknowledge(late).result is AcknowledgeResult.DISCARDED
        first = self.tracker.create_snapshot()
        clock.advance(100)
        self.coordinator.acknowledge(late)
        second = self.tracker.create_snapshot()
        assert (self.numbers(second), second.state_size.count) == ((1, 0, 0, 1), 0)
        assert second.latest_failed == first.latest_failed == second.history[0]
        assert second.latest_failed is not None
        assert (second.latest_failed.state_size_bytes, second.latest_failed.full_size_bytes) == (70, 900)
        assert second.latest_failed.late_at is not None
        assert (second.latest_failed.late_at - second.latest_failed.triggered_at).total_seconds() == 700

    def test_a_failure_before_there_was_an_id_raises_total_and_failed_only(self, attempt: AttemptRef) -> None:
        reason = CheckpointFailureReason.TOO_MANY_CHECKPOINT_REQUESTS
        self.tracker.report_failed_checkpoint_without_in_progress(CheckpointException(reason))
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.history, snapshot.latest_failed) == ((1, 0, 0, 1), (), None)
        assert (snapshot.checkpoints.total, snapshot.failures) == (0, (("too_many_checkpoint_requests", 1),))

    def test_a_report_adds_the_root_cause_to_a_failure_that_is_counted_already(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.fail(attempt)
        for _ in range(2):
            self.tracker.report_failed_checkpoint(
                checkpoint_id, CheckpointException(IO, StorageError("bucket is full"))
            )
        snapshot = self.tracker.create_snapshot()
        assert self.numbers(snapshot) == (1, 0, 0, 1)
        assert present(snapshot.latest_failed).failure_cause == "StorageError: bucket is full"

    def test_a_report_without_a_cause_leaves_what_the_row_says(self, attempt: AttemptRef) -> None:
        self.tracker.report_failed_checkpoint(self.fail(attempt, "disk full"), CheckpointException(IO))
        assert present(self.tracker.create_snapshot().latest_failed).failure_cause == "disk full"

    def test_a_report_of_a_checkpoint_that_was_never_known_counts_as_one_without_id(self, attempt: AttemptRef) -> None:
        self.tracker.report_failed_checkpoint(77, CheckpointException(IO))
        assert self.numbers(self.tracker.create_snapshot()) == (1, 0, 0, 1)

    def test_a_report_of_a_checkpoint_that_is_still_in_progress_leaves_it_to_its_end(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.trigger(attempt)
        self.tracker.report_failed_checkpoint(checkpoint_id, CheckpointException(IO))
        assert self.numbers(self.tracker.create_snapshot()) == (1, 1, 0, 0)

    def test_a_report_counts_an_aborted_row_that_nobody_counted_once(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.fail(attempt)
        with self.rows.transaction(JOB) as tx:
            tx.save_statistics(StatisticsRecord(job_id=JOB, operator_id=OPERATOR))
        for _ in range(2):
            self.tracker.report_failed_checkpoint(checkpoint_id, CheckpointException(IO))
        assert self.numbers(self.tracker.create_snapshot()) == (1, 0, 0, 1)

    def test_a_report_never_marks_a_completed_checkpoint_as_failed(self, attempt: AttemptRef) -> None:
        checkpoint_id = self.complete(attempt)
        self.tracker.report_failed_checkpoint(checkpoint_id, CheckpointException(IO, StorageError("bucket is full")))
        snapshot = self.tracker.create_snapshot()
        assert (self.numbers(snapshot), snapshot.history[0].failure_cause) == ((1, 0, 1, 0), "")

    def test_a_snapshot_is_the_same_object_until_something_changed(self, attempt: AttemptRef) -> None:
        self.complete(attempt)
        first = self.tracker.create_snapshot()
        assert self.tracker.create_snapshot() is first
        self.trigger(attempt)
        assert self.tracker.create_snapshot() is not first
        assert self.numbers(first) == (1, 0, 1, 0)

    def test_statistics_survive_the_process_that_counted(self, attempt: AttemptRef) -> None:
        self.complete(attempt)
        self.fail(attempt)
        assert tracker_of(self.rows, OPERATOR).create_snapshot() == self.tracker.create_snapshot()

    def test_forgetting_rows_changes_neither_counts_nor_latest(self, attempt: AttemptRef, clock: ManualClock) -> None:
        ids = [self.fail(attempt), *(self.complete(attempt) for _ in range(3))]
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        maintenance = self.maintenance(clock)
        maintenance.confirm_discards(JOB, tuple(ids))
        before = tracker_of(self.rows, OPERATOR).create_snapshot()
        clock.advance(3 * 86400)
        gone = maintenance.forget(JOB, 86400)
        assert set(ids[:2]) <= set(gone.checkpoint_ids)
        assert tracker_of(self.rows, OPERATOR).create_snapshot() == before

    def test_removing_a_job_removes_its_statistics(self, attempt: AttemptRef, clock: ManualClock) -> None:
        checkpoint_id = self.complete(attempt)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        maintenance, request = self.maintenance(clock), RetireJob(job_id=JOB, is_named=True)
        maintenance.retire(request)
        maintenance.confirm_discards(JOB, (checkpoint_id,))
        assert maintenance.remove(request) == ()
        self.coordinator.register(make_registration())
        assert self.rows.describe(JOB).statistics == ()

    def test_subsumed_checkpoints_wait_for_their_discard(self, attempt: AttemptRef) -> None:
        first = self.complete(attempt)
        for _ in range(2):
            self.complete(attempt)
        assert self.tracker.create_snapshot().awaiting_discard == 1
        self.coordinator.confirm_discards(attempt, (first,))
        assert self.tracker.create_snapshot().awaiting_discard == 0

    def test_statistics_that_cannot_be_read_begin_anew_and_fail_no_checkpoint(self, attempt: AttemptRef) -> None:
        with self.rows.transaction(JOB) as tx:
            tx.save_statistics(StatisticsRecord(job_id=JOB, operator_id=OPERATOR, content={"history": [1]}))
        self.complete(attempt)
        assert self.numbers(self.tracker.create_snapshot()) == (1, 0, 1, 0)

    def test_the_row_stays_small_whatever_is_told(self, clock: ManualClock) -> None:
        attempt = self.coordinator.register(
            make_registration(owner=make_owner(label="😀" * 900), storage_base=f"memory://{'x' * 1400}")
        ).attempt
        counts = {f"{'ж' * 300}{i}": 2**62 for i in range(40)}
        for _ in range(220):
            pending = self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
            clock.advance(86_000 / 220)
            size = {"state_size_bytes": 2**62, "full_size_bytes": 2**62, "counts": counts}
            effects = self.coordinator.acknowledge(make_acknowledgement(attempt, pending, **size)).effects
            deleted = tuple(c.checkpoint_id for c in effects.discards)
            self.coordinator.confirm_discards(attempt, deleted)
        for _ in range(12):
            self.fail(attempt, "😀" * 5000)
        for number in range(6):
            airflow = (("dag_id", "ж" * 80), ("run_id", "ж" * 200), ("task_id", f"{'ж' * 40}{number}"))
            owner = make_owner(label="😀" * 900, airflow=airflow)
            with self.rows.transaction(JOB) as tx:
                refused(tx, OPERATOR, owner, ConcurrentAttemptError("😀" * 5000))
                refused(tx, OPERATOR, replace(owner, airflow=(("dag_id", "😀" * 250),)), ConcurrentAttemptError("no"))
        assert 30_000 < len(json.dumps(self.row_of().content)) < LARGEST_ROW

    def maintenance(self, clock: ManualClock) -> JobMaintenance:
        """Return what removes rows."""
        return JobMaintenance(self.rows, KnownRuns(), NoTokens(), clock)
