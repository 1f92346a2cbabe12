"""
What holds for actions that users request, as a suite that passes over every store.

Subclass :class:`ActionsContract` and give the fixture ``store``.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import ConfirmRestore, FinishAttempt, SkippedCheckpoint
from airflow_provider_statecheck.checkpoint.properties import JobStatus
from airflow_provider_statecheck.checkpoint.records import (
    AttemptOwner,
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OnClear,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    ConcurrentAttemptError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
)
from airflow_provider_statecheck.maintenance.action_previews import AffectedCheckpoint
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import JobActions, RequestedAction, requested_actions
from airflow_provider_statecheck.maintenance.job_maintenance import (
    JobMaintenance,
    RetireJob,
    UnknownRuns,
    discard_ended,
)
from airflow_provider_statecheck.maintenance.rewind import ForkPoint, JobRewinding, RewindJob
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.contracts.maintenance_contract import NoTokens
from tests.contracts.runs_of_a_job import AGAIN, JOB, OPERATOR, RunsWithTasks, day, rows_of, unchanged
from tests.job_savepoints import begin_savepoint, copy_checkpoint
from tests.messages import ManualClock, complete_checkpoint, make_source, present

FAILED = AttemptStatus.FAILED
_KEYS = count()
"""Requests of the same time are listed in the order of their keys."""


class ActionsContract(RunsWithTasks):
    """What a user confirms happens once, to what the preview showed, and the rows tell how far it is."""

    @pytest.fixture(autouse=True)
    def _parts(self, _coordinator: None, store: JobStore, clock: ManualClock) -> None:
        self.maintenance = JobMaintenance(store, UnknownRuns(), NoTokens(), clock, pause=lambda _: None)
        self.rewinding = JobRewinding(store, self.liveness)
        self.actions = JobActions(store, JobSavepoints(store), self.rewinding)

    @staticmethod
    def wanted(action: JobAction, **changes: Any) -> UserAction:
        """Return an action of the user anna with a new key."""
        return UserAction(
            **{"job_id": JOB, "action": action, "request_key": f"{next(_KEYS):032x}", "requested_by": "anna"} | changes
        )

    def choose(self, checkpoint_id: int, **changes: Any) -> RequestedAction:
        """Choose the checkpoint that the next attempt restores."""
        return self.actions.request(self.wanted(JobAction.RESTORE, checkpoint_id=checkpoint_id, **changes))

    def listed(self) -> list[RequestedAction]:
        """Return the requested actions, the oldest first."""
        return list(reversed(requested_actions(self.gateway.describe(JOB))))

    def statuses(self) -> list[RequestStatus]:
        """Return how far the actions are, the oldest first."""
        return [each.status for each in self.listed()]

    def savepoint(self, store: JobStore) -> CheckpointRecord:
        """Let a user request a savepoint, and a command take it."""
        key = self.actions.request(self.wanted(JobAction.SAVEPOINT, operator_id=OPERATOR)).request_key
        return copy_checkpoint(store, JOB, OPERATOR, key)

    # Restores

    def test_the_next_attempt_restores_the_chosen_checkpoint(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(2)
        grant = self.begin(day(1), num_retained=3)
        assert self.candidates(grant) == [2]
        assert grant.start_reason == (
            "retry after an attempt that failed, restored from checkpoint 2, which anna chose"
        )
        assert self.ids() == [1, 2]
        (done,) = self.listed()
        assert (done.status, done.message) == (RequestStatus.COMPLETED, "attempt 2 restores checkpoint 2")

    def test_it_is_restored_once(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(1)
        self.work(day(1), 2, FAILED, num_retained=3)
        assert self.candidates(self.begin(day(1), num_retained=3)) == [5, 4, 1]

    def test_a_retry_without_a_checkpoint_of_its_own_does_not_return_to_the_newer_ones(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(2)
        self.work(day(1), 0, FAILED, num_retained=3)
        assert self.candidates(self.begin(day(1), num_retained=3)) == [2]

    @pytest.mark.parametrize("tries", [1, 2])
    def test_a_retry_does_not_fall_back_from_a_choice_that_was_not_restored(self, tries: int) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(2)
        for _ in range(tries):
            self.begin(day(1), num_retained=3)
        assert self.candidates(self.begin(day(1), num_retained=3)) == [2], "its driver was killed"

    def test_another_choice_ends_the_retries_of_one_that_cannot_be_read(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(2)
        self.work(day(1), 0, FAILED, num_retained=3)
        self.choose(1)
        assert self.candidates(self.begin(day(1), num_retained=3)) == [1]

    def test_a_repeated_registration_gets_the_same_grant(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(2)
        key = new_key()
        first = self.begin(day(1), attempt_key=key, num_retained=3)
        assert self.begin(day(1), attempt_key=key, num_retained=3) == first

    def test_a_refused_registration_leaves_the_choice_to_the_next_one(self) -> None:
        self.work(day(1), 2, FAILED)
        self.begin(day(1))
        self.liveness.let_run(day(1).run_id)
        self.choose(1)
        with unchanged(self.gateway), pytest.raises(ConcurrentAttemptError):
            self.begin(day(2))
        self.liveness.let_run()
        assert self.candidates(self.begin(day(2))) == [1]

    @pytest.mark.parametrize(
        ("owner", "settings"),
        [
            (day(1, clear_marker=AGAIN), {}),
            (day(1, clear_marker=AGAIN), {"on_clear": OnClear.RESTART}),
            (day(2), {}),
            (day(1, run_id="manual__again"), {}),
        ],
        ids=["cleared after success", "cleared to restart", "next run", "another run of the date"],
    )
    def test_it_replaces_what_the_coordinator_would_have_chosen(
        self, owner: AttemptOwner, settings: dict[str, Any]
    ) -> None:
        self.work(day(1), 2)
        self.choose(1)
        assert self.candidates(self.begin(owner, **settings)) == [1]

    def test_a_run_that_cannot_start_again_restores_its_own_checkpoint_as_its_error_advises(self) -> None:
        for number in (1, 2):
            self.work(day(number), 2, retained_runs=0)
        recreated = day(2, run_id="created again")
        with unchanged(self.gateway), pytest.raises(NoRestorableCheckpointError, match="own checkpoints on the page"):
            self.begin(recreated, on_clear=OnClear.RESUME)
        self.choose(4)
        assert self.candidates(self.begin(recreated)) == [4]

    def test_an_older_checkpoint_does_not_take_its_place(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(3)
        grant = self.begin(day(1), num_retained=3)
        assert self.candidates(grant) == [3], "the driver cannot fall back"

    def test_retention_keeps_it_while_an_attempt_goes_on(self) -> None:
        grant = self.begin(day(1), num_retained=1)
        complete_checkpoint(self.gateway, grant.attempt)
        self.choose(1)
        for _ in range(3):
            complete_checkpoint(self.gateway, grant.attempt)
        assert self.ids() == [1, 4]
        assert self.candidates(self.begin(day(1), num_retained=1)) == [1]

    def test_what_is_rolled_back_stays_on_storage_until_the_work_is_done_again(self) -> None:
        self.work(day(1), 2, FAILED)
        self.choose(1)
        grant = self.begin(day(1))
        assert grant.effects.discards == ()
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=1))
        complete_checkpoint(self.gateway, grant.attempt)
        effects = self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        assert [c.checkpoint_id for c in effects.discards] == [2]

    def test_its_open_commit_is_made_and_those_of_newer_ones_are_dropped(self) -> None:
        grant = self.begin(day(1), num_retained=3)
        for _ in range(3):
            complete_checkpoint(self.gateway, grant.attempt, has_commit=True)
        self.choose(2)
        assert self.begin(day(1), num_retained=3).effects.commits == (1, 2)

    def test_a_checkpoint_that_is_gone_fails_the_attempt_and_stays_chosen(self, store: JobStore) -> None:
        self.work(day(1), 2, FAILED)
        self.choose(1)
        with store.transaction(JOB) as tx:
            row = present(tx.checkpoint(1))
            tx.update_checkpoint(replace(row, status=CheckpointStatus.SUBSUMED), expected=CheckpointStatus.COMPLETED)
        before = rows_of(self.gateway.describe(JOB))
        for _ in range(2):
            with pytest.raises(NoRestorableCheckpointError, match=r"chosen .* subsumed; withdraw the choice"):
                self.begin(day(1))
        assert rows_of(self.gateway.describe(JOB)) == before, "a repeated message must not restore another one"
        self.actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR))
        assert self.candidates(self.begin(day(1))) == [2]

    @pytest.mark.parametrize("checkpoint_id", [1, 9])
    def test_only_a_retained_checkpoint_is_chosen(self, checkpoint_id: int) -> None:
        self.work(day(1), 3, FAILED)
        for ask in (self.actions.preview, self.actions.request):
            with pytest.raises((CheckpointNotFoundError, NoRestorableCheckpointError)):
                ask(self.wanted(JobAction.RESTORE, checkpoint_id=checkpoint_id))
        assert self.listed() == []

    def test_a_damaged_checkpoint_is_not_chosen(self) -> None:
        self.work(day(1), 2, FAILED)
        grant = self.begin(day(1))
        skipped = (SkippedCheckpoint(checkpoint_id=2, reason="a file is missing"),)
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=1, skipped=skipped))
        with pytest.raises(NoRestorableCheckpointError, match="a file is missing"):
            self.choose(2)

    def test_a_later_choice_replaces_an_earlier_one(self) -> None:
        self.work(day(1), 3, FAILED, num_retained=3)
        self.choose(1)
        self.choose(2)
        assert self.statuses() == [RequestStatus.FAILED, RequestStatus.QUEUED]
        assert self.listed()[0].message == "replaced by the choice of checkpoint 2"
        assert self.candidates(self.begin(day(1), num_retained=3)) == [2]

    def test_a_withdrawn_choice_has_no_effect(self) -> None:
        self.work(day(1), 2, FAILED)
        self.choose(1)
        self.actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR, requested_by="bert"))
        assert self.listed()[0].message == "withdrawn by bert"
        assert self.statuses() == [RequestStatus.FAILED, RequestStatus.COMPLETED]
        assert self.candidates(self.begin(day(1))) == [2, 1]
        with pytest.raises(CheckpointNotFoundError, match="found none"):
            self.actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR))

    def test_a_repeated_request_returns_the_first_one_even_after_it_was_carried_out(self) -> None:
        self.work(day(1), 2, FAILED)
        wanted = self.wanted(JobAction.RESTORE, checkpoint_id=1)
        self.actions.request(wanted)
        grant = self.begin(day(1))
        assert self.actions.request(wanted).status is RequestStatus.COMPLETED
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=FAILED))
        assert self.candidates(self.begin(day(1))) == [1], "it is not chosen again"

    def test_a_rewind_past_it_ends_the_choice(self, store: JobStore) -> None:
        self.week(1, 2)
        self.choose(4)
        self.rewinding.rewind(RewindJob(job_id=JOB, run_key=day(2).run_key))
        assert self.statuses() == [RequestStatus.FAILED]
        assert self.candidates(self.begin(day(2))) == [2]

    def test_a_rewind_that_keeps_the_chosen_checkpoint_replaces_the_choice(self) -> None:
        self.week(1, 2, 3, retained_runs=3)
        self.choose(2)
        wanted = self.wanted(JobAction.REWIND, run_key=day(3).run_key)
        preview = self.actions.preview(wanted)
        assert _ids(preview.kept) == [4]
        assert "The choice of checkpoint 2 for operator 'aggregate' is withdrawn." in preview.notes
        self.actions.request(wanted)
        (choice, _) = self.listed()
        assert (choice.status, choice.message) == (RequestStatus.FAILED, "replaced by a rewind")
        assert self.candidates(self.begin(day(3), retained_runs=3)) == [4, 2]

    def test_the_preview_of_a_rewind_counts_stages_only(self, store: JobStore) -> None:
        self.week(1, 2)
        begin_savepoint(AlignedCheckpoints(store), OPERATOR)
        preview = self.actions.preview(self.wanted(JobAction.REWIND, run_key=day(2).run_key))
        assert preview.effect == "Operators that return to their state before the run: 1 of 1."

    def test_a_removed_job_leaves_no_choice_to_its_successor(self) -> None:
        self.work(day(1), 1, FAILED)
        self.choose(1)
        self.maintenance.retire(RetireJob(job_id=JOB, is_named=True))
        self.maintenance.confirm_discards(JOB, (1,))
        assert self.maintenance.remove(RetireJob(job_id=JOB, is_named=True)) == ()
        assert self.candidates(self.begin(day(1))) == []
        assert self.listed() == []

    def test_the_preview_of_a_restore_names_what_is_kept_and_what_is_done_again(self) -> None:
        self.work(day(1), 1, num_retained=4)
        self.work(day(2), 3, FAILED, num_retained=4)
        before = rows_of(self.gateway.describe(JOB))
        preview = self.actions.preview(self.wanted(JobAction.RESTORE, checkpoint_id=2))
        assert (
            "The files of the rolled-back checkpoints are deleted after a newer checkpoint completes." in preview.notes
        )
        assert (_ids(preview.kept), _ids(preview.recomputed), _ids(preview.deleted)) == ([2, 1], [4, 3], [4, 3])
        assert rows_of(self.gateway.describe(JOB)) == before
        of_earlier_run = self.actions.preview(self.wanted(JobAction.RESTORE, checkpoint_id=1))
        assert any(day(2).run_key in note for note in of_earlier_run.notes)

    # Savepoints

    @pytest.mark.parametrize(("action", "stops"), [(JobAction.SAVEPOINT, False), (JobAction.STOP, True)])
    def test_a_running_stage_is_asked_for_a_savepoint(self, action: JobAction, stops: bool) -> None:
        grant = self.begin(day(1))
        wanted = self.wanted(action, operator_id=OPERATOR)
        assert "Attempt 1 (dag.task)" in self.actions.preview(wanted).effect
        assert self.actions.request(wanted) == self.actions.request(wanted)
        (asked,) = complete_checkpoint(self.gateway, grant.attempt).effects.savepoints
        assert (asked.requested_by, asked.properties.is_synchronous) == ("anna", stops)
        (listed,) = self.listed()
        assert (listed.action, listed.status, listed.uid) == (action, RequestStatus.QUEUED, "aggregate")

    def test_a_stage_that_does_not_run_cannot_be_stopped(self) -> None:
        self.work(day(1), 1, FAILED)
        with pytest.raises(CheckpointNotFoundError, match="running attempt"):
            self.actions.preview(self.wanted(JobAction.STOP, operator_id=OPERATOR))

    def test_a_stage_without_a_checkpoint_has_nothing_to_copy(self) -> None:
        self.work(day(1), 0, FAILED)
        with pytest.raises(NoRestorableCheckpointError, match="to copy"):
            self.actions.preview(self.wanted(JobAction.SAVEPOINT, operator_id=OPERATOR))

    def test_a_savepoint_of_an_idle_stage_copies_the_newest_checkpoint(self, store: JobStore) -> None:
        self.work(day(1), 2, FAILED)
        assert _ids(self.actions.preview(self.wanted(JobAction.SAVEPOINT, operator_id=OPERATOR)).kept) == [2]
        savepoint = self.savepoint(store)
        (listed,) = self.listed()
        assert (listed.status, listed.checkpoint_id) == (RequestStatus.COMPLETED, savepoint.checkpoint_id)

    def test_a_savepoint_is_disposed_of_when_its_files_are_deleted(self, store: JobStore) -> None:
        self.work(day(1), 1, FAILED)
        savepoint = self.savepoint(store)
        wanted = self.wanted(JobAction.DISPOSE, checkpoint_id=savepoint.checkpoint_id)
        assert _ids(self.actions.preview(wanted).deleted) == [savepoint.checkpoint_id]
        assert self.actions.request(wanted).status is RequestStatus.QUEUED
        assert self.actions.request(wanted) == self.listed()[-1]
        self.maintenance.confirm_discards(JOB, (savepoint.checkpoint_id,))
        assert self.listed()[-1].status is RequestStatus.COMPLETED

    def test_a_checkpoint_is_not_disposed_of(self) -> None:
        self.work(day(1), 1, FAILED)
        for ask in (self.actions.preview, self.actions.request):
            with pytest.raises(CheckpointNotFoundError, match="a completed savepoint"):
                ask(self.wanted(JobAction.DISPOSE, checkpoint_id=1))

    def test_a_savepoint_that_a_running_attempt_needs_is_not_disposed_of(self, store: JobStore) -> None:
        self.work(day(1), 1, FAILED)
        savepoint = self.savepoint(store)
        source = make_source(savepoint.location)
        self.begin(day(1, clear_marker=AGAIN), on_clear=OnClear.RESTART, restore_from=source)
        for ask in (self.actions.preview, self.actions.request):
            with pytest.raises(ConcurrentAttemptError, match="to need the savepoint"):
                ask(self.wanted(JobAction.DISPOSE, checkpoint_id=savepoint.checkpoint_id))

    # Rewinding

    def test_a_rewind_is_carried_out_at_once_and_only_once(self) -> None:
        self.week(1, 2, 3, retained_runs=3)
        wanted = self.wanted(JobAction.REWIND, run_key=day(3).run_key)
        preview = self.actions.preview(wanted)
        assert (_ids(preview.kept), _ids(preview.recomputed)) == ([4], [6, 5])
        assert self.ids() == [2, 4, 5, 6]
        assert self.actions.request(wanted).status is RequestStatus.COMPLETED
        self.work(day(3), 1, retained_runs=3)
        self.actions.request(wanted)
        assert self.ids() == [2, 4, 7], "the repetition does not roll the new checkpoint back"

    def test_a_rewind_is_refused_while_a_task_runs(self) -> None:
        self.work(day(1), 1)
        self.begin(day(2))
        self.liveness.let_run(day(2).run_id)
        for ask in (self.actions.preview, self.actions.request):
            with pytest.raises(ConcurrentAttemptError):
                ask(self.wanted(JobAction.REWIND, run_key=day(1).run_key))
        assert self.listed() == []

    # Removals

    def remove(self, asked: RequestedAction, *, confirm: bool = True) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Carry a request out as ``prune`` does, and return why each step was refused."""
        message = RetireJob(job_id=JOB, request_key=asked.request_key)
        retired = self.maintenance.retire(message)
        if confirm and not retired:
            ids = tuple(c.checkpoint_id for c in self.maintenance.describe(JOB).checkpoints)
            self.maintenance.confirm_discards(JOB, ids)
        return retired, self.maintenance.remove(message)

    def test_a_requested_removal_is_previewed_and_changes_nothing_by_itself(
        self, store: JobStore, clock: ManualClock
    ) -> None:
        self.work(day(1), 2, FAILED)
        savepoint = self.savepoint(store).checkpoint_id
        preview = self.actions.preview(self.wanted(JobAction.PRUNE))
        assert (_ids(preview.kept), _ids(preview.deleted)) == ([savepoint], [2, 1])
        clock.advance(1)
        before = rows_of(self.gateway.describe(JOB))
        self.actions.request(self.wanted(JobAction.PRUNE))
        assert rows_of(self.gateway.describe(JOB)) == before
        assert self.statuses()[-1] is RequestStatus.QUEUED

    def test_a_requested_removal_is_shown_when_the_job_begins_anew(self, clock: ManualClock) -> None:
        self.work(day(1), 2, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        assert self.remove(asked) == ((), ())
        with pytest.raises(CheckpointNotFoundError):
            self.gateway.describe(JOB)
        grant = self.begin(day(1))
        assert grant.candidates == ()
        (done,) = self.listed()
        assert (done.request_key, done.status) == (asked.request_key, RequestStatus.COMPLETED)
        assert done.message == "the job was removed with 1 attempt"

    def test_a_requested_removal_waits_until_the_files_are_deleted(self, clock: ManualClock) -> None:
        self.work(day(1), 2, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        for _ in range(2):
            retired, removed = self.remove(asked, confirm=False)
            assert (retired, removed) == ((), ("the deletion of its files is not confirmed",))
            assert self.statuses() == [RequestStatus.RUNNING]
        with pytest.raises(CheckpointNotFoundError, match="one that has begun"):
            self.actions.request(self.wanted(JobAction.WITHDRAW))
        assert self.remove(asked) == ((), ())

    def test_a_job_with_a_running_attempt_is_not_removed_on_request(self) -> None:
        self.begin(day(1))
        for ask in (self.actions.preview, self.actions.request):
            with pytest.raises(ConcurrentAttemptError, match="has not ended"):
                ask(self.wanted(JobAction.PRUNE))
        assert self.listed() == []

    @pytest.mark.parametrize("ends", [False, True], ids=["running", "ended"])
    @pytest.mark.parametrize("seconds", [0, 1], ids=["at the same time", "later"])
    def test_an_attempt_that_starts_after_the_request_keeps_the_job(
        self, clock: ManualClock, ends: bool, seconds: int
    ) -> None:
        self.work(day(1), 2, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        clock.advance(seconds)
        grant = self.begin(day(1))
        if ends:
            self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=FAILED))
        retired, removed = self.remove(asked)
        assert ("has started since the request" if ends else "has not ended") in retired[0]
        assert removed != ()
        (failed,) = self.listed()
        assert failed.status is RequestStatus.FAILED
        assert failed.message == f"the job is kept: {retired[0]}"
        assert self.ids() == [1, 2]

    def test_an_attempt_that_starts_while_the_files_are_deleted_keeps_what_it_writes(self, clock: ManualClock) -> None:
        self.work(day(1), 2, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        self.remove(asked, confirm=False)
        clock.advance(1)
        self.work(day(1), 1)
        assert "has started since" in self.remove(asked)[0][0]
        assert self.ids() == [3]

    def test_a_removal_by_name_completes_the_request(self, clock: ManualClock) -> None:
        self.work(day(1), 1, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        named = RetireJob(job_id=JOB, is_named=True)
        assert self.maintenance.retire(named) == ()
        self.maintenance.confirm_discards(JOB, (1,))
        assert self.maintenance.remove(named) == ()
        with pytest.raises(CheckpointNotFoundError):
            self.maintenance.retire(RetireJob(job_id=JOB, request_key=asked.request_key))
        clock.advance(1)
        self.work(day(1), 1, FAILED)
        assert self.remove(asked)[0] == ("the request to remove it has ended",)
        assert self.statuses() == [RequestStatus.COMPLETED]

    def test_a_later_removal_replaces_an_earlier_one(self, clock: ManualClock) -> None:
        self.work(day(1), 1, FAILED)
        clock.advance(1)
        first = self.actions.request(self.wanted(JobAction.PRUNE))
        assert "This replaces the request of anna." in self.actions.preview(self.wanted(JobAction.PRUNE)).notes
        second = self.actions.request(self.wanted(JobAction.PRUNE, requested_by="bert"))
        assert self.statuses() == [RequestStatus.FAILED, RequestStatus.QUEUED]
        assert self.remove(first)[0] == ("the request to remove it has ended",)
        assert self.remove(second) == ((), ())

    def test_a_withdrawn_removal_has_no_effect(self, clock: ManualClock) -> None:
        self.work(day(1), 1, FAILED)
        clock.advance(1)
        asked = self.actions.request(self.wanted(JobAction.PRUNE))
        assert "which anna requested" in self.actions.preview(self.wanted(JobAction.WITHDRAW)).effect
        self.actions.request(self.wanted(JobAction.WITHDRAW, requested_by="bert"))
        assert self.listed()[0].message == "withdrawn by bert"
        assert self.remove(asked)[0] == ("the request to remove it has ended",)
        with pytest.raises(CheckpointNotFoundError, match="found none"):
            self.actions.request(self.wanted(JobAction.WITHDRAW))

    @pytest.mark.parametrize("key", ["0" * 32, "f" * 32])
    def test_a_key_that_no_user_sent_removes_nothing(self, key: str) -> None:
        self.work(day(1), 1, FAILED)
        self.choose(1, request_key="f" * 32)
        before = rows_of(self.gateway.describe(JOB))
        message = RetireJob(job_id=JOB, request_key=key)
        for call in (self.maintenance.refusal, self.maintenance.retire, self.maintenance.remove):
            assert call(message) == ("the request to remove it has ended",)
        assert rows_of(self.gateway.describe(JOB)) == before

    # Forks

    def test_a_fork_starts_one_run_and_changes_nothing_else(self) -> None:
        for number in (1, 2):
            self.work(_in_airflow(number), 2, retained_runs=3, num_retained=3)
        wanted, before = self.wanted(JobAction.FORK, checkpoint_id=2), self.gateway.describe(JOB)
        preview = self.actions.preview(wanted)
        assert (_ids(preview.kept), _ids(preview.recomputed), preview.deleted) == ([2], [4, 3], ())
        started: list[ForkPoint] = []

        def start(point: ForkPoint) -> str:
            started.append(point)
            return "fork__1"

        done = self.actions.fork(wanted, start)
        assert self.actions.fork(wanted, start) == done
        assert self.listed() == [done]
        assert (done.status, done.run_key, done.message) == (
            RequestStatus.COMPLETED,
            "fork__1",
            f"run fork__1 of Dag {done.dag_id} started",
        )
        (point,) = started
        assert (point.checkpoint.checkpoint_id, point.dag_id) == (2, done.dag_id)
        assert (point.dag_id, point.run_id) == ("nightly", "run of day 1")
        assert rows_of(self.gateway.describe(JOB)) == rows_of(before)

    def test_a_fork_whose_run_does_not_start_leaves_no_row(self) -> None:
        self.work(_in_airflow(1), 2)

        def refuse(point: ForkPoint) -> str:
            raise InvalidConfigurationError("the Dag refuses it")

        with pytest.raises(InvalidConfigurationError, match="the Dag refuses it"):
            self.actions.fork(self.wanted(JobAction.FORK, checkpoint_id=2), refuse)
        assert self.listed() == []

    def test_only_a_readable_checkpoint_is_forked(self) -> None:
        self.work(_in_airflow(1), 3, FAILED, num_retained=1)
        wanted = self.wanted(JobAction.FORK, checkpoint_id=1)
        with pytest.raises(NoRestorableCheckpointError, match="subsumed"):
            self.actions.preview(wanted)
        with pytest.raises(NoRestorableCheckpointError, match="subsumed"):
            self.actions.fork(wanted, lambda point: pytest.fail("it must not start"))

    # Rows

    @pytest.mark.parametrize("key", ["", "x" * 32, "0" * 31])
    def test_a_request_needs_a_key(self, key: str) -> None:
        self.work(day(1), 1, FAILED)
        with pytest.raises(InvalidConfigurationError, match="request_key"):
            self.choose(1, request_key=key)

    def test_an_unknown_operator_is_refused(self) -> None:
        self.work(day(1), 1, FAILED)
        for action in (JobAction.SAVEPOINT, JobAction.STOP, JobAction.WITHDRAW, JobAction.REWIND):
            with pytest.raises(CheckpointNotFoundError, match="name one of its stages"):
                self.actions.request(self.wanted(action, operator_id="0" * 32, run_key=day(1).run_key))

    def test_old_actions_are_forgotten_and_open_ones_are_not(self, clock: ManualClock) -> None:
        self.work(day(1), 2, FAILED)
        self.choose(1)
        self.choose(2)
        clock.advance(timedelta(days=40).total_seconds())
        self.maintenance.forget(JOB, timedelta(days=30).total_seconds())
        assert self.statuses() == [RequestStatus.QUEUED]

    def test_an_ended_run_without_its_checkpoints_fails_a_choice_of_one(self, store: JobStore) -> None:
        self.work(day(1), 1)
        self.choose(1)
        with store.transaction(JOB) as tx:
            discard_ended(tx, {OPERATOR: JobStatus.FINISHED})
        with pytest.raises(NoRestorableCheckpointError, match="subsumed"):
            self.begin(day(1, clear_marker=AGAIN))


def _in_airflow(number: int) -> AttemptOwner:
    task = (("dag_id", "nightly"), ("run_id", f"run of day {number}"), ("task_id", "features"), ("map_index", "-1"))
    return day(number, airflow=task)


def _ids(checkpoints: tuple[AffectedCheckpoint, ...]) -> list[int]:
    return [each.checkpoint_id for each in checkpoints]
