"""
What every store of rows must do for savepoints: requested, taken by a stage or in its place, claimed, disposed.

A subclass gives the store as the fixture ``store``.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint import transitions
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    ConfirmRestore,
    DeclineCheckpoint,
    EndSavepoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    RestoreSource,
    SkippedCheckpoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import (
    CheckpointProperties,
    CheckpointRetentionPolicy,
    CheckpointType,
    RestoreMode,
    SavepointFormat,
)
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointRequest,
    CheckpointStatus,
    OnClear,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    PointerNotFoundError,
    SavepointClaimedError,
    StaleAttemptError,
)
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.job_savepoints import begin_savepoint
from tests.messages import (
    ManualClock,
    complete_checkpoint,
    make_acknowledgement,
    make_leadership,
    make_owner,
    make_registration,
    make_savepoint_request,
    make_source,
    present,
)

SAVEPOINTS = "memory://savepoints"
PLACE = f"{SAVEPOINTS}/savepoint-0f6f7c-000000000001"
JOB = job_id_of("sales")


class SavepointContract:
    """The rules, each a test."""

    @pytest.fixture(autouse=True)
    def _parts(self, store: JobStore) -> None:
        self.coordinator = AttemptCoordinator(store)
        self.savepoints = JobSavepoints(store)

    @pytest.fixture
    def running(self) -> AttemptRef:
        """Return an attempt that has completed a checkpoint and goes on."""
        attempt = self.coordinator.register(make_registration()).attempt
        complete_checkpoint(self.coordinator, attempt)
        return attempt

    @pytest.fixture
    def ended(self, running: AttemptRef) -> AttemptRef:
        """Return an attempt that has completed a checkpoint and finished."""
        self.coordinator.finish(FinishAttempt(attempt=running, status=AttemptStatus.FINISHED))
        return running

    @pytest.fixture
    def pending(self, store: JobStore, ended: AttemptRef) -> CheckpointRecord:
        """Return a pending savepoint of the whole job."""
        return begin_savepoint(AlignedCheckpoints(store), ended.operator_id)

    def test_a_pinned_member_stays_until_the_savepoint_ends(
        self, store: JobStore, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        first, second = (self.savepoints.pin(JOB, pending.checkpoint_id, {ended.operator_id: 1}) for _ in range(2))
        assert first == second
        assert "aggregate/1/1/ended" in {a.attempt_id for a in first}
        assert self.pinned(store) == [1]
        rows = AlignedCheckpoints(store)
        leader = rows.lead(make_leadership())
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        rows.abort(AbortCheckpoints(leader=leader, scope=AbortScope.EVERYTHING, reason=reason))
        assert self.pinned(store) == []

    def test_a_checkpoint_that_is_not_retained_is_not_pinned(
        self, store: JobStore, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        for missing in (99, pending.checkpoint_id):
            members = {ended.operator_id: missing}
            with pytest.raises(CheckpointNotFoundError, match="to be retained"):
                self.savepoints.pin(JOB, pending.checkpoint_id, members)
        assert self.pinned(store) == []

    def test_a_pinned_checkpoint_that_is_not_retained_any_more_is_not_pinned_again(
        self, store: JobStore, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        self.savepoints.pin(JOB, pending.checkpoint_id, {ended.operator_id: 1})
        with store.transaction(JOB) as tx:
            transitions.roll_back(tx, [c for c in tx.open_checkpoints(ended.operator_id) if c.checkpoint_id == 1])
        with pytest.raises(CheckpointNotFoundError, match="to be retained"):
            self.savepoints.pin(JOB, pending.checkpoint_id, {ended.operator_id: 1})

    def test_a_checkpoint_from_before_a_fresh_start_is_not_pinned(
        self, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        cleared = make_registration(owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
        assert self.coordinator.register(cleared).generation == 2
        with pytest.raises(CheckpointNotFoundError, match="to be retained"):
            self.savepoints.pin(JOB, pending.checkpoint_id, {ended.operator_id: 1})

    def test_only_a_pending_savepoint_of_the_whole_job_pins(self, running: AttemptRef) -> None:
        own = self.trigger(running, self.ask(running))
        with pytest.raises(CheckpointNotFoundError, match="pending one of the whole job"):
            self.savepoints.pin(JOB, own.checkpoint_id, {})

    def test_an_attempt_is_told_that_its_job_suspends_when_it_has_given_its_member(
        self, store: JobStore, clock: ManualClock, running: AttemptRef
    ) -> None:
        properties = CheckpointProperties.for_sync_savepoint(terminate=False)
        begun = self.begin_of_job(store, running, properties)
        clock.advance(1)
        assert self.confirmed(running, 1).stop is None, "it is from before the trigger"
        reply = complete_checkpoint(self.coordinator, running, has_commit=True)
        assert (reply.effects.stop, reply.checkpoint is None) == (None, False), "its commits are open"
        stop = self.confirmed(running, present(reply.checkpoint).checkpoint_id).stop
        assert (
            stop
            == self.coordinator.checkpoint(JOB, begun.checkpoint_id)
            == complete_checkpoint(self.coordinator, running).effects.stop
        )
        clock.advance(61)
        assert complete_checkpoint(self.coordinator, running).effects.stop is None, "it has expired"

    @pytest.mark.parametrize("terminate", [None, True])
    def test_an_attempt_is_not_told_of_other_savepoints_of_its_job(
        self, store: JobStore, running: AttemptRef, terminate: bool | None
    ) -> None:
        properties = CheckpointProperties.for_savepoint()
        if terminate:
            properties = CheckpointProperties.for_sync_savepoint(terminate=True)
        self.begin_of_job(store, running, properties)
        assert complete_checkpoint(self.coordinator, running).effects.stop is None

    def begin_of_job(self, store: JobStore, attempt: AttemptRef, properties: CheckpointProperties) -> CheckpointRecord:
        """Begin a savepoint of the whole job that a user has requested."""
        begun = begin_savepoint(AlignedCheckpoints(store), attempt.operator_id, properties=properties)
        with store.transaction(JOB) as tx:
            for request in tx.open_requests(ALIGNED_OPERATOR_ID):
                tx.save_request(replace(request, requested_by="anna"))
        return begun

    def confirmed(self, attempt: AttemptRef, checkpoint_id: int) -> OpenEffects:
        """Confirm the commits of a checkpoint."""
        return self.coordinator.confirm_commits(attempt, (checkpoint_id,))

    @staticmethod
    def pinned(store: JobStore) -> list[int]:
        return [o.pinned_checkpoint for o in store.describe(JOB).operators if o.pinned_checkpoint is not None]

    def ask(self, attempt: AttemptRef, **changes: Any) -> CheckpointRequest:
        """Ask for a savepoint of an attempt's operator."""
        return self.savepoints.request(make_savepoint_request(attempt, **changes))

    def trigger(self, attempt: AttemptRef, asked: CheckpointRequest) -> PendingCheckpoint:
        """Let a stage begin a savepoint."""
        return self.coordinator.trigger(
            TriggerCheckpoint(
                attempt=attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=SAVEPOINTS
            )
        )

    def row(self, checkpoint_id: int) -> CheckpointRecord:
        rows = self.coordinator.describe(JOB).checkpoints
        return next(c for c in rows if c.checkpoint_id == checkpoint_id)

    def request_of(self, asked: CheckpointRequest) -> CheckpointRequest:
        """Return a request as it stands now."""
        return next(r for r in self.coordinator.describe(JOB).requests if r.request_key == asked.request_key)

    def test_the_same_key_is_the_same_request(self, running: AttemptRef) -> None:
        first = self.ask(running, request_key="k" * 32)
        assert self.ask(running, request_key="k" * 32, target="memory://elsewhere") == first

    def test_a_savepoint_at_the_end_is_requested_with_the_attempt(self) -> None:
        grant = self.coordinator.register(make_registration(savepoint_at_end=True))
        [asked] = grant.effects.savepoints
        assert (asked.properties.snapshot_type, asked.target) == (CheckpointType.SAVEPOINT_TERMINATE, None)
        assert asked.requested_by == make_owner().label

    def test_a_retry_takes_over_the_request_of_the_attempt_that_failed(self) -> None:
        [asked] = self.coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints
        assert self.coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints == (asked,)

    @pytest.mark.parametrize("run", ["2026-01-01", "2026-01-02"], ids=["its retry", "another run"])
    @pytest.mark.parametrize("status", [None, AttemptStatus.FAILED, AttemptStatus.FINISHED])
    def test_a_savepoint_at_the_end_of_another_attempt_is_not_taken(
        self, run: str, status: AttemptStatus | None
    ) -> None:
        grant = self.coordinator.register(make_registration(savepoint_at_end=True))
        [asked] = grant.effects.savepoints
        if status is not None:
            self.coordinator.finish(FinishAttempt(attempt=grant.attempt, status=status))
        owner = make_owner(run_key=run, run_id="scheduled__2026-01-01" if run == "2026-01-01" else run)
        assert self.coordinator.register(make_registration(owner=owner)).effects.savepoints == ()
        found = self.request_of(asked)
        assert found.status is RequestStatus.FAILED
        assert found.failure_message == "not taken before attempt 2 (dag.task) started"

    def test_another_run_requests_a_savepoint_at_its_own_end(self) -> None:
        [asked] = self.coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints
        owner = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
        [own] = self.coordinator.register(make_registration(owner=owner, savepoint_at_end=True)).effects.savepoints
        assert own.request_key != asked.request_key
        assert self.request_of(asked).status is RequestStatus.FAILED

    def test_a_request_of_a_user_to_terminate_is_left_to_the_next_run(self, running: AttemptRef) -> None:
        asked = self.ask(running, kind=CheckpointType.SAVEPOINT_TERMINATE)
        owner = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
        assert self.coordinator.register(make_registration(owner=owner)).effects.savepoints == (asked,)

    def test_a_savepoint_of_an_unknown_operator_is_refused(self, running: AttemptRef) -> None:
        with pytest.raises(CheckpointNotFoundError, match="no operator"):
            self.ask(running, operator_id="0" * 32)

    def test_only_savepoints_can_be_asked_for(self, running: AttemptRef) -> None:
        with pytest.raises(InvalidConfigurationError, match="savepoint"):
            self.ask(running, kind=CheckpointType.CHECKPOINT)

    def test_a_running_stage_hears_of_a_request_with_its_next_acknowledgement(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        assert complete_checkpoint(self.coordinator, running).effects.savepoints == (asked,)

    def test_a_request_that_is_being_served_is_not_offered_again(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        self.trigger(running, asked)
        assert complete_checkpoint(self.coordinator, running).effects.savepoints == ()

    def test_a_savepoint_takes_the_next_id_of_the_job(self, running: AttemptRef) -> None:
        assert self.trigger(running, self.ask(running)).checkpoint_id == 2
        assert self.coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key())).checkpoint_id == 3

    def test_a_completed_savepoint_ends_its_request(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        begun = self.trigger(running, asked)
        self.coordinator.acknowledge(make_acknowledgement(running, begun))
        found = self.request_of(asked)
        assert (found.status, found.checkpoint_id) == (RequestStatus.COMPLETED, begun.checkpoint_id)

    @pytest.mark.parametrize("kind", list(CheckpointType)[2:])
    @pytest.mark.parametrize("written", SavepointFormat)
    def test_a_savepoint_has_the_properties_that_were_asked_for(
        self, running: AttemptRef, kind: CheckpointType, written: SavepointFormat
    ) -> None:
        asked = self.ask(running, kind=kind, savepoint_format=written)
        properties = self.row(self.trigger(running, asked).checkpoint_id).properties
        assert (properties.snapshot_type, properties.savepoint_format) == (kind, written)

    def test_a_savepoint_is_never_what_a_retry_restores(self, running: AttemptRef) -> None:
        begun = self.trigger(running, self.ask(running))
        self.coordinator.acknowledge(make_acknowledgement(running, begun))
        grant = self.coordinator.register(make_registration())
        assert [c.checkpoint_id for c in grant.candidates] == [1]
        latest = present(self.coordinator.latest(JOB, running.operator_id))
        assert latest.checkpoint_id == 1

    def test_a_savepoint_subsumes_nothing_and_is_never_subsumed(self, running: AttemptRef) -> None:
        ids = []
        for _ in range(3):
            begun = self.trigger(running, self.ask(running))
            reply = self.coordinator.acknowledge(make_acknowledgement(running, begun))
            assert reply.effects.discards == ()
            ids.append(begun.checkpoint_id)
        for _ in range(5):
            complete_checkpoint(self.coordinator, running)
        assert {self.row(i).status for i in ids} == {CheckpointStatus.COMPLETED}

    def test_a_savepoint_aborts_no_pending_checkpoint(self, running: AttemptRef) -> None:
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key()))
        begun = self.trigger(running, self.ask(running))
        self.coordinator.acknowledge(make_acknowledgement(running, begun))
        assert self.row(pending.checkpoint_id).status is CheckpointStatus.PENDING

    def test_a_later_checkpoint_aborts_no_pending_savepoint(self, running: AttemptRef) -> None:
        begun = self.trigger(running, self.ask(running))
        complete_checkpoint(self.coordinator, running)
        assert self.row(begun.checkpoint_id).status is CheckpointStatus.PENDING

    def test_a_savepoint_with_which_the_job_stops_aborts_older_pending_checkpoints(self, running: AttemptRef) -> None:
        pending = self.coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key()))
        asked = self.ask(running, kind=CheckpointType.SAVEPOINT_SUSPEND)
        self.coordinator.acknowledge(make_acknowledgement(running, self.trigger(running, asked)))
        found = self.row(pending.checkpoint_id)
        assert found.failure_reason == CheckpointFailureReason.CHECKPOINT_SUBSUMED

    def test_a_savepoint_may_take_longer_than_a_checkpoint(self, running: AttemptRef, clock: ManualClock) -> None:
        begun = self.trigger(running, self.ask(running))
        clock.advance(20 * 3600)
        reply = self.coordinator.acknowledge(make_acknowledgement(running, begun))
        assert reply.is_completed

    def test_a_savepoint_that_fails_ends_its_request_with_the_reason(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        self.coordinator.decline(
            DeclineCheckpoint(
                attempt=running,
                checkpoint_id=self.trigger(running, asked).checkpoint_id,
                reason=CheckpointFailureReason.IO_EXCEPTION,
                message="the bucket is full",
            )
        )
        found = self.request_of(asked)
        assert (found.status, found.failure_message) == (RequestStatus.FAILED, "the bucket is full")

    def test_a_request_whose_stage_died_is_served_by_the_next_one(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        self.trigger(running, asked)
        grant = self.coordinator.register(make_registration())
        assert [r.request_key for r in grant.effects.savepoints] == [asked.request_key]

    def test_a_request_that_has_ended_cannot_be_served(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        self.coordinator.acknowledge(make_acknowledgement(running, self.trigger(running, asked)))
        with pytest.raises(CheckpointNotFoundError, match="completed"):
            self.trigger(running, asked)

    @pytest.mark.parametrize("half", [{"serves": "k" * 32}, {"savepoint_dir": SAVEPOINTS}])
    def test_a_request_and_a_place_come_together(self, running: AttemptRef, half: dict[str, Any]) -> None:
        with pytest.raises(InvalidConfigurationError, match="found only one"):
            self.coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key(), **half))

    def test_a_savepoint_of_a_running_stage_is_not_taken_in_its_place(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        with pytest.raises(ConcurrentAttemptError, match="which takes the savepoint"):
            self.savepoints.begin(**self.beginning(asked))

    @staticmethod
    def beginning(asked: CheckpointRequest) -> dict[str, Any]:
        """Return the arguments that begin a savepoint in place of the stage."""
        return {"job_id": JOB, "request_key": asked.request_key, "savepoint_dir": SAVEPOINTS, "trigger_key": new_key()}

    @staticmethod
    def ending(begun: CheckpointRecord) -> EndSavepoint:
        """Return the message that such a savepoint is written."""
        return EndSavepoint(job_id=JOB, checkpoint_id=begun.checkpoint_id, metadata_uri=f"{begun.location}/_metadata")

    def begun(self, attempt: AttemptRef) -> CheckpointRecord:
        """Ask for a savepoint and begin it in place of the stage."""
        return self.savepoints.begin(**self.beginning(self.ask(attempt)))

    def completed(self, attempt: AttemptRef) -> CheckpointRecord:
        """Take a savepoint in place of the stage."""
        return self.savepoints.end(self.ending(self.begun(attempt)))

    def test_a_savepoint_of_a_finished_stage_is_taken_in_its_place(self, ended: AttemptRef) -> None:
        done = self.completed(ended)
        assert (done.status, done.completed_at is None) == (CheckpointStatus.COMPLETED, False)
        assert self.coordinator.describe(JOB).requests[0].status is RequestStatus.COMPLETED

    def test_ending_a_savepoint_twice_changes_nothing(self, ended: AttemptRef) -> None:
        done = self.completed(ended)
        again = EndSavepoint(job_id=JOB, checkpoint_id=done.checkpoint_id, failure="too late")
        assert self.savepoints.end(again) == done

    def test_a_copy_that_fails_ends_the_request_and_its_bytes_may_go(self, ended: AttemptRef) -> None:
        begun = self.begun(ended)
        self.savepoints.end(EndSavepoint(job_id=JOB, checkpoint_id=begun.checkpoint_id, failure="disk full"))
        assert self.row(begun.checkpoint_id).awaits_discard
        assert self.coordinator.describe(JOB).requests[0].failure_message == "disk full"

    def test_the_slower_of_two_copies_for_one_request_cannot_complete(self, ended: AttemptRef) -> None:
        asked = self.ask(ended)
        slow, fast = (self.savepoints.begin(**self.beginning(asked)) for _ in range(2))
        assert slow.location != fast.location
        assert self.savepoints.end(self.ending(fast)).is_restorable is False
        lost = self.savepoints.end(self.ending(slow))
        assert (lost.status, lost.awaits_discard) == (CheckpointStatus.ABORTED, True)
        assert self.request_of(asked).checkpoint_id == fast.checkpoint_id

    def test_the_same_beginning_come_twice_is_one(self, ended: AttemptRef) -> None:
        asked = self.ask(ended)
        message = self.beginning(asked)
        first, again = self.savepoints.begin(**message), self.savepoints.begin(**message)
        assert first == again
        assert self.savepoints.end(self.ending(first)).completed_at is not None
        assert self.savepoints.begin(**message).status is CheckpointStatus.COMPLETED
        assert [c.checkpoint_id for c in self.coordinator.describe(JOB).checkpoints] == [1, first.checkpoint_id]

    def test_what_was_aborted_is_discarded_again_while_its_writer_may_go_on(
        self, ended: AttemptRef, clock: ManualClock
    ) -> None:
        begun = self.begun(ended)
        attempt = self.coordinator.register(make_registration()).attempt
        self.coordinator.confirm_discards(attempt, (begun.checkpoint_id,))
        assert self.row(begun.checkpoint_id).awaits_discard
        clock.advance(25 * 3600)
        self.coordinator.confirm_discards(attempt, (begun.checkpoint_id,))
        assert not self.row(begun.checkpoint_id).awaits_discard

    def test_a_savepoint_that_is_being_written_cannot_complete_once_it_is_disposed(self, ended: AttemptRef) -> None:
        begun = self.begun(ended)
        self.savepoints.dispose(begun.location, JOB)
        late = self.savepoints.end(self.ending(begun))
        assert late.status is CheckpointStatus.ABORTED

    def test_a_savepoint_of_the_whole_job_that_is_being_finalized_fails_once_it_is_disposed(
        self, store: JobStore, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        self.savepoints.pin(JOB, pending.checkpoint_id, {ended.operator_id: 1})
        with store.transaction(JOB) as tx:
            finalizing = replace(pending, status=CheckpointStatus.FINALIZING, lease_until=tx.now)
            tx.update_checkpoint(finalizing, expected=CheckpointStatus.PENDING)
        disposed = present(self.savepoints.dispose(pending.location, JOB))
        assert disposed.status is CheckpointStatus.ABORTED
        assert [r.status for r in store.describe(JOB).requests] == [RequestStatus.FAILED]
        assert self.pinned(store) == []

    def test_a_directory_without_metadata_is_found_by_its_name(self, ended: AttemptRef) -> None:
        begun = self.begun(ended)
        found = present(self.savepoints.dispose(begun.location, JobId("0" * 32)))
        assert (found.checkpoint_id, found.status) == (begun.checkpoint_id, CheckpointStatus.ABORTED)

    def test_a_stage_that_begins_ends_a_copy_that_is_under_way(self, ended: AttemptRef) -> None:
        begun = self.begun(ended)
        grant = self.coordinator.register(make_registration())
        assert self.row(begun.checkpoint_id).status is CheckpointStatus.ABORTED
        assert len(grant.effects.savepoints) == 1

    def test_a_checkpoint_cannot_be_ended_or_disposed_as_a_savepoint(self, ended: AttemptRef) -> None:
        for checkpoint_id in (1, 99):
            with pytest.raises(CheckpointNotFoundError, match="savepoint"):
                self.savepoints.end(EndSavepoint(job_id=JOB, checkpoint_id=checkpoint_id))
        with pytest.raises(CheckpointNotFoundError, match="savepoint"):
            self.savepoints.dispose(f"memory://base/{JOB}/chk-1", JOB)

    def test_a_dry_run_of_a_disposal_changes_nothing(self, store: JobStore, ended: AttemptRef) -> None:
        done = self.completed(ended)
        before = store.describe(JOB)
        found = present(self.savepoints.dispose(done.location, JOB, dry_run=True))
        assert found.status is CheckpointStatus.DISPOSED
        after = store.describe(JOB)
        assert (after.job, after.checkpoints) == (before.job, before.checkpoints)

    def test_a_savepoint_of_a_job_that_is_gone_may_be_disposed(self) -> None:
        assert self.savepoints.dispose(PLACE, JOB) is None

    def test_a_disposed_savepoint_is_deleted_by_the_next_caller_and_confirmed(self, ended: AttemptRef) -> None:
        done = self.completed(ended)
        self.savepoints.dispose(done.location, JOB)
        again = present(self.savepoints.dispose(done.location, JOB))
        assert again.status is CheckpointStatus.DISPOSED
        grant = self.coordinator.register(make_registration())
        assert [c.checkpoint_id for c in grant.effects.discards] == [done.checkpoint_id]
        self.coordinator.confirm_discards(grant.attempt, (done.checkpoint_id,))
        assert not self.row(done.checkpoint_id).awaits_discard

    @staticmethod
    def source(pointer: str = PLACE, **changes: Any) -> RestoreSource:
        """Return a savepoint as a stage has read it."""
        return make_source(pointer, **changes)

    def begin_from(self, job: str = "heir", **changes: Any) -> AttemptGrant:
        """Register an attempt that begins from a savepoint."""
        source = changes.pop("source", None) or self.source()
        return self.coordinator.register(make_registration(job_name=job, restore_from=source, **changes))

    def restore(self, job: str = "heir", **changes: Any) -> AttemptRef:
        """Let an attempt begin from a savepoint and say that its state fits."""
        grant = self.begin_from(job, **changes)
        source = changes.get("source") or self.source()
        self.coordinator.confirm_restore(
            ConfirmRestore(
                attempt=grant.attempt,
                checkpoint_id=grant.candidates[0].checkpoint_id,
                claim=source.mode is RestoreMode.CLAIM,
            )
        )
        return grant.attempt

    def kind_of_next(self, attempt: AttemptRef) -> CheckpointType:
        """Complete a checkpoint and return what kind it is."""
        return present(complete_checkpoint(self.coordinator, attempt).checkpoint).properties.snapshot_type

    def test_a_first_attempt_begins_from_the_savepoint(self) -> None:
        grant = self.begin_from()
        assert grant.is_restore
        assert [(c.location, c.metadata_sha256) for c in grant.candidates] == [(PLACE, "a" * 64)]
        assert "started from a savepoint" in grant.start_reason

    def test_a_retry_before_the_first_checkpoint_begins_from_the_savepoint_again(self) -> None:
        self.begin_from()
        assert [c.location for c in self.begin_from().candidates] == [PLACE]

    def test_a_retry_after_a_checkpoint_goes_on_from_that(self) -> None:
        complete_checkpoint(self.coordinator, self.restore())
        assert self.begin_from().candidates[0].location != PLACE

    def test_a_restart_begins_from_the_savepoint_once_more(self) -> None:
        complete_checkpoint(self.coordinator, self.restore())
        owner = make_owner(clear_marker="4/1")
        again = self.begin_from(owner=owner, on_clear=OnClear.RESTART)
        assert [c.location for c in again.candidates] == [PLACE]

    def test_an_unclaimed_savepoint_is_never_deleted(self) -> None:
        attempt = self.restore(num_retained=1)
        replies = [complete_checkpoint(self.coordinator, attempt) for _ in range(3)]
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        grant = self.coordinator.register(make_registration(job_name="heir", owner=make_owner(run_key="other")))
        effects = [*(reply.effects for reply in replies), grant.effects]
        locations = [c.location for each in effects for c in each.discards]
        assert locations
        assert PLACE not in locations

    def test_the_checkpoints_after_an_unclaimed_savepoint_are_full_until_one_completed(self) -> None:
        attempt = self.restore()
        failed = self.coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        reason = CheckpointFailureReason.IO_EXCEPTION
        self.coordinator.decline(DeclineCheckpoint(attempt=attempt, checkpoint_id=failed.checkpoint_id, reason=reason))
        attempt = self.restore()
        kinds = [self.kind_of_next(attempt) for _ in range(2)]
        assert kinds == [CheckpointType.FULL_CHECKPOINT, CheckpointType.CHECKPOINT]

    def test_a_checkpoint_after_the_fall_back_to_an_unclaimed_savepoint_is_full(self) -> None:
        begun = self.begin_from()
        savepoint = begun.candidates[0].checkpoint_id
        self.coordinator.confirm_restore(ConfirmRestore(attempt=begun.attempt, checkpoint_id=savepoint))
        damaged = present(complete_checkpoint(self.coordinator, begun.attempt).checkpoint)
        retry = self.begin_from().attempt
        skipped = (SkippedCheckpoint(checkpoint_id=damaged.checkpoint_id, reason="a file is missing"),)
        self.coordinator.confirm_restore(ConfirmRestore(attempt=retry, checkpoint_id=savepoint, skipped=skipped))
        assert self.kind_of_next(retry) is CheckpointType.FULL_CHECKPOINT

    def test_a_savepoint_in_between_does_not_lift_the_obligation_to_take_a_full_checkpoint(self) -> None:
        attempt = self.restore()
        asked = self.ask(attempt)
        self.coordinator.acknowledge(make_acknowledgement(attempt, self.trigger(attempt, asked)))
        assert self.kind_of_next(attempt) is CheckpointType.FULL_CHECKPOINT

    def test_many_jobs_begin_from_one_unclaimed_savepoint(self) -> None:
        assert all(self.begin_from(f"heir {i}").is_restore for i in range(3))

    def test_a_claimed_savepoint_is_subsumed_and_deleted_like_any_checkpoint(self) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        attempt = self.restore(source=claim, num_retained=1)
        complete_checkpoint(self.coordinator, attempt)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        grant = self.coordinator.register(make_registration(job_name="heir", owner=make_owner(run_key="other")))
        assert [c.location for c in grant.effects.discards] == [PLACE]

    @pytest.mark.parametrize("mode", RestoreMode)
    def test_a_claimed_savepoint_is_refused_to_others(self, mode: RestoreMode) -> None:
        self.restore(source=self.source(mode=RestoreMode.CLAIM))
        with pytest.raises(SavepointClaimedError, match="claimed by another job"):
            self.begin_from("rival", source=self.source(mode=mode))
        with pytest.raises(CheckpointNotFoundError):
            self.coordinator.describe(job_id_of("rival"))

    def test_a_savepoint_is_claimed_under_every_name_of_its_scheme(self) -> None:
        name = PLACE.rpartition("/")[2]
        pointers = [f"{scheme}://lake/savepoints/{name}" for scheme in ("s3a", "s3")]
        claims = [self.source(mode=RestoreMode.CLAIM, pointer=each) for each in pointers]
        self.restore(source=claims[0])
        with pytest.raises(SavepointClaimedError):
            self.begin_from("rival", source=claims[1])
        with pytest.raises(SavepointClaimedError):
            self.savepoints.dispose(pointers[1], JOB)

    def test_a_savepoint_is_disposed_under_every_name_of_its_scheme(self, ended: AttemptRef) -> None:
        begun = self.savepoints.begin(**self.beginning(self.ask(ended, target="s3a://lake/savepoints")))
        disposed = present(self.savepoints.dispose(begun.location.replace("s3a://", "s3://"), JOB))
        assert disposed.location == begun.location

    def test_a_savepoint_that_a_running_attempt_restored_without_a_claim_is_not_disposed(
        self, ended: AttemptRef
    ) -> None:
        begun = self.savepoints.begin(**self.beginning(self.ask(ended, target="s3a://lake/savepoints")))
        pointer = self.savepoints.end(self.ending(begun)).location.replace("s3a://", "s3://")
        source = self.source(pointer=pointer)
        cleared = make_owner(clear_marker="2")
        attempt = self.begin_from("sales", source=source, owner=cleared).attempt
        for place, dry_run in product((begun.location, pointer), (False, True)):
            with pytest.raises(ConcurrentAttemptError, match=r"found that .* runs operator .* wait until it has ended"):
                self.savepoints.dispose(place, JOB, dry_run=dry_run)
        assert self.row(begun.checkpoint_id).status is CheckpointStatus.COMPLETED
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
        disposed = present(self.savepoints.dispose(pointer, JOB))
        assert disposed.status is CheckpointStatus.DISPOSED

    def test_a_savepoint_that_its_own_operator_claimed_under_another_scheme_ends_with_its_checkpoint(
        self, ended: AttemptRef
    ) -> None:
        begun = self.savepoints.begin(**self.beginning(self.ask(ended, target="s3a://lake/savepoints")))
        own = self.savepoints.end(self.ending(begun))
        pointer = own.location.replace("s3a://", "s3://")
        claim = self.source(mode=RestoreMode.CLAIM, pointer=pointer)
        cleared = make_owner(clear_marker="2")
        complete_checkpoint(self.coordinator, self.restore("sales", source=claim, num_retained=1, owner=cleared))
        assert self.row(own.checkpoint_id).status is CheckpointStatus.DISPOSED

    def test_the_one_who_claimed_may_claim_again(self) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        self.restore(source=claim)
        assert self.begin_from(source=claim).is_restore

    def test_a_claimed_savepoint_cannot_be_disposed_by_the_job_that_took_it(self, ended: AttemptRef) -> None:
        place = self.completed(ended).location
        claim = self.source(mode=RestoreMode.CLAIM, pointer=place)
        self.restore(source=claim)
        with pytest.raises(SavepointClaimedError):
            self.savepoints.dispose(place, JOB)

    @pytest.mark.parametrize("mode", RestoreMode)
    def test_a_disposed_savepoint_is_refused_although_its_files_are_still_there(
        self, ended: AttemptRef, mode: RestoreMode
    ) -> None:
        """Garbage collection deletes them later, with the state of a job that would have claimed them."""
        place = self.completed(ended).location
        source = self.source(mode=mode, pointer=place)
        grant = self.begin_from("earlier", source=source)
        for _ in range(2):
            self.savepoints.dispose(place, JOB)
        with pytest.raises(PointerNotFoundError, match="disposed of"):
            self.begin_from(source=source)
        restored, claim = grant.candidates[0].checkpoint_id, mode is RestoreMode.CLAIM
        with pytest.raises(PointerNotFoundError, match="disposed of"):
            self.coordinator.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored, claim=claim))

    def test_a_savepoint_that_was_refused_belongs_to_its_owner_still(self) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        refused = self.begin_from(source=claim).attempt
        effects = self.coordinator.finish(FinishAttempt(attempt=refused, status=AttemptStatus.FAILED))
        assert effects.discards == ()
        assert not self.coordinator.register(make_registration(job_name="heir")).is_restore
        assert self.begin_from("rival", source=claim).is_restore

    def test_a_savepoint_that_was_refused_counts_as_no_failed_checkpoint(self) -> None:
        refused = self.begin_from().attempt
        self.coordinator.finish(FinishAttempt(attempt=refused, status=AttemptStatus.FAILED))
        assert self.coordinator.describe(refused.job_id).statistics == ()

    def test_a_fenced_attempt_cannot_claim(self) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        grant = self.begin_from(source=claim)
        self.coordinator.register(make_registration(job_name="heir"))
        confirm = ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(StaleAttemptError):
            self.coordinator.confirm_restore(confirm)
        assert self.restore("rival", source=claim).epoch == 1

    def test_two_jobs_that_began_from_one_savepoint_cannot_both_claim_it(self) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        slower = self.begin_from("rival", source=claim)
        self.restore(source=claim)
        confirm = ConfirmRestore(attempt=slower.attempt, checkpoint_id=slower.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(SavepointClaimedError):
            self.coordinator.confirm_restore(confirm)

    @pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
    def test_a_claimed_savepoint_obeys_the_retention_of_the_job(self, policy: CheckpointRetentionPolicy) -> None:
        attempt = self.restore(source=self.source(mode=RestoreMode.CLAIM), retention=policy)
        [row] = self.coordinator.describe(attempt.job_id).checkpoints
        assert row.properties == CheckpointProperties.for_checkpoint(policy)

    @pytest.mark.parametrize(
        "pointer",
        [
            f"memory://base/{'b' * 32}/chk-3",
            f"memory://base/{'b' * 32}",
            "memory://base",
            f"memory://base/{'b' * 32}/shared/{'c' * 32}/savepoint-0f6f7c-000000000001",
        ],
    )
    def test_only_a_savepoint_can_be_claimed(self, pointer: str) -> None:
        foreign = self.source(mode=RestoreMode.CLAIM, pointer=pointer)
        with pytest.raises(InvalidConfigurationError, match="no_claim"):
            self.begin_from(source=foreign)

    def test_a_claim_that_was_not_said_at_the_registration_is_checked_too(self) -> None:
        pointer = f"memory://base/{'b' * 32}/chk-3"
        grant = self.begin_from(source=self.source(pointer=pointer))
        confirm = ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(InvalidConfigurationError, match="no_claim"):
            self.coordinator.confirm_restore(confirm)

    def test_metadata_elsewhere_than_in_the_directory_cannot_be_claimed(self) -> None:
        """Without a claim they can be read wherever a user keeps them."""
        elsewhere = {"metadata_uri": "memory://elsewhere/copy of metadata"}
        with pytest.raises(InvalidConfigurationError, match="metadata_uri"):
            self.begin_from(source=self.source(mode=RestoreMode.CLAIM, **elsewhere))
        assert self.begin_from(source=self.source(**elsewhere)).is_restore

    def test_the_coordinator_makes_the_directory_of_a_savepoint(self, running: AttemptRef) -> None:
        """A caller who could name it could have another job's savepoint deleted with it."""
        places = [self.trigger(running, self.ask(running)).location for _ in range(2)]
        assert len(set(places)) == 2
        assert all(place.startswith(f"{SAVEPOINTS}/savepoint-{JOB[:6]}-") for place in places)

    def test_a_savepoint_goes_where_its_request_says_whatever_the_stage_prefers(self, running: AttemptRef) -> None:
        asked = self.ask(running, target="memory://wanted")
        assert self.trigger(running, asked).location.startswith("memory://wanted/savepoint-")

    def test_a_missing_savepoint_is_an_error_where_nothing_else_is_left(self) -> None:
        missing = self.source(problem="Expected a checkpoint at memory://gone, found nothing there.")
        with pytest.raises(CheckpointNotFoundError, match="nothing there"):
            self.begin_from(source=missing)

    def test_a_missing_savepoint_does_not_matter_to_a_retry_with_checkpoints(self) -> None:
        complete_checkpoint(self.coordinator, self.restore())
        missing = self.source(problem="gone")
        assert self.begin_from(source=missing).is_restore

    def test_a_fenced_stage_begins_no_savepoint(self, running: AttemptRef) -> None:
        asked = self.ask(running)
        self.coordinator.register(make_registration())
        with pytest.raises(StaleAttemptError):
            self.trigger(running, asked)
