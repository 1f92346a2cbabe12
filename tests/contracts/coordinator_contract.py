"""
The contract of a checkpoint coordinator, as a suite that every form of it passes.

Subclass :class:`CoordinatorContract` and give the fixtures ``clock``, ``liveness``, ``dags`` and ``coordinator``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import job_id_of, new_key, operator_id_of
from airflow_provider_statecheck.checkpoint.messages import (
    AcknowledgeResult,
    AttemptGrant,
    ConfirmRestore,
    DeclineCheckpoint,
    FinishAttempt,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, OnClear, Transport
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    StaleAttemptError,
)
from airflow_provider_statecheck.gateway.verbs import StageGateway as Gateway
from tests.contracts.across_runs_contract import AcrossRunsContract
from tests.contracts.commit_contract import CommitContract
from tests.contracts.history_contract import HistoryContract, SummaryContract
from tests.contracts.latest_contract import LatestContract
from tests.contracts.operator_uids_contract import OperatorUidsContract
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_owner,
    make_registration,
    present,
)

JOB = job_id_of("sales")
OPERATOR = operator_id_of("aggregate")
FAILED, FINISHED = AttemptStatus.FAILED, AttemptStatus.FINISHED
CLEARED = {"clear_marker": "5/0"}
NEXT_RUN = {"run_key": "2026-01-02", "run_id": "scheduled__2026-01-02"}
NEW_RUN_OF_THE_DATE = {"run_id": "manual__2"}
STARTS = [
    # How the attempt before ended, the owner of the next one, its on_clear, whether it restores, and why.
    (None, {}, OnClear.RESTART, True, "retry after an attempt that never closed and was probably killed"),
    (FINISHED, {}, OnClear.RESUME_UNCHANGED, True, "retry after an attempt that finished"),
    (FAILED, {}, OnClear.RESUME, True, "retry after an attempt that failed"),
    (None, CLEARED, OnClear.RESUME_UNCHANGED, True, "cleared before it finished"),
    (FAILED, CLEARED, OnClear.RESUME_UNCHANGED, True, "cleared before it finished"),
    (FINISHED, CLEARED, OnClear.RESUME_UNCHANGED, False, "cleared after success"),
    (FAILED, CLEARED, OnClear.RESUME, True, "cleared before it finished, and on_clear is resume"),
    (FINISHED, CLEARED, OnClear.RESUME, True, "cleared after success, and on_clear is resume"),
    (FAILED, CLEARED, OnClear.RESTART, False, "cleared before it finished, and on_clear is restart"),
    (FINISHED, CLEARED, OnClear.RESTART, False, "cleared after success, and on_clear is restart"),
    (FINISHED, NEXT_RUN, OnClear.RESUME_UNCHANGED, True, "a new run continues the state of the job"),
    (FAILED, NEXT_RUN, OnClear.RESTART, True, "a new run continues the state of the job"),
    (FAILED, NEW_RUN_OF_THE_DATE, OnClear.RESUME, False, "a new run with the logical date of an earlier run"),
]


def _statuses(gateway: Gateway) -> dict[int, CheckpointStatus]:
    return {c.checkpoint_id: c.status for c in gateway.describe(JOB).checkpoints}


def _finish(gateway: Gateway, grant: AttemptGrant, status: AttemptStatus) -> None:
    gateway.finish(FinishAttempt(attempt=grant.attempt, status=status))


class CoordinatorContract(
    CommitContract, AcrossRunsContract, HistoryContract, LatestContract, OperatorUidsContract, SummaryContract
):
    """What holds for every coordinator, whatever keeps its rows and whatever lies in between."""

    loses_replies = False
    """Whether the way to the coordinator loses the first reply of each call, so that each is repeated."""

    @pytest.fixture(autouse=True)
    def _gateway(self, coordinator: Gateway) -> None:
        self.gateway = coordinator

    # --- register

    def test_first_attempt_starts_fresh_with_epoch_and_generation_one(self) -> None:
        grant = self.gateway.register(make_registration())
        assert (grant.attempt.epoch, grant.generation, grant.is_restore) == (1, 1, False)
        assert grant.start_reason == "first attempt"

    def test_registration_repeated_with_one_key_gives_the_same_epoch(self) -> None:
        request = make_registration()
        first = self.gateway.register(request)
        complete_checkpoint(self.gateway, first.attempt)
        again = self.gateway.register(request)
        assert again.attempt == first.attempt
        assert not again.is_restore

    def test_registration_of_a_replaced_attempt_repeated_is_stale(self) -> None:
        request = make_registration()
        self.gateway.register(request)
        self.gateway.register(make_registration())
        with pytest.raises(StaleAttemptError):
            self.gateway.register(request)

    def test_retry_restores_the_newest_completed_checkpoint(self) -> None:
        first = self.gateway.register(make_registration())
        complete_checkpoint(self.gateway, first.attempt)
        complete_checkpoint(self.gateway, first.attempt)
        retry = self.gateway.register(make_registration())
        assert retry.is_restore
        assert [c.checkpoint_id for c in retry.candidates] == [2, 1]
        assert retry.generation == first.generation

    def test_retry_without_any_completed_checkpoint_is_a_fresh_start_in_a_new_generation(self) -> None:
        self.gateway.register(make_registration())
        retry = self.gateway.register(make_registration())
        assert (retry.is_restore, retry.generation) == (False, 2)

    def test_pending_checkpoint_of_the_fenced_attempt_is_aborted_and_awaits_its_discard(self) -> None:
        first = self.gateway.register(make_registration())
        self.gateway.trigger(TriggerCheckpoint(attempt=first.attempt, request_key=new_key()))
        retry = self.gateway.register(make_registration())
        assert _statuses(self.gateway) == {1: CheckpointStatus.ABORTED}
        assert [c.checkpoint_id for c in retry.effects.discards] == [1]

    def test_fenced_attempt_is_recorded_as_fenced(self) -> None:
        self.gateway.register(make_registration())
        self.gateway.register(make_registration())
        assert [a.status for a in self.gateway.describe(JOB).attempts] == [AttemptStatus.FENCED, AttemptStatus.RUNNING]

    def test_settings_out_of_range_are_refused_before_anything_is_written(self) -> None:
        with pytest.raises(InvalidConfigurationError, match="num_retained"):
            self.gateway.register(make_registration(num_retained=0))
        with pytest.raises(CheckpointNotFoundError):
            self.gateway.describe(JOB)

    # --- clear and retry

    @pytest.mark.parametrize(("ended", "changes", "on_clear", "restores", "reason"), STARTS)
    def test_an_attempt_restores_or_starts_over_as_the_table_says(
        self, ended: AttemptStatus | None, changes: dict[str, str], on_clear: OnClear, restores: bool, reason: str
    ) -> None:
        first = self.gateway.register(make_registration(on_clear=on_clear))
        complete_checkpoint(self.gateway, first.attempt)
        if ended is not None:
            _finish(self.gateway, first, ended)
        second = self.gateway.register(make_registration(owner=make_owner(**changes), on_clear=on_clear))
        assert (second.is_restore, second.start_reason) == (restores, reason)
        assert second.generation == (1 if restores else 2)
        assert second.verify_fingerprints == (on_clear is not OnClear.RESUME)

    def test_new_run_under_an_old_logical_date_resumes_in_the_test_namespace(self) -> None:
        name = "test/sales"
        first = self.gateway.register(make_registration(job_name=name))
        complete_checkpoint(self.gateway, first.attempt)
        again = self.gateway.register(make_registration(job_name=name, owner=make_owner(run_id="temporary__2")))
        assert again.is_restore

    def test_a_restart_that_dies_before_its_first_checkpoint_does_not_fall_back_to_the_old_generation(self) -> None:
        first = self.gateway.register(make_registration())
        complete_checkpoint(self.gateway, first.attempt)
        _finish(self.gateway, first, AttemptStatus.FINISHED)
        owner = make_owner(clear_marker="5/0")
        self.gateway.register(make_registration(owner=owner))
        retry = self.gateway.register(make_registration(owner=owner))
        assert not retry.is_restore

    # --- trigger, acknowledge, decline

    def test_ids_start_at_one_and_are_never_used_again(self) -> None:
        first = self.gateway.register(make_registration())
        trigger = TriggerCheckpoint(attempt=first.attempt, request_key=new_key())
        assert self.gateway.trigger(trigger).checkpoint_id == 1
        second = self.gateway.register(make_registration())
        assert self.gateway.trigger(replace(trigger, attempt=second.attempt, request_key=new_key())).checkpoint_id == 2

    def test_ids_begin_above_what_the_storage_holds_and_the_attempt_is_warned(self) -> None:
        """Rows that came from a backup know less than the storage."""
        grant = self.gateway.register(make_registration(newest_on_storage=7))
        assert "contains checkpoint 7, which is not in the database" in grant.warning
        trigger = TriggerCheckpoint(attempt=grant.attempt, request_key=new_key())
        assert self.gateway.trigger(trigger).checkpoint_id == 8
        again = self.gateway.register(make_registration(newest_on_storage=8))
        assert again.warning == ""
        assert self.gateway.trigger(replace(trigger, attempt=again.attempt, request_key=new_key())).checkpoint_id == 9

    def test_a_driver_that_registers_again_tells_what_the_storage_holds(self) -> None:
        request = make_registration()
        attempt = self.gateway.register(request).attempt
        again = self.gateway.register(replace(request, newest_on_storage=7))
        assert again.attempt == attempt
        assert "contains checkpoint 7" in again.warning
        assert self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key())).checkpoint_id == 8

    @pytest.mark.parametrize("found", [-1, 10_000_001])
    def test_a_number_on_storage_that_no_coordinator_draws_is_refused(self, found: int) -> None:
        with pytest.raises(InvalidConfigurationError, match="newest_on_storage"):
            self.gateway.register(make_registration(newest_on_storage=found))

    def test_a_pending_checkpoint_carries_the_key_that_its_metadata_repeat(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        key = new_key()
        assert self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=key)).request_key == key

    @pytest.mark.parametrize(
        "uri", [f"memory://base/{'f' * 32}/chk-1/_metadata", f"memory://base/{JOB}/chk-1", "memory://base/_metadata"]
    )
    def test_metadata_elsewhere_than_in_the_directory_of_the_checkpoint_are_refused(self, uri: str) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        with pytest.raises(InvalidConfigurationError, match="metadata_uri"):
            complete_checkpoint(self.gateway, attempt, metadata_uri=uri)
        assert _statuses(self.gateway) == {1: CheckpointStatus.PENDING}

    def test_trigger_repeated_with_one_key_leaves_one_pending_checkpoint(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        request = TriggerCheckpoint(attempt=attempt, request_key=new_key())
        assert self.gateway.trigger(request) == self.gateway.trigger(request)
        assert len(self.gateway.describe(JOB).checkpoints) == 1

    def test_acknowledgement_completes_and_keeps_what_it_said(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        message = make_acknowledgement(attempt, pending.checkpoint_id, state_size_bytes=7, full_size_bytes=9)
        reply = self.gateway.acknowledge(message)
        latest = self.gateway.latest(JOB, OPERATOR)
        assert reply.result is (AcknowledgeResult.DUPLICATE if self.loses_replies else AcknowledgeResult.SUCCESS)
        assert latest is not None
        assert (latest.metadata_uri, latest.state_size_bytes, latest.full_size_bytes, latest.counts) == (
            message.metadata_uri,
            7,
            9,
            {"snapshots": 1},
        )

    def test_repeated_acknowledgement_answers_with_the_open_effects(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        complete_checkpoint(self.gateway, attempt)
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        message = make_acknowledgement(attempt, pending.checkpoint_id)
        first, again = self.gateway.acknowledge(message), self.gateway.acknowledge(message)
        assert again.result is AcknowledgeResult.DUPLICATE
        assert again.effects == first.effects
        assert [c.checkpoint_id for c in again.effects.discards] == [1]

    def test_acknowledgement_of_an_unknown_checkpoint_changes_nothing(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        assert self.gateway.acknowledge(make_acknowledgement(attempt, 99)).result is AcknowledgeResult.UNKNOWN
        assert self.gateway.latest(JOB, OPERATOR) is None

    def test_acknowledgement_after_the_timeout_is_discarded(self, clock: ManualClock) -> None:
        attempt = self.gateway.register(make_registration(checkpoint_timeout_seconds=10)).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        clock.advance(11)
        reply = self.gateway.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id))
        row = self.gateway.describe(JOB).checkpoints[0]
        assert reply.result is AcknowledgeResult.DISCARDED
        assert row.failure_reason == CheckpointFailureReason.CHECKPOINT_EXPIRED
        assert [c.checkpoint_id for c in reply.effects.discards] == [1]

    def test_a_checkpoint_whose_id_is_drawn_before_its_work_has_the_time_that_it_asked_for(
        self, clock: ManualClock
    ) -> None:
        attempt = self.gateway.register(make_registration(checkpoint_timeout_seconds=10)).attempt
        request = TriggerCheckpoint(attempt=attempt, request_key=new_key(), timeout_seconds=100.0)
        pending = self.gateway.trigger(request)
        clock.advance(99)
        assert self.gateway.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id)).is_completed
        late = self.gateway.trigger(replace(request, request_key=new_key()))
        clock.advance(101)
        assert not self.gateway.acknowledge(make_acknowledgement(attempt, late.checkpoint_id)).is_completed

    @pytest.mark.parametrize("seconds", [0.0, -1.0, 1e12])
    def test_a_time_out_of_range_is_refused(self, seconds: float) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        with pytest.raises(InvalidConfigurationError, match="timeout_seconds"):
            self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key(), timeout_seconds=seconds))
        assert self.gateway.describe(JOB).checkpoints == ()

    def test_time_within_a_job_increases_although_the_clock_is_behind(self, clock: ManualClock) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        clock.advance(100)
        first = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        clock.advance(-50)
        second = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        assert timedelta(0) < second.triggered_at - first.triggered_at < timedelta(milliseconds=1)

    def test_a_job_follows_a_clock_that_was_far_ahead_and_was_set_right(self, clock: ManualClock) -> None:
        attempt = self.gateway.register(make_registration(checkpoint_timeout_seconds=600.0)).attempt
        clock.advance(24 * 3600)
        complete_checkpoint(self.gateway, attempt)
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key())).checkpoint_id
        clock.advance(-24 * 3600)
        assert self.gateway.describe(JOB).read_at == clock.now()
        self.gateway.confirm_discards(attempt, ())
        view = self.gateway.describe(JOB)
        done, open_row = view.checkpoints
        # The call comes after all that the rows tell.
        assert timedelta(0) < view.job.seen_at - clock.now() < timedelta(milliseconds=1)
        assert (done.triggered_at, done.completed_at) == (clock.now(), clock.now())
        assert open_row.triggered_at == clock.now()
        clock.advance(600)
        assert open_row.expires_at == clock.now()
        assert not self.gateway.acknowledge(make_acknowledgement(attempt, pending)).is_completed

    def test_the_order_of_times_remains_when_a_clock_that_was_far_ahead_is_set_right(self, clock: ManualClock) -> None:
        attempt = self.gateway.register(make_registration(num_retained=5)).attempt
        complete_checkpoint(self.gateway, attempt)
        clock.advance(24 * 3600)
        for _ in range(3):
            clock.advance(60)
            complete_checkpoint(self.gateway, attempt)
        clock.advance(-24 * 3600)
        self.gateway.confirm_discards(attempt, ())
        times = [c.completed_at for c in self.gateway.describe(JOB).checkpoints]
        assert len(set(times)) == 4
        assert times == sorted(times, key=lambda time: time or clock.now())
        assert times[-1] == clock.now()

    def test_a_checkpoint_that_was_pending_before_the_clock_was_far_ahead_keeps_its_time(
        self, clock: ManualClock
    ) -> None:
        attempt = self.gateway.register(make_registration(checkpoint_timeout_seconds=600.0)).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        other = self.gateway.register(make_registration(uid="other")).attempt
        clock.advance(24 * 3600)
        complete_checkpoint(self.gateway, other)
        clock.advance(-24 * 3600 + 300)
        complete_checkpoint(self.gateway, other)
        row = self.gateway.describe(JOB).checkpoints[0]
        assert (row.triggered_at, row.expires_at) == (pending.triggered_at, pending.expires_at)
        assert self.gateway.acknowledge(make_acknowledgement(attempt, pending.checkpoint_id)).is_completed

    def test_completion_aborts_older_pending_checkpoints_of_the_operator(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        complete_checkpoint(self.gateway, attempt)
        rows = self.gateway.describe(JOB).checkpoints
        assert [r.status for r in rows] == [CheckpointStatus.ABORTED, CheckpointStatus.COMPLETED]
        assert rows[0].failure_reason == CheckpointFailureReason.CHECKPOINT_SUBSUMED

    def test_decline_aborts_once_and_keeps_its_reason(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        reason = CheckpointFailureReason.IO_EXCEPTION
        message = DeclineCheckpoint(
            attempt=attempt, checkpoint_id=pending.checkpoint_id, reason=reason, message="disk full"
        )
        self.gateway.decline(message)
        self.gateway.decline(replace(message, reason=CheckpointFailureReason.CHECKPOINT_DECLINED))
        row = self.gateway.describe(JOB).checkpoints[0]
        assert (row.failure_reason, row.failure_message) == (reason, "disk full")

    def test_decline_of_a_completed_checkpoint_changes_nothing(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt)
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        self.gateway.decline(DeclineCheckpoint(attempt=attempt, checkpoint_id=1, reason=reason))
        assert _statuses(self.gateway) == {1: CheckpointStatus.COMPLETED}

    # --- retention, effects, pins

    def test_the_newest_two_are_retained_by_default(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        for _ in range(2):
            complete_checkpoint(self.gateway, attempt)
        reply = complete_checkpoint(self.gateway, attempt)
        assert _statuses(self.gateway) == {
            1: CheckpointStatus.SUBSUMED,
            2: CheckpointStatus.COMPLETED,
            3: CheckpointStatus.COMPLETED,
        }
        assert [c.checkpoint_id for c in reply.effects.discards] == [1]
        assert [c.checkpoint_id for c in reply.effects.retained] == [2, 3]

    def test_a_confirmed_discard_is_no_longer_open(self) -> None:
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(2):
            complete_checkpoint(self.gateway, attempt)
        self.gateway.confirm_discards(attempt, (1,))
        assert complete_checkpoint(self.gateway, attempt).effects.discards[0].checkpoint_id == 2

    def test_a_discard_of_a_retained_checkpoint_cannot_be_confirmed(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        complete_checkpoint(self.gateway, attempt)
        self.gateway.confirm_discards(attempt, (1, 99))
        latest = present(self.gateway.latest(JOB, OPERATOR))
        assert latest.discarded_at is None

    def test_a_discard_of_a_pinned_checkpoint_cannot_be_confirmed(self) -> None:
        """Its bytes may be gone by mistake, and a row that says so would hide it."""
        complete_checkpoint(self.gateway, self.gateway.register(make_registration(num_retained=1)).attempt)
        attempt = self.gateway.register(make_registration(num_retained=1)).attempt
        assert complete_checkpoint(self.gateway, attempt).effects.discards == ()
        self.gateway.confirm_discards(attempt, (1,))
        [pinned, _] = self.gateway.describe(JOB).checkpoints
        assert (pinned.status, pinned.discarded_at) == (CheckpointStatus.SUBSUMED, None)

    def test_an_attempt_cannot_confirm_discards_of_another_operator(self) -> None:
        mine = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(2):
            complete_checkpoint(self.gateway, mine)
        other = self.gateway.register(make_registration(uid="other")).attempt
        self.gateway.confirm_discards(other, (1,))
        assert self.gateway.describe(JOB).checkpoints[0].discarded_at is None

    def test_latest_is_what_a_restore_would_start_from(self) -> None:
        first = self.gateway.register(make_registration())
        for _ in range(2):
            complete_checkpoint(self.gateway, first.attempt)
        retry = self.gateway.register(make_registration())
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry.attempt, checkpoint_id=1, skipped=skipped))
        latest = present(self.gateway.latest(JOB, OPERATOR))
        assert latest.checkpoint_id == 1
        _finish(self.gateway, retry, AttemptStatus.FINISHED)
        self.gateway.register(make_registration(owner=make_owner(clear_marker="6/1")))
        assert self.gateway.latest(JOB, OPERATOR) is None, "a new generation has none yet"

    def test_what_an_attempt_restored_from_is_pinned_until_it_ends(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration(num_retained=1)).attempt)
        retry = self.gateway.register(make_registration(num_retained=1))
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry.attempt, checkpoint_id=1))
        reply = complete_checkpoint(self.gateway, retry.attempt)
        assert _statuses(self.gateway)[1] is CheckpointStatus.SUBSUMED
        assert reply.effects.discards == ()
        assert [c.checkpoint_id for c in reply.effects.retained] == [1, 2]
        effects = self.gateway.finish(FinishAttempt(attempt=retry.attempt, status=AttemptStatus.FINISHED))
        assert [c.checkpoint_id for c in effects.discards] == [1]

    def test_an_attempt_that_starts_over_has_restored_nothing(self) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration(num_retained=1)).attempt)
        retry = self.gateway.register(make_registration(num_retained=1))
        for _ in range(2):
            self.gateway.confirm_restore(ConfirmRestore(attempt=retry.attempt, checkpoint_id=None))
        assert self.gateway.describe(JOB).attempts[-1].restored_from is None
        assert _statuses(self.gateway)[1] is CheckpointStatus.COMPLETED, "until the attempt completes one of its own"
        reply = complete_checkpoint(self.gateway, retry.attempt)
        assert [c.checkpoint_id for c in reply.effects.discards] == [1]

    def test_an_unusable_checkpoint_takes_no_place_in_retention(self) -> None:
        first = self.gateway.register(make_registration())
        for _ in range(2):
            complete_checkpoint(self.gateway, first.attempt)
        retry = self.gateway.register(make_registration())
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry.attempt, checkpoint_id=1, skipped=skipped))
        complete_checkpoint(self.gateway, retry.attempt)
        assert _statuses(self.gateway) == dict.fromkeys((1, 2, 3), CheckpointStatus.COMPLETED)
        complete_checkpoint(self.gateway, retry.attempt)
        assert [i for i, s in _statuses(self.gateway).items() if s is CheckpointStatus.SUBSUMED] == [1, 2]

    def test_a_checkpoint_that_can_be_read_again_counts_again(self) -> None:
        first = self.gateway.register(make_registration())
        for _ in range(2):
            complete_checkpoint(self.gateway, first.attempt)
        retry = self.gateway.register(make_registration())
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="checksum differs"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=retry.attempt, checkpoint_id=1, skipped=skipped))
        again = self.gateway.register(make_registration())
        assert [c.checkpoint_id for c in again.candidates] == [2, 1]
        self.gateway.confirm_restore(ConfirmRestore(attempt=again.attempt, checkpoint_id=2))
        assert [c.unusable_reason for c in self.gateway.describe(JOB).checkpoints] == [None, None]

    def test_restore_of_something_that_is_not_a_completed_checkpoint_is_refused(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        self.gateway.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        with pytest.raises(CheckpointNotFoundError, match="pending"):
            self.gateway.confirm_restore(ConfirmRestore(attempt=attempt, checkpoint_id=1))

    def test_two_operators_of_one_job_never_subsume_or_discard_checkpoints_of_each_other(self) -> None:
        slow = self.gateway.register(make_registration(uid="slow", num_retained=1))
        fast = self.gateway.register(make_registration(uid="fast", num_retained=1))
        complete_checkpoint(self.gateway, slow.attempt)
        slow_reply = complete_checkpoint(self.gateway, slow.attempt)
        assert [c.checkpoint_id for c in slow_reply.effects.discards] == [1]
        for _ in range(4):
            complete_checkpoint(self.gateway, fast.attempt)
        fast_reply = complete_checkpoint(self.gateway, fast.attempt)
        assert self.gateway.latest(JOB, slow.attempt.operator_id) == slow_reply.checkpoint
        assert self.gateway.latest(JOB, fast.attempt.operator_id) == fast_reply.checkpoint
        # A stage deletes what only it does not retain.
        assert [c.checkpoint_id for c in fast_reply.effects.discards] == [3, 4, 5, 6]

    # --- reading

    def test_a_job_is_read_at_the_coordinators_own_time(self, clock: ManualClock) -> None:
        complete_checkpoint(self.gateway, self.gateway.register(make_registration()).attempt)
        clock.advance(90)
        assert self.gateway.describe(JOB).read_at == clock.now()

    def test_time_does_not_run_backwards_for_a_reader(self, clock: ManualClock) -> None:
        self.gateway.register(make_registration())
        clock.advance(-90)
        view = self.gateway.describe(JOB)
        assert view.read_at == view.job.seen_at

    # --- the end of an attempt

    def test_finish_aborts_what_is_pending_and_may_be_repeated(self) -> None:
        grant = self.gateway.register(make_registration())
        self.gateway.trigger(TriggerCheckpoint(attempt=grant.attempt, request_key=new_key()))
        message = FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED, message="boom")
        assert self.gateway.finish(message) == self.gateway.finish(message)
        attempt = self.gateway.describe(JOB).attempts[0]
        assert (attempt.status, attempt.message) == (AttemptStatus.FAILED, "boom")
        assert _statuses(self.gateway) == {1: CheckpointStatus.ABORTED}

    def test_an_error_whose_text_no_database_keeps_ends_an_attempt(self) -> None:
        """It may quote data, and be longer than a message may be."""
        attempt = self.gateway.register(make_registration()).attempt
        text = "row \0 \udcff of " + "x" * 2_000_000
        self.gateway.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED, message=text))
        [row] = self.gateway.describe(JOB).attempts
        assert (row.status, row.message[:8], len(row.message)) == (AttemptStatus.FAILED, "row \ufffd ? ", 2000)

    def test_an_attempt_cannot_end_as_running(self) -> None:
        grant = self.gateway.register(make_registration())
        with pytest.raises(InvalidConfigurationError):
            self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.RUNNING))

    def test_an_attempt_fails_with_its_task_after_its_stage_has_ended(self) -> None:
        """As if it had failed after its last checkpoint: a task that is cleared after its failure resumes."""
        grant = self.gateway.register(make_registration())
        complete_checkpoint(self.gateway, grant.attempt)
        _finish(self.gateway, grant, AttemptStatus.FINISHED)
        ended = self.gateway.describe(JOB).attempts[0]
        failure = FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED, message="after the end")
        assert self.gateway.finish(failure) == self.gateway.finish(failure)
        [row] = self.gateway.describe(JOB).attempts
        assert (row.status, row.message, row.ended_at) == (AttemptStatus.FAILED, "after the end", ended.ended_at)
        cleared = self.gateway.register(make_registration(owner=make_owner(clear_marker="another")))
        assert cleared.is_restore

    def test_only_a_task_makes_a_failed_attempt_a_finished_one(self) -> None:
        """A driver that outlives its failed task does not know of the failure."""
        grant = self.gateway.register(make_registration())
        failure = FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED, message="killed")
        self.gateway.finish(failure)
        success = FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED)
        self.gateway.finish(success)
        assert self.gateway.describe(JOB).attempts[0].status is AttemptStatus.FAILED
        self.gateway.finish(replace(success, is_of_task=True))
        [row] = self.gateway.describe(JOB).attempts
        assert (row.status, row.message) == (AttemptStatus.FINISHED, "killed")

    def test_an_ended_attempt_takes_no_more_checkpoints(self) -> None:
        grant = self.gateway.register(make_registration())
        _finish(self.gateway, grant, AttemptStatus.FINISHED)
        with pytest.raises(StaleAttemptError, match="already ended"):
            self.gateway.trigger(TriggerCheckpoint(attempt=grant.attempt, request_key=new_key()))

    def test_damaged_snapshots_are_told_to_later_attempts_of_the_generation(self) -> None:
        first = self.gateway.register(make_registration())
        complete_checkpoint(self.gateway, first.attempt)
        for uris in (("file:///a/1-x",), ("file:///b/1-y", "file:///a/1-x")):
            grant = self.gateway.register(make_registration())
            message = FinishAttempt(
                attempt=grant.attempt, status=AttemptStatus.FAILED, message="boom", damaged_snapshots=uris
            )
            assert self.gateway.finish(message) == self.gateway.finish(message)
        retry = self.gateway.register(make_registration())
        assert (first.damaged_snapshots, retry.is_restore) == ((), True)
        assert retry.damaged_snapshots == ("file:///a/1-x", "file:///b/1-y")
        fresh = self.gateway.register(
            make_registration(on_clear=OnClear.RESTART, owner=make_owner(clear_marker="cleared"))
        )
        assert (fresh.is_restore, fresh.damaged_snapshots) == (False, ())

    def test_the_grant_tells_each_checkpoint_directory_of_the_operator_once(self) -> None:
        self.gateway.register(make_registration(uid="other", storage_base="memory://of-another"))
        for base in ("memory://old", "memory://new", "memory://old"):
            _finish(self.gateway, self.gateway.register(make_registration(storage_base=base)), AttemptStatus.FAILED)
        registration = make_registration(storage_base="memory://new")
        assert self.gateway.register(registration).storage_bases == ("memory://new", "memory://old")
        assert self.gateway.register(registration).storage_bases == ("memory://new", "memory://old")

    def test_only_the_latest_damaged_snapshots_are_kept(self) -> None:
        uris = tuple(f"file:///a/{number}" for number in range(150))
        grant = self.gateway.register(make_registration())
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FAILED, damaged_snapshots=uris))
        assert self.gateway.describe(JOB).operators[0].damaged_snapshots == uris[-100:]

    # --- adoption: a driver outlives the Airflow task that started it

    def test_a_later_try_of_the_same_task_adopts_the_running_attempt(self) -> None:
        owner = make_owner(transport=Transport.MAILBOX)
        attempt = self.gateway.register(make_registration(owner=owner)).attempt
        self.gateway.adopt(attempt, make_owner(label="try 2", transport=Transport.HTTP))
        complete_checkpoint(self.gateway, attempt)
        row = self.gateway.describe(JOB).attempts[0]
        assert (row.status, row.owner.label) == (AttemptStatus.RUNNING, "try 2")
        assert row.owner.transport is Transport.MAILBOX, "its driver calls as before"

    @pytest.mark.parametrize("other", [{"logical_task": "dag/other"}, {"run_id": "manual__1"}], ids=["task", "run"])
    def test_another_task_or_run_cannot_adopt_an_attempt(self, other: dict[str, str]) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        with pytest.raises(StaleAttemptError, match="register an attempt instead"):
            self.gateway.adopt(attempt, make_owner(**other))

    def test_an_ended_attempt_cannot_be_adopted(self) -> None:
        grant = self.gateway.register(make_registration())
        _finish(self.gateway, grant, AttemptStatus.FAILED)
        with pytest.raises(StaleAttemptError, match="already ended"):
            self.gateway.adopt(grant.attempt, make_owner())

    def test_a_try_that_was_deferred_adopts_its_attempt_also_if_the_driver_has_ended_it(self) -> None:
        owner = make_owner(ti_id="try-1")
        grant = self.gateway.register(make_registration(owner=owner))
        _finish(self.gateway, grant, AttemptStatus.FINISHED)
        self.gateway.adopt(grant.attempt, owner)
        assert [each.status for each in self.gateway.describe(JOB).attempts] == [AttemptStatus.FINISHED]
        with pytest.raises(StaleAttemptError, match="already ended"):
            self.gateway.adopt(grant.attempt, make_owner(ti_id="try-2"))

    # --- the fence

    def test_a_zombie_changes_nothing(self) -> None:
        zombie = self.gateway.register(make_registration(num_retained=1)).attempt
        for _ in range(2):
            complete_checkpoint(self.gateway, zombie)
        pending = self.gateway.trigger(TriggerCheckpoint(attempt=zombie, request_key=new_key()))
        self.gateway.register(make_registration(num_retained=1))
        before = self.gateway.describe(JOB)
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        calls: list[Callable[[], object]] = [
            lambda: self.gateway.trigger(TriggerCheckpoint(attempt=zombie, request_key=new_key())),
            lambda: self.gateway.acknowledge(make_acknowledgement(zombie, pending.checkpoint_id)),
            lambda: self.gateway.acknowledge(make_acknowledgement(zombie, 2)),
            lambda: self.gateway.decline(DeclineCheckpoint(attempt=zombie, checkpoint_id=2, reason=reason)),
            lambda: self.gateway.confirm_discards(zombie, (1,)),
            lambda: self.gateway.confirm_restore(ConfirmRestore(attempt=zombie, checkpoint_id=2)),
            lambda: self.gateway.finish(FinishAttempt(attempt=zombie, status=AttemptStatus.FINISHED)),
            lambda: self.gateway.finish(
                FinishAttempt(attempt=zombie, status=AttemptStatus.FAILED, damaged_snapshots=("file:///a/1-x",))
            ),
        ]
        for call in calls:
            with pytest.raises(StaleAttemptError, match="replaced by attempt 2"):
                call()
        after = self.gateway.describe(JOB)
        assert (after.attempts, after.checkpoints, after.operators) == (
            before.attempts,
            before.checkpoints,
            before.operators,
        )

    def test_an_attempt_that_never_registered_is_refused(self) -> None:
        attempt = self.gateway.register(make_registration()).attempt
        with pytest.raises(StaleAttemptError, match="not registered"):
            self.gateway.trigger(TriggerCheckpoint(attempt=replace(attempt, epoch=7), request_key=new_key()))

    def test_a_lost_history_is_an_error_and_never_an_empty_start(self) -> None:
        first = self.gateway.register(make_registration())
        complete_checkpoint(self.gateway, first.attempt)
        self.lose_completed_checkpoints()
        with pytest.raises(NoRestorableCheckpointError, match="restart"):
            self.gateway.register(make_registration())

    def lose_completed_checkpoints(self) -> None:
        """Subsume every completed checkpoint behind the coordinator's back; subclasses know where the rows are."""
        pytest.skip("this form of the coordinator does not let a test reach its rows")
