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
from airflow_provider_statecheck.checkpoint.aligned.rows import (
    AbortCheckpoints,
    AbortScope,
)
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, job_id_of, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    AttemptRef,
    BeginSavepoint,
    ConfirmCommits,
    ConfirmDiscards,
    ConfirmRestore,
    DeclineCheckpoint,
    DisposeSavepoint,
    EndSavepoint,
    FinishAttempt,
    OpenEffects,
    PendingCheckpoint,
    PinParts,
    RequestSavepoint,
    RestoreSource,
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
    CheckpointStatus,
    OnClear,
    RequestStatus,
    SnapshotRequest,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    PointerNotFoundError,
    SnapshotClaimedError,
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
)

SAVEPOINTS = "memory://savepoints"
PLACE = f"{SAVEPOINTS}/savepoint-0f6f7c-000000000001"
JOB = job_id_of("sales")


class SavepointContract:
    """The rules, each a test."""

    @pytest.fixture
    def clock(self) -> ManualClock:
        """Return the store's clock."""
        return ManualClock()

    @pytest.fixture
    def coordinator(self, store: JobStore) -> AttemptCoordinator:
        """Return the coordinator of the stages."""
        return AttemptCoordinator(store)

    @pytest.fixture
    def savepoints(self, store: JobStore) -> JobSavepoints:
        """Return the subject."""
        return JobSavepoints(store)

    @pytest.fixture
    def running(self, coordinator: AttemptCoordinator) -> AttemptRef:
        """Return an attempt that has completed a checkpoint and goes on."""
        attempt = coordinator.register(make_registration()).attempt
        complete_checkpoint(coordinator, attempt)
        return attempt

    @pytest.fixture
    def ended(self, coordinator: AttemptCoordinator, running: AttemptRef) -> AttemptRef:
        """Return an attempt that has completed a checkpoint and finished."""
        coordinator.finish(FinishAttempt(attempt=running, status=AttemptStatus.FINISHED))
        return running

    @pytest.fixture
    def pending(self, store: JobStore, ended: AttemptRef) -> CheckpointRecord:
        """Return a pending savepoint of the whole job."""
        return begin_savepoint(AlignedCheckpoints(store), ended.operator_id)

    def test_a_pinned_part_stays_until_the_savepoint_ends(
        self, store: JobStore, savepoints: JobSavepoints, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        message = PinParts(job_id=JOB, checkpoint_id=pending.checkpoint_id, parts={ended.operator_id: 1})
        first, second = savepoints.pin(message), savepoints.pin(message)
        assert first == second
        assert "aggregate/1/1/ended" in {a.attempt_id for a in first.acknowledgements}
        assert self.pinned(store) == [1]
        rows = AlignedCheckpoints(store)
        leader = rows.lead(make_leadership())
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        rows.abort(AbortCheckpoints(leader=leader, scope=AbortScope.EVERYTHING, reason=reason))
        assert self.pinned(store) == []

    def test_a_checkpoint_that_is_not_retained_is_not_pinned(
        self, store: JobStore, savepoints: JobSavepoints, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        for missing in (99, pending.checkpoint_id):
            parts = {ended.operator_id: missing}
            with pytest.raises(CheckpointNotFoundError, match="to be retained"):
                savepoints.pin(PinParts(job_id=JOB, checkpoint_id=pending.checkpoint_id, parts=parts))
        assert self.pinned(store) == []

    def test_a_pinned_checkpoint_that_is_not_retained_any_more_is_not_pinned_again(
        self, store: JobStore, savepoints: JobSavepoints, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        message = PinParts(job_id=JOB, checkpoint_id=pending.checkpoint_id, parts={ended.operator_id: 1})
        savepoints.pin(message)
        with store.transaction(JOB) as tx:
            transitions.roll_back(tx, [c for c in tx.open_checkpoints(ended.operator_id) if c.checkpoint_id == 1])
        with pytest.raises(CheckpointNotFoundError, match="to be retained"):
            savepoints.pin(message)

    def test_a_checkpoint_from_before_a_fresh_start_is_not_pinned(
        self,
        coordinator: AttemptCoordinator,
        savepoints: JobSavepoints,
        ended: AttemptRef,
        pending: CheckpointRecord,
    ) -> None:
        cleared = make_registration(owner=make_owner(clear_marker="cleared"), on_clear=OnClear.RESTART)
        assert coordinator.register(cleared).generation == 2
        with pytest.raises(CheckpointNotFoundError, match="to be retained"):
            savepoints.pin(PinParts(job_id=JOB, checkpoint_id=pending.checkpoint_id, parts={ended.operator_id: 1}))

    def test_only_a_pending_savepoint_of_the_whole_job_pins(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        own = self.trigger(coordinator, running, self.ask(savepoints, running))
        with pytest.raises(CheckpointNotFoundError, match="pending one of the whole job"):
            savepoints.pin(PinParts(job_id=JOB, checkpoint_id=own.checkpoint_id, parts={}))

    def test_an_attempt_is_told_that_its_job_suspends_when_it_has_given_its_part(
        self, store: JobStore, coordinator: AttemptCoordinator, clock: ManualClock, running: AttemptRef
    ) -> None:
        properties = CheckpointProperties.for_sync_savepoint(terminate=False)
        begun = self.begin_of_job(store, running, properties)
        clock.advance(1)
        assert self.confirmed(coordinator, running, 1).stop is None, "it is from before the trigger"
        reply = complete_checkpoint(coordinator, running, has_commit=True)
        assert (reply.effects.stop, reply.checkpoint is None) == (None, False), "its commits are open"
        assert reply.checkpoint is not None
        stop = self.confirmed(coordinator, running, reply.checkpoint.checkpoint_id).stop
        assert (
            stop
            == coordinator.checkpoint(JOB, begun.checkpoint_id)
            == complete_checkpoint(coordinator, running).effects.stop
        )
        clock.advance(61)
        assert complete_checkpoint(coordinator, running).effects.stop is None, "it has expired"

    @pytest.mark.parametrize("terminate", [None, True])
    def test_an_attempt_is_not_told_of_other_savepoints_of_its_job(
        self, store: JobStore, coordinator: AttemptCoordinator, running: AttemptRef, terminate: bool | None
    ) -> None:
        properties = CheckpointProperties.for_savepoint()
        if terminate:
            properties = CheckpointProperties.for_sync_savepoint(terminate=True)
        self.begin_of_job(store, running, properties)
        assert complete_checkpoint(coordinator, running).effects.stop is None

    def begin_of_job(self, store: JobStore, attempt: AttemptRef, properties: CheckpointProperties) -> CheckpointRecord:
        """Begin a savepoint of the whole job that a user has requested."""
        begun = begin_savepoint(AlignedCheckpoints(store), attempt.operator_id, properties=properties)
        with store.transaction(JOB) as tx:
            for request in tx.open_requests(ALIGNED_OPERATOR_ID):
                tx.save_request(replace(request, requested_by="anna"))
        return begun

    @staticmethod
    def confirmed(coordinator: AttemptCoordinator, attempt: AttemptRef, checkpoint_id: int) -> OpenEffects:
        """Confirm the commits of a checkpoint."""
        return coordinator.confirm_commits(ConfirmCommits(attempt=attempt, checkpoint_ids=(checkpoint_id,)))

    @staticmethod
    def pinned(store: JobStore) -> list[int]:
        """Return the pinned checkpoints."""
        return [o.pinned_checkpoint for o in store.describe(JOB).operators if o.pinned_checkpoint is not None]

    @staticmethod
    def ask(savepoints: JobSavepoints, attempt: AttemptRef, **changes: Any) -> SnapshotRequest:
        """Ask for a savepoint of an attempt's operator."""
        values = {"job_id": attempt.job_id, "operator_id": attempt.operator_id, "request_key": new_key()}
        return savepoints.request(RequestSavepoint(**values | changes))

    @staticmethod
    def trigger(coordinator: AttemptCoordinator, attempt: AttemptRef, asked: SnapshotRequest) -> PendingCheckpoint:
        """Let a stage begin a savepoint."""
        return coordinator.trigger(
            TriggerCheckpoint(
                attempt=attempt, request_key=new_key(), serves=asked.request_key, savepoint_dir=SAVEPOINTS
            )
        )

    @staticmethod
    def row(coordinator: AttemptCoordinator, checkpoint_id: int) -> CheckpointRecord:
        """Return the row of a checkpoint."""
        rows = coordinator.describe(JOB).checkpoints
        return next(c for c in rows if c.checkpoint_id == checkpoint_id)

    @staticmethod
    def request_of(coordinator: AttemptCoordinator, asked: SnapshotRequest) -> SnapshotRequest:
        """Return a request as it stands now."""
        return next(r for r in coordinator.describe(JOB).requests if r.request_key == asked.request_key)

    def test_the_same_key_is_the_same_request(self, savepoints: JobSavepoints, running: AttemptRef) -> None:
        first = self.ask(savepoints, running, request_key="k" * 32)
        assert self.ask(savepoints, running, request_key="k" * 32, target="memory://elsewhere") == first

    def test_a_savepoint_at_the_end_is_requested_with_the_attempt(self, coordinator: AttemptCoordinator) -> None:
        grant = coordinator.register(make_registration(savepoint_at_end=True))
        [asked] = grant.effects.savepoints
        assert (asked.properties.snapshot_type, asked.target) == (CheckpointType.SAVEPOINT_TERMINATE, None)
        assert asked.requested_by == make_owner().label

    def test_a_retry_takes_over_the_request_of_the_attempt_that_failed(self, coordinator: AttemptCoordinator) -> None:
        [asked] = coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints
        assert coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints == (asked,)

    @pytest.mark.parametrize("run", ["2026-01-01", "2026-01-02"], ids=["its retry", "another run"])
    @pytest.mark.parametrize("status", [None, AttemptStatus.FAILED, AttemptStatus.FINISHED])
    def test_a_savepoint_at_the_end_of_another_attempt_is_not_taken(
        self, coordinator: AttemptCoordinator, run: str, status: AttemptStatus | None
    ) -> None:
        grant = coordinator.register(make_registration(savepoint_at_end=True))
        [asked] = grant.effects.savepoints
        if status is not None:
            coordinator.finish(FinishAttempt(attempt=grant.attempt, status=status))
        owner = make_owner(run_key=run, run_id="scheduled__2026-01-01" if run == "2026-01-01" else run)
        assert coordinator.register(make_registration(owner=owner)).effects.savepoints == ()
        found = self.request_of(coordinator, asked)
        assert found.status is RequestStatus.FAILED
        assert found.failure_message == "not taken before attempt 2 (dag.task) started"

    def test_another_run_requests_a_savepoint_at_its_own_end(self, coordinator: AttemptCoordinator) -> None:
        [asked] = coordinator.register(make_registration(savepoint_at_end=True)).effects.savepoints
        owner = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
        [own] = coordinator.register(make_registration(owner=owner, savepoint_at_end=True)).effects.savepoints
        assert own.request_key != asked.request_key
        assert self.request_of(coordinator, asked).status is RequestStatus.FAILED

    def test_a_request_of_a_user_to_terminate_is_left_to_the_next_run(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running, kind=CheckpointType.SAVEPOINT_TERMINATE)
        owner = make_owner(run_key="2026-01-02", run_id="scheduled__2026-01-02")
        assert coordinator.register(make_registration(owner=owner)).effects.savepoints == (asked,)

    def test_a_savepoint_of_an_unknown_operator_is_refused(
        self, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        with pytest.raises(CheckpointNotFoundError, match="no operator"):
            self.ask(savepoints, running, operator_id="0" * 32)

    def test_only_savepoints_can_be_asked_for(self, savepoints: JobSavepoints, running: AttemptRef) -> None:
        with pytest.raises(InvalidConfigurationError, match="savepoint"):
            self.ask(savepoints, running, kind=CheckpointType.CHECKPOINT)

    def test_a_running_stage_hears_of_a_request_with_its_next_acknowledgement(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        assert complete_checkpoint(coordinator, running).effects.savepoints == (asked,)

    def test_a_request_that_is_being_served_is_not_offered_again(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        self.trigger(coordinator, running, asked)
        assert complete_checkpoint(coordinator, running).effects.savepoints == ()

    def test_a_savepoint_takes_the_next_id_of_the_job(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        assert self.trigger(coordinator, running, self.ask(savepoints, running)).checkpoint_id == 2
        assert coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key())).checkpoint_id == 3

    def test_a_completed_savepoint_ends_its_request(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        begun = self.trigger(coordinator, running, asked)
        coordinator.acknowledge(make_acknowledgement(running, begun))
        found = self.request_of(coordinator, asked)
        assert (found.status, found.checkpoint_id) == (RequestStatus.COMPLETED, begun.checkpoint_id)

    @pytest.mark.parametrize("kind", list(CheckpointType)[2:])
    @pytest.mark.parametrize("written", SavepointFormat)
    def test_a_savepoint_has_the_properties_that_were_asked_for(
        self,
        coordinator: AttemptCoordinator,
        savepoints: JobSavepoints,
        running: AttemptRef,
        kind: CheckpointType,
        written: SavepointFormat,
    ) -> None:
        asked = self.ask(savepoints, running, kind=kind, savepoint_format=written)
        properties = self.row(coordinator, self.trigger(coordinator, running, asked).checkpoint_id).properties
        assert (properties.snapshot_type, properties.savepoint_format) == (kind, written)

    def test_a_savepoint_is_never_what_a_retry_restores(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        begun = self.trigger(coordinator, running, self.ask(savepoints, running))
        coordinator.acknowledge(make_acknowledgement(running, begun))
        grant = coordinator.register(make_registration())
        assert [c.checkpoint_id for c in grant.candidates] == [1]
        latest = coordinator.latest(JOB, running.operator_id)
        assert latest is not None
        assert latest.checkpoint_id == 1

    def test_a_savepoint_subsumes_nothing_and_is_never_subsumed(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        ids = []
        for _ in range(3):
            begun = self.trigger(coordinator, running, self.ask(savepoints, running))
            reply = coordinator.acknowledge(make_acknowledgement(running, begun))
            assert reply.effects.discards == ()
            ids.append(begun.checkpoint_id)
        for _ in range(5):
            complete_checkpoint(coordinator, running)
        assert {self.row(coordinator, i).status for i in ids} == {CheckpointStatus.COMPLETED}

    def test_a_savepoint_aborts_no_pending_checkpoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        pending = coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key()))
        begun = self.trigger(coordinator, running, self.ask(savepoints, running))
        coordinator.acknowledge(make_acknowledgement(running, begun))
        assert self.row(coordinator, pending.checkpoint_id).status is CheckpointStatus.PENDING

    def test_a_later_checkpoint_aborts_no_pending_savepoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        begun = self.trigger(coordinator, running, self.ask(savepoints, running))
        complete_checkpoint(coordinator, running)
        assert self.row(coordinator, begun.checkpoint_id).status is CheckpointStatus.PENDING

    def test_a_savepoint_with_which_the_job_stops_aborts_older_pending_checkpoints(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        pending = coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key()))
        asked = self.ask(savepoints, running, kind=CheckpointType.SAVEPOINT_SUSPEND)
        coordinator.acknowledge(make_acknowledgement(running, self.trigger(coordinator, running, asked)))
        found = self.row(coordinator, pending.checkpoint_id)
        assert found.failure_reason == CheckpointFailureReason.CHECKPOINT_SUBSUMED

    def test_a_savepoint_may_take_longer_than_a_checkpoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef, clock: ManualClock
    ) -> None:
        begun = self.trigger(coordinator, running, self.ask(savepoints, running))
        clock.advance(20 * 3600)
        reply = coordinator.acknowledge(make_acknowledgement(running, begun))
        assert reply.is_completed

    def test_a_savepoint_that_fails_ends_its_request_with_the_reason(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        coordinator.decline(
            DeclineCheckpoint(
                attempt=running,
                checkpoint_id=self.trigger(coordinator, running, asked).checkpoint_id,
                reason=CheckpointFailureReason.IO_EXCEPTION,
                message="the bucket is full",
            )
        )
        found = self.request_of(coordinator, asked)
        assert (found.status, found.failure_message) == (RequestStatus.FAILED, "the bucket is full")

    def test_a_request_whose_stage_died_is_served_by_the_next_one(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        self.trigger(coordinator, running, asked)
        grant = coordinator.register(make_registration())
        assert [r.request_key for r in grant.effects.savepoints] == [asked.request_key]

    def test_a_request_that_has_ended_cannot_be_served(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        coordinator.acknowledge(make_acknowledgement(running, self.trigger(coordinator, running, asked)))
        with pytest.raises(CheckpointNotFoundError, match="completed"):
            self.trigger(coordinator, running, asked)

    @pytest.mark.parametrize("half", [{"serves": "k" * 32}, {"savepoint_dir": SAVEPOINTS}])
    def test_a_request_and_a_place_come_together(
        self, coordinator: AttemptCoordinator, running: AttemptRef, half: dict[str, Any]
    ) -> None:
        with pytest.raises(InvalidConfigurationError, match="found only one"):
            coordinator.trigger(TriggerCheckpoint(attempt=running, request_key=new_key(), **half))

    def test_a_savepoint_of_a_running_stage_is_not_taken_in_its_place(
        self, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        with pytest.raises(ConcurrentAttemptError, match="which takes the savepoint"):
            savepoints.begin(self.beginning(asked))

    @staticmethod
    def beginning(asked: SnapshotRequest) -> BeginSavepoint:
        """Return the message that begins a savepoint in place of the stage."""
        return BeginSavepoint(
            job_id=JOB, request_key=asked.request_key, savepoint_dir=SAVEPOINTS, trigger_key=new_key()
        )

    @staticmethod
    def ending(begun: CheckpointRecord) -> EndSavepoint:
        """Return the message that such a savepoint is written."""
        return EndSavepoint(job_id=JOB, checkpoint_id=begun.checkpoint_id, metadata_uri=f"{begun.location}/_metadata")

    def begun(self, savepoints: JobSavepoints, attempt: AttemptRef) -> CheckpointRecord:
        """Ask for a savepoint and begin it in place of the stage."""
        return savepoints.begin(self.beginning(self.ask(savepoints, attempt)))

    def completed(self, savepoints: JobSavepoints, attempt: AttemptRef) -> CheckpointRecord:
        """Take a savepoint in place of the stage."""
        return savepoints.end(self.ending(self.begun(savepoints, attempt)))

    def test_a_savepoint_of_a_finished_stage_is_taken_in_its_place(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        done = self.completed(savepoints, ended)
        assert (done.status, done.completed_at is None) == (CheckpointStatus.COMPLETED, False)
        assert coordinator.describe(JOB).requests[0].status is RequestStatus.COMPLETED

    def test_ending_a_savepoint_twice_changes_nothing(self, savepoints: JobSavepoints, ended: AttemptRef) -> None:
        done = self.completed(savepoints, ended)
        again = EndSavepoint(job_id=JOB, checkpoint_id=done.checkpoint_id, failure="too late")
        assert savepoints.end(again) == done

    def test_a_copy_that_fails_ends_the_request_and_its_bytes_may_go(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = self.begun(savepoints, ended)
        savepoints.end(EndSavepoint(job_id=JOB, checkpoint_id=begun.checkpoint_id, failure="disk full"))
        assert self.row(coordinator, begun.checkpoint_id).awaits_discard
        assert coordinator.describe(JOB).requests[0].failure_message == "disk full"

    def test_the_slower_of_two_copies_for_one_request_cannot_complete(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, ended)
        slow, fast = (savepoints.begin(self.beginning(asked)) for _ in range(2))
        assert slow.location != fast.location
        assert savepoints.end(self.ending(fast)).is_restorable is False
        lost = savepoints.end(self.ending(slow))
        assert (lost.status, lost.awaits_discard) == (CheckpointStatus.ABORTED, True)
        assert self.request_of(coordinator, asked).checkpoint_id == fast.checkpoint_id

    def test_the_same_beginning_come_twice_is_one(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, ended)
        message = self.beginning(asked)
        first, again = savepoints.begin(message), savepoints.begin(message)
        assert first == again
        assert savepoints.end(self.ending(first)).completed_at is not None
        assert savepoints.begin(message).status is CheckpointStatus.COMPLETED
        assert [c.checkpoint_id for c in coordinator.describe(JOB).checkpoints] == [1, first.checkpoint_id]

    def test_what_was_aborted_is_discarded_again_while_its_writer_may_go_on(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef, clock: ManualClock
    ) -> None:
        begun = self.begun(savepoints, ended)
        attempt = coordinator.register(make_registration()).attempt
        confirm = ConfirmDiscards(job_id=JOB, checkpoint_ids=(begun.checkpoint_id,), attempt=attempt)
        coordinator.confirm_discards(confirm)
        assert self.row(coordinator, begun.checkpoint_id).awaits_discard
        clock.advance(25 * 3600)
        coordinator.confirm_discards(confirm)
        assert not self.row(coordinator, begun.checkpoint_id).awaits_discard

    def test_a_savepoint_that_is_being_written_cannot_complete_once_it_is_disposed(
        self, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = self.begun(savepoints, ended)
        savepoints.dispose(DisposeSavepoint(pointer=begun.location, job_id=JOB))
        late = savepoints.end(self.ending(begun))
        assert late.status is CheckpointStatus.ABORTED

    def test_a_savepoint_of_the_whole_job_that_is_being_finalized_fails_once_it_is_disposed(
        self, store: JobStore, savepoints: JobSavepoints, ended: AttemptRef, pending: CheckpointRecord
    ) -> None:
        savepoints.pin(PinParts(job_id=JOB, checkpoint_id=pending.checkpoint_id, parts={ended.operator_id: 1}))
        with store.transaction(JOB) as tx:
            finalizing = replace(pending, status=CheckpointStatus.FINALIZING, lease_until=tx.now)
            tx.update_checkpoint(finalizing, expected=CheckpointStatus.PENDING)
        disposed = savepoints.dispose(DisposeSavepoint(pointer=pending.location, job_id=JOB)).checkpoint
        assert disposed is not None
        assert disposed.status is CheckpointStatus.ABORTED
        assert [r.status for r in store.describe(JOB).requests] == [RequestStatus.FAILED]
        assert self.pinned(store) == []

    def test_a_directory_without_metadata_is_found_by_its_name(
        self, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = self.begun(savepoints, ended)
        found = savepoints.dispose(DisposeSavepoint(pointer=begun.location, job_id=JobId("0" * 32))).checkpoint
        assert found is not None
        assert (found.checkpoint_id, found.status) == (begun.checkpoint_id, CheckpointStatus.ABORTED)

    def test_a_stage_that_begins_ends_a_copy_that_is_under_way(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = self.begun(savepoints, ended)
        grant = coordinator.register(make_registration())
        assert self.row(coordinator, begun.checkpoint_id).status is CheckpointStatus.ABORTED
        assert len(grant.effects.savepoints) == 1

    def test_a_checkpoint_cannot_be_ended_or_disposed_as_a_savepoint(
        self, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        for checkpoint_id in (1, 99):
            with pytest.raises(CheckpointNotFoundError, match="savepoint"):
                savepoints.end(EndSavepoint(job_id=JOB, checkpoint_id=checkpoint_id))
        with pytest.raises(CheckpointNotFoundError, match="savepoint"):
            savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=f"memory://base/{JOB}/chk-1"))

    def test_a_dry_run_of_a_disposal_changes_nothing(
        self, store: JobStore, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        done = self.completed(savepoints, ended)
        before = store.describe(JOB)
        found = savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=done.location, dry_run=True)).checkpoint
        assert found is not None
        assert found.status is CheckpointStatus.DISPOSED
        after = store.describe(JOB)
        assert (after.job, after.checkpoints) == (before.job, before.checkpoints)

    def test_a_savepoint_of_a_job_that_is_gone_may_be_disposed(self, savepoints: JobSavepoints) -> None:
        assert savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=PLACE)).checkpoint is None

    def test_a_disposed_savepoint_is_deleted_by_the_next_caller_and_confirmed(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        done = self.completed(savepoints, ended)
        savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=done.location))
        again = savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=done.location))
        assert again.checkpoint is not None
        assert again.checkpoint.status is CheckpointStatus.DISPOSED
        grant = coordinator.register(make_registration())
        assert [c.checkpoint_id for c in grant.effects.discards] == [done.checkpoint_id]
        coordinator.confirm_discards(
            ConfirmDiscards(job_id=JOB, checkpoint_ids=(done.checkpoint_id,), attempt=grant.attempt)
        )
        assert not self.row(coordinator, done.checkpoint_id).awaits_discard

    def source(self, **changes: Any) -> RestoreSource:
        """Return a savepoint as a stage has read it."""
        values: dict[str, Any] = {
            "pointer": PLACE,
            "metadata_uri": f"{PLACE}/_metadata",
            "metadata_size": 10,
            "metadata_sha256": "a" * 64,
        }
        return RestoreSource(**values | changes)

    def begin_from(self, coordinator: AttemptCoordinator, job: str = "heir", **changes: Any) -> AttemptGrant:
        """Register an attempt that begins from a savepoint."""
        source = changes.pop("source", None) or self.source()
        return coordinator.register(make_registration(job_name=job, restore_from=source, **changes))

    def restore(self, coordinator: AttemptCoordinator, job: str = "heir", **changes: Any) -> AttemptRef:
        """Let an attempt begin from a savepoint and say that its state fits."""
        grant = self.begin_from(coordinator, job, **changes)
        source = changes.get("source") or self.source()
        coordinator.confirm_restore(
            ConfirmRestore(
                attempt=grant.attempt,
                checkpoint_id=grant.candidates[0].checkpoint_id,
                claim=source.mode is RestoreMode.CLAIM,
            )
        )
        return grant.attempt

    def kind_of_next(self, coordinator: AttemptCoordinator, attempt: AttemptRef) -> CheckpointType:
        """Complete a checkpoint and return what kind it is."""
        completed = complete_checkpoint(coordinator, attempt).checkpoint
        assert completed is not None
        return completed.properties.snapshot_type

    def test_a_first_attempt_begins_from_the_savepoint(self, coordinator: AttemptCoordinator) -> None:
        grant = self.begin_from(coordinator)
        assert grant.is_restore
        assert [(c.location, c.metadata_sha256) for c in grant.candidates] == [(PLACE, "a" * 64)]
        assert "started from a savepoint" in grant.start_reason

    def test_a_retry_before_the_first_checkpoint_begins_from_the_savepoint_again(
        self, coordinator: AttemptCoordinator
    ) -> None:
        self.begin_from(coordinator)
        assert [c.location for c in self.begin_from(coordinator).candidates] == [PLACE]

    def test_a_retry_after_a_checkpoint_goes_on_from_that(self, coordinator: AttemptCoordinator) -> None:
        complete_checkpoint(coordinator, self.restore(coordinator))
        assert self.begin_from(coordinator).candidates[0].location != PLACE

    def test_a_restart_begins_from_the_savepoint_once_more(self, coordinator: AttemptCoordinator) -> None:
        complete_checkpoint(coordinator, self.restore(coordinator))
        owner = make_owner(clear_marker="4/1")
        again = self.begin_from(coordinator, owner=owner, on_clear=OnClear.RESTART)
        assert [c.location for c in again.candidates] == [PLACE]

    def test_an_unclaimed_savepoint_is_never_deleted(self, coordinator: AttemptCoordinator) -> None:
        attempt = self.restore(coordinator, num_retained=1)
        replies = [complete_checkpoint(coordinator, attempt) for _ in range(3)]
        coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        grant = coordinator.register(make_registration(job_name="heir", owner=make_owner(run_key="other")))
        effects = [*(reply.effects for reply in replies), grant.effects]
        locations = [c.location for each in effects for c in each.discards]
        assert locations
        assert PLACE not in locations

    def test_the_checkpoints_after_an_unclaimed_savepoint_are_full_until_one_completed(
        self, coordinator: AttemptCoordinator
    ) -> None:
        attempt = self.restore(coordinator)
        failed = coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
        reason = CheckpointFailureReason.IO_EXCEPTION
        coordinator.decline(DeclineCheckpoint(attempt=attempt, checkpoint_id=failed.checkpoint_id, reason=reason))
        attempt = self.restore(coordinator)
        kinds = [self.kind_of_next(coordinator, attempt) for _ in range(2)]
        assert kinds == [CheckpointType.FULL_CHECKPOINT, CheckpointType.CHECKPOINT]

    def test_a_savepoint_in_between_does_not_lift_the_obligation_to_take_a_full_checkpoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints
    ) -> None:
        attempt = self.restore(coordinator)
        asked = self.ask(savepoints, attempt)
        coordinator.acknowledge(make_acknowledgement(attempt, self.trigger(coordinator, attempt, asked)))
        assert self.kind_of_next(coordinator, attempt) is CheckpointType.FULL_CHECKPOINT

    def test_many_jobs_begin_from_one_unclaimed_savepoint(self, coordinator: AttemptCoordinator) -> None:
        assert all(self.begin_from(coordinator, f"heir {i}").is_restore for i in range(3))

    def test_a_claimed_savepoint_is_subsumed_and_deleted_like_any_checkpoint(
        self, coordinator: AttemptCoordinator
    ) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        attempt = self.restore(coordinator, source=claim, num_retained=1)
        complete_checkpoint(coordinator, attempt)
        coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        grant = coordinator.register(make_registration(job_name="heir", owner=make_owner(run_key="other")))
        assert [c.location for c in grant.effects.discards] == [PLACE]

    @pytest.mark.parametrize("mode", RestoreMode)
    def test_a_claimed_savepoint_is_refused_to_others(self, coordinator: AttemptCoordinator, mode: RestoreMode) -> None:
        self.restore(coordinator, source=self.source(mode=RestoreMode.CLAIM))
        with pytest.raises(SnapshotClaimedError, match="claimed by another job"):
            self.begin_from(coordinator, "rival", source=self.source(mode=mode))
        with pytest.raises(CheckpointNotFoundError):
            coordinator.describe(job_id_of("rival"))

    def test_a_savepoint_is_claimed_under_every_name_of_its_scheme(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints
    ) -> None:
        name = PLACE.rpartition("/")[2]
        pointers = [f"{scheme}://lake/savepoints/{name}" for scheme in ("s3a", "s3")]
        claims = [
            self.source(mode=RestoreMode.CLAIM, pointer=each, metadata_uri=f"{each}/_metadata") for each in pointers
        ]
        self.restore(coordinator, source=claims[0])
        with pytest.raises(SnapshotClaimedError):
            self.begin_from(coordinator, "rival", source=claims[1])
        with pytest.raises(SnapshotClaimedError):
            savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=pointers[1]))

    def test_a_savepoint_is_disposed_under_every_name_of_its_scheme(
        self, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = savepoints.begin(self.beginning(self.ask(savepoints, ended, target="s3a://lake/savepoints")))
        disposed = savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=begun.location.replace("s3a://", "s3://")))
        assert disposed.checkpoint is not None
        assert disposed.checkpoint.location == begun.location

    def test_a_savepoint_that_a_running_attempt_restored_without_a_claim_is_not_disposed(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = savepoints.begin(self.beginning(self.ask(savepoints, ended, target="s3a://lake/savepoints")))
        pointer = savepoints.end(self.ending(begun)).location.replace("s3a://", "s3://")
        source = self.source(pointer=pointer, metadata_uri=f"{pointer}/_metadata")
        cleared = make_owner(clear_marker="2")
        attempt = self.begin_from(coordinator, "sales", source=source, owner=cleared).attempt
        for place, dry_run in product((begun.location, pointer), (False, True)):
            with pytest.raises(ConcurrentAttemptError, match=r"found that .* runs operator .* wait until it has ended"):
                savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=place, dry_run=dry_run))
        assert self.row(coordinator, begun.checkpoint_id).status is CheckpointStatus.COMPLETED
        coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FAILED))
        disposed = savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=pointer)).checkpoint
        assert disposed is not None
        assert disposed.status is CheckpointStatus.DISPOSED

    def test_a_savepoint_that_its_own_operator_claimed_under_another_scheme_ends_with_its_checkpoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        begun = savepoints.begin(self.beginning(self.ask(savepoints, ended, target="s3a://lake/savepoints")))
        own = savepoints.end(self.ending(begun))
        pointer = own.location.replace("s3a://", "s3://")
        claim = self.source(mode=RestoreMode.CLAIM, pointer=pointer, metadata_uri=f"{pointer}/_metadata")
        cleared = make_owner(clear_marker="2")
        complete_checkpoint(
            coordinator, self.restore(coordinator, "sales", source=claim, num_retained=1, owner=cleared)
        )
        assert self.row(coordinator, own.checkpoint_id).status is CheckpointStatus.DISPOSED

    def test_the_one_who_claimed_may_claim_again(self, coordinator: AttemptCoordinator) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        self.restore(coordinator, source=claim)
        assert self.begin_from(coordinator, source=claim).is_restore

    def test_a_claimed_savepoint_cannot_be_disposed_by_the_job_that_took_it(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef
    ) -> None:
        place = self.completed(savepoints, ended).location
        claim = self.source(mode=RestoreMode.CLAIM, pointer=place, metadata_uri=f"{place}/_metadata")
        self.restore(coordinator, source=claim)
        with pytest.raises(SnapshotClaimedError):
            savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=place))

    @pytest.mark.parametrize("mode", RestoreMode)
    def test_a_disposed_savepoint_is_refused_although_its_files_are_still_there(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, ended: AttemptRef, mode: RestoreMode
    ) -> None:
        """Garbage collection deletes them later, with the state of a job that would have claimed them."""
        place = self.completed(savepoints, ended).location
        source = self.source(mode=mode, pointer=place, metadata_uri=f"{place}/_metadata")
        grant = self.begin_from(coordinator, "earlier", source=source)
        for _ in range(2):
            savepoints.dispose(DisposeSavepoint(job_id=JOB, pointer=place))
        with pytest.raises(PointerNotFoundError, match="disposed of"):
            self.begin_from(coordinator, source=source)
        restored, claim = grant.candidates[0].checkpoint_id, mode is RestoreMode.CLAIM
        with pytest.raises(PointerNotFoundError, match="disposed of"):
            coordinator.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored, claim=claim))

    def test_a_savepoint_that_was_refused_belongs_to_its_owner_still(self, coordinator: AttemptCoordinator) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        refused = self.begin_from(coordinator, source=claim).attempt
        effects = coordinator.finish(FinishAttempt(attempt=refused, status=AttemptStatus.FAILED))
        assert effects.discards == ()
        assert not coordinator.register(make_registration(job_name="heir")).is_restore
        assert self.begin_from(coordinator, "rival", source=claim).is_restore

    def test_a_savepoint_that_was_refused_counts_as_no_failed_checkpoint(self, coordinator: AttemptCoordinator) -> None:
        refused = self.begin_from(coordinator).attempt
        coordinator.finish(FinishAttempt(attempt=refused, status=AttemptStatus.FAILED))
        assert coordinator.describe(refused.job_id).statistics == ()

    def test_a_fenced_attempt_cannot_claim(self, coordinator: AttemptCoordinator) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        grant = self.begin_from(coordinator, source=claim)
        coordinator.register(make_registration(job_name="heir"))
        confirm = ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(StaleAttemptError):
            coordinator.confirm_restore(confirm)
        assert self.restore(coordinator, "rival", source=claim).epoch == 1

    def test_two_jobs_that_began_from_one_savepoint_cannot_both_claim_it(self, coordinator: AttemptCoordinator) -> None:
        claim = self.source(mode=RestoreMode.CLAIM)
        slower = self.begin_from(coordinator, "rival", source=claim)
        self.restore(coordinator, source=claim)
        confirm = ConfirmRestore(attempt=slower.attempt, checkpoint_id=slower.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(SnapshotClaimedError):
            coordinator.confirm_restore(confirm)

    @pytest.mark.parametrize("policy", CheckpointRetentionPolicy)
    def test_a_claimed_savepoint_obeys_the_retention_of_the_job(
        self, coordinator: AttemptCoordinator, policy: CheckpointRetentionPolicy
    ) -> None:
        attempt = self.restore(coordinator, source=self.source(mode=RestoreMode.CLAIM), retention=policy)
        [row] = coordinator.describe(attempt.job_id).checkpoints
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
    def test_only_a_savepoint_can_be_claimed(self, coordinator: AttemptCoordinator, pointer: str) -> None:
        foreign = self.source(mode=RestoreMode.CLAIM, pointer=pointer, metadata_uri=f"{pointer}/_metadata")
        with pytest.raises(InvalidConfigurationError, match="no_claim"):
            self.begin_from(coordinator, source=foreign)

    def test_a_claim_that_was_not_said_at_the_registration_is_checked_too(
        self, coordinator: AttemptCoordinator
    ) -> None:
        pointer = f"memory://base/{'b' * 32}/chk-3"
        grant = self.begin_from(coordinator, source=self.source(pointer=pointer, metadata_uri=f"{pointer}/_metadata"))
        confirm = ConfirmRestore(attempt=grant.attempt, checkpoint_id=grant.candidates[0].checkpoint_id, claim=True)
        with pytest.raises(InvalidConfigurationError, match="no_claim"):
            coordinator.confirm_restore(confirm)

    def test_metadata_elsewhere_than_in_the_directory_cannot_be_claimed(self, coordinator: AttemptCoordinator) -> None:
        """Without a claim they can be read wherever a user keeps them."""
        elsewhere = {"metadata_uri": "memory://elsewhere/copy of metadata"}
        with pytest.raises(InvalidConfigurationError, match="metadata_uri"):
            self.begin_from(coordinator, source=self.source(mode=RestoreMode.CLAIM, **elsewhere))
        assert self.begin_from(coordinator, source=self.source(**elsewhere)).is_restore

    def test_the_coordinator_makes_the_directory_of_a_savepoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        """A caller who could name it could have another job's savepoint deleted with it."""
        places = [self.trigger(coordinator, running, self.ask(savepoints, running)).location for _ in range(2)]
        assert len(set(places)) == 2
        assert all(place.startswith(f"{SAVEPOINTS}/savepoint-{JOB[:6]}-") for place in places)

    def test_a_savepoint_goes_where_its_request_says_whatever_the_stage_prefers(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running, target="memory://wanted")
        assert self.trigger(coordinator, running, asked).location.startswith("memory://wanted/savepoint-")

    def test_a_missing_savepoint_is_an_error_where_nothing_else_is_left(self, coordinator: AttemptCoordinator) -> None:
        missing = self.source(problem="Expected a checkpoint at memory://gone, found nothing there.")
        with pytest.raises(CheckpointNotFoundError, match="nothing there"):
            self.begin_from(coordinator, source=missing)

    def test_a_missing_savepoint_does_not_matter_to_a_retry_with_checkpoints(
        self, coordinator: AttemptCoordinator
    ) -> None:
        complete_checkpoint(coordinator, self.restore(coordinator))
        missing = self.source(problem="gone")
        assert self.begin_from(coordinator, source=missing).is_restore

    def test_a_fenced_stage_begins_no_savepoint(
        self, coordinator: AttemptCoordinator, savepoints: JobSavepoints, running: AttemptRef
    ) -> None:
        asked = self.ask(savepoints, running)
        coordinator.register(make_registration())
        with pytest.raises(StaleAttemptError):
            self.trigger(coordinator, running, asked)
