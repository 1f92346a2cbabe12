"""
What holds for jobs that are restored in place, as a suite that passes over every store.

Subclass :class:`InPlaceRestoreContract` and :class:`RestoredStagesContract`, and give the fixture ``store``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    ConfirmRestore,
    FinishAttempt,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, RestoreMode
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointStatus,
    JobAction,
    OnClear,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import FirstRead, JobStore, JobTransaction
from airflow_provider_statecheck.exceptions import (
    CheckpointNotFoundError,
    CommitStateUnknownError,
    ConcurrentAttemptError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
    NoRestorableCheckpointError,
    RunSupersededError,
    StaleAttemptError,
)
from airflow_provider_statecheck.maintenance.action_targets import UserAction
from airflow_provider_statecheck.maintenance.actions import JobActions, requested_actions
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob, UnknownRuns
from airflow_provider_statecheck.maintenance.job_restore import (
    JobRestoring,
    JobSavepoint,
    RestoredJob,
    RestoreJob,
    SavedMember,
)
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.contracts.maintenance_contract import NoTokens
from tests.contracts.runs_of_a_job import AGAIN, JOB, OPERATOR, RunsWithTasks, day, rows_of
from tests.job_savepoints import copy_checkpoint
from tests.messages import ManualClock, complete_checkpoint, make_acknowledgement, make_source, present

POINTER = f"memory://mine/savepoint-{JOB[:6]}-0f6f7c1e2b3a"
OTHER = f"memory://mine/savepoint-{JOB[:6]}-111111111111"
FAILED = AttemptStatus.FAILED
NEXT = {
    "a retry": (day(3), {}),
    "a clear": (day(3, clear_marker=AGAIN), {}),
    "a clear that restarts": (day(3, clear_marker=AGAIN), {"on_clear": OnClear.RESTART}),
    "the run that the member has reached": (day(2, clear_marker=AGAIN), {}),
    "a new run": (day(4), {}),
    "a run that is run again": (day(3, run_id="manual"), {}),
}


class InPlaceRestores(RunsWithTasks):
    """All stages of a job return to a savepoint together, and none leaves it before it has completed a checkpoint."""

    @pytest.fixture(autouse=True)
    def _members(self, _coordinator: None, store: JobStore) -> None:
        self.restoring = JobRestoring(store, self.liveness)
        self.rewinding = JobRewinding(store, self.liveness)
        self.actions = JobActions(store, JobSavepoints(store), self.rewinding)

    @staticmethod
    def member(number: int, checkpoint_id: int, uid: str = "aggregate", generation: int = 1) -> SavedMember:
        """Return the member of a stage at a checkpoint of a day's run."""
        source = make_source(POINTER, full_size_bytes=5, member=uid, run=day(number).run_key)
        return SavedMember(uid=uid, checkpoint_id=checkpoint_id, generation=generation, run=source.run, source=source)

    def restore(self, *members: SavedMember, pointer: str = POINTER, dry_run: bool = False) -> RestoredJob:
        """Restore the job in place; by default from a savepoint of the stage at checkpoint 3, in the second run."""
        place: Any = {"pointer": pointer, "metadata_uri": f"{pointer}/_metadata"}
        moved = [replace(p, source=replace(p.source, **place)) for p in members or (self.member(2, 3),)]
        savepoint = JobSavepoint(pointer=pointer, members=tuple(moved))
        return self.restoring.restore(RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna", dry_run=dry_run))

    def confirm(self, grant: AttemptGrant, **changes: Any) -> None:
        restored = grant.candidates[0].checkpoint_id
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored, **changes))

    def fail(self, grant: AttemptGrant) -> None:
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=FAILED))

    def restored_run(self, number: int, **settings: Any) -> AttemptGrant:
        """Let the run of a day restore the member and complete one checkpoint."""
        grant = self.begin(day(number, clear_marker=AGAIN), retained_runs=3, num_retained=3, **settings)
        self.confirm(grant)
        complete_checkpoint(self.gateway, grant.attempt)
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        return grant

    def requests(self) -> list[tuple[RequestStatus, str]]:
        """Return how far the restores in place are, and their outcome; the oldest first."""
        listed = reversed(requested_actions(self.gateway.describe(JOB)))
        return [(each.status, each.message) for each in listed if each.pointer is not None]

    def operator(self, uid: str = "aggregate") -> OperatorRecord:
        return next(o for o in self.gateway.describe(JOB).operators if o.uid == uid)

    @staticmethod
    def is_member(grant: AttemptGrant) -> bool:
        """Return whether an attempt may restore the member, and nothing else."""
        return [c.location for c in grant.candidates] == [POINTER]


class RestoredStagesContract(InPlaceRestores):
    """Restores of stages with any runs, also of stages without a member."""

    def test_a_first_run_that_starts_over_begins_with_nothing(self) -> None:
        self.work(day(1), 2)
        self.restore(self.member(1, 1))
        self.restored_run(1)
        assert self.begin(day(1, clear_marker="10/10")).is_restore is False

    def test_a_stage_without_a_member_starts_without_state(self) -> None:
        for uid in ("aggregate", "late"):
            self.week(1, 2, uid=uid)
        done = self.restore(self.member(1, 1), self.member(1, 9, uid="loads[b]"))
        assert [(each.uid, each.member is not None) for each in done.operators] == [
            ("aggregate", True),
            ("late", False),
        ]
        assert [each.uid for each in done.missing] == ["loads[b]"]
        late = self.begin(day(2), uid="late")
        assert (late.is_restore, late.candidates, late.generation) == (False, (), 2)
        assert late.start_reason.endswith(f"without state in the savepoint {POINTER} of the job")
        self.fail(late)
        again = self.begin(day(2), uid="late")
        assert again.is_restore is False
        complete_checkpoint(self.gateway, again.attempt)
        assert (RequestStatus.COMPLETED, f"attempt 4 started without state, which {POINTER} does not contain") in (
            self.requests()
        )

    def test_a_stage_without_a_member_ignores_the_savepoint_that_its_task_names(self) -> None:
        for uid in ("aggregate", "late"):
            self.week(1, uid=uid)
        self.restore(self.member(1, 1))
        own = replace(self.member(1, 1, uid="late").source, pointer=OTHER, member="", problem="gone")
        for status in (FAILED, None):
            late = self.begin(day(1, clear_marker=AGAIN), uid="late", restore_from=own)
            assert (late.is_restore, late.candidates, late.restore_from) == (False, (), None)
            if status is not None:
                self.fail(late)

    def test_a_stage_without_a_member_that_began_from_another_savepoint_comes_with_a_warning(self) -> None:
        pointer = "memory://mine/savepoint-another-111111111111"
        place: Any = {"pointer": pointer, "metadata_uri": f"{pointer}/_metadata"}
        self.week(1)
        late = self.begin(day(1), uid="late", restore_from=replace(self.member(1, 1, uid="late").source, **place))
        self.confirm(late)
        complete_checkpoint(self.gateway, late.attempt)
        self.fail(late)
        for _ in range(2):
            warnings = [each.warning for each in self.restore(self.member(1, 1)).operators]
            assert [f"has started from {pointer} before" in each for each in warnings] == [False, True]

    def test_a_member_from_before_a_fresh_start_comes_with_a_warning(self) -> None:
        member = self.member(1, 2)
        self.week(1)
        assert self.restore(member, dry_run=True).operators[0].warning == ""
        self.work(day(1, clear_marker=AGAIN), on_clear=OnClear.RESTART)
        (done,) = self.restore(member).operators
        assert "'aggregate' has started over since its member was taken" in done.warning
        assert self.restore(member).operators == (done,)
        self.fail(self.begin(day(1)))
        (again,) = self.restore(member).operators
        assert again.warning == done.warning

    def test_nothing_is_restored_while_a_task_runs(self) -> None:
        self.week(1, 2, uid="aggregate")
        self.week(1, uid="late")
        self.begin(day(2), uid="late")
        self.liveness.let_run(day(2).run_id)
        before = self.gateway.describe(JOB)
        with pytest.raises(ConcurrentAttemptError, match="nothing was changed"):
            self.restore(self.member(1, 1))
        after = self.gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), ())

    def test_a_job_that_is_not_there_is_told(self) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.restore()


class InPlaceRestoreContract(InPlaceRestores):
    """Restores of a stage after three runs."""

    @pytest.fixture(autouse=True)
    def _three_days(self, _members: None) -> None:
        """Let three runs complete the checkpoints 1 and 2, 3 and 4, and 5 and 6."""
        self.week(1, 2, 3, retained_runs=3, num_retained=3)

    # The savepoint of a restore that waits

    @pytest.mark.parametrize("scheme", ["s3", "s3a"])
    def test_the_savepoint_of_a_restore_that_waits_is_not_disposed(self, store: JobStore, scheme: str) -> None:
        pointer = f"s3a://mine/savepoint-{JOB[:6]}-0f6f7c1e2b3a"
        same = pointer.replace("s3a", scheme)
        self.restore(pointer=pointer)
        with pytest.raises(
            ConcurrentAttemptError, match="found that the restore in place of operator 'aggregate' waits"
        ):
            JobSavepoints(store).dispose(same, JOB)
        grant = self.begin(day(2, clear_marker=AGAIN))
        with pytest.raises(ConcurrentAttemptError, match="wait until it has ended"):
            JobSavepoints(store).dispose(same, JOB)
        self.fail(grant)
        with pytest.raises(ConcurrentAttemptError, match="withdraw the restore; then dispose of the savepoint again"):
            JobSavepoints(store).dispose(same, JOB)
        self.restored_run(2)
        assert JobSavepoints(store).dispose(same, JOB) is None

    def test_a_savepoint_that_no_restore_waits_for_is_disposed(self, store: JobStore) -> None:
        self.restore()
        third = OTHER.replace("111111111111", "222222222222")
        assert JobSavepoints(store).dispose(third, JOB) is None
        self.restore(pointer=OTHER)
        assert JobSavepoints(store).dispose(POINTER, JOB) is None

    def test_a_savepoint_that_is_disposed_of_is_not_restored_and_nothing_changes(self, store: JobStore) -> None:
        """Its files are deleted after its row has ended, so they may still be there."""
        savepoint = copy_checkpoint(store, JOB, OPERATOR)
        self.restore(pointer=savepoint.location, dry_run=True)
        JobSavepoints(store).dispose(savepoint.location, JOB)
        before = self.gateway.describe(JOB)
        for dry_run in (True, False):
            with pytest.raises(CheckpointNotFoundError, match="found that it is disposed; nothing was changed"):
                self.restore(pointer=savepoint.location, dry_run=dry_run)
        after = self.gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), before.actions)

    def test_a_disposal_of_a_savepoint_without_a_row_blocks_no_restore(self, store: JobStore) -> None:
        """It was moved, or its row is removed: whose it is, the caller only says, and the files decide."""
        assert JobSavepoints(store).dispose(POINTER, JOB) is None
        assert store.claim(POINTER) is None
        self.restore(dry_run=True)

    # What the next attempt restores

    @pytest.mark.parametrize(("owner", "settings"), NEXT.values(), ids=NEXT)
    def test_the_next_attempt_restores_the_member_whatever_it_is(self, owner: Any, settings: dict[str, Any]) -> None:
        self.restore()
        grant = self.begin(owner, **settings)
        (member,) = grant.candidates
        assert (member.location, member.properties.member, member.run_key) == (POINTER, "aggregate", day(2).run_key)
        assert (member.status, member.properties.unclaimed) == (CheckpointStatus.PENDING, True)
        assert grant.is_restore
        assert grant.restore_from == replace(self.member(2, 3).source)
        assert grant.start_reason.endswith(f"restored in place from {POINTER}")
        assert grant.generation == 2

    @pytest.mark.parametrize(
        "confirms", [False, True], ids=["before it read the member", "after it restored the member"]
    )
    @pytest.mark.parametrize(("owner", "settings"), NEXT.values(), ids=NEXT)
    def test_an_attempt_after_one_without_a_checkpoint_restores_the_member_again(
        self, owner: Any, settings: dict[str, Any], confirms: bool
    ) -> None:
        self.restore()
        first = self.begin(day(2, clear_marker=AGAIN))
        if confirms:
            self.confirm(first)
        self.fail(first)
        again = self.begin(owner, **settings)
        assert self.is_member(again)
        assert [status for status, _ in self.requests()] == [RequestStatus.QUEUED]

    def test_the_first_checkpoint_ends_it(self) -> None:
        self.restore()
        self.restored_run(2)
        assert self.requests() == [(RequestStatus.COMPLETED, f"attempt 4 restored its member of {POINTER}")]
        assert self.operator().in_place_restore is None
        grant = self.begin(day(3, clear_marker=AGAIN), retained_runs=3, num_retained=3)
        assert self.candidates(grant) == [8, 7], "its own checkpoint, then the member"
        assert grant.restore_from is None

    def test_a_savepoint_of_the_user_does_not_end_it(self) -> None:
        self.restore()
        grant = self.begin(day(2, clear_marker=AGAIN))
        self.confirm(grant)
        key = self.actions.request(self.wanted(JobAction.SAVEPOINT, operator_id=OPERATOR)).request_key
        trigger = TriggerCheckpoint(
            attempt=grant.attempt, request_key=new_key(), serves=key, savepoint_dir="memory://mine"
        )
        pending = self.gateway.trigger(trigger)
        self.gateway.acknowledge(make_acknowledgement(grant.attempt, pending))
        self.fail(grant)
        assert self.is_member(self.begin(day(2, clear_marker=AGAIN)))

    def test_a_repeated_registration_gets_the_same_grant(self) -> None:
        self.restore()
        key = new_key()
        first = self.begin(day(2), attempt_key=key)
        assert self.begin(day(2), attempt_key=key) == first
        self.confirm(first)
        again = self.begin(day(2), attempt_key=key)
        assert (self.candidates(again), again.restore_from) == (self.candidates(first), first.restore_from)

    def test_a_registration_that_is_refused_leaves_it_to_the_next_one(self) -> None:
        self.restore()
        before = self.gateway.describe(JOB)
        with pytest.raises(RunSupersededError, match="found the earlier run"):
            self.begin(day(1, clear_marker=AGAIN))
        assert rows_of(self.gateway.describe(JOB)) == rows_of(before)
        first = self.begin(day(2))
        self.liveness.let_run(day(2).run_id)
        with pytest.raises(ConcurrentAttemptError):
            self.begin(day(3))
        self.fail(first)
        assert self.is_member(self.begin(day(3)))

    def test_the_task_claims_nothing(self) -> None:
        """A task with ``claim_mode="claim"`` asks to own the savepoint that it names, which this is not."""
        self.restore()
        own = replace(self.member(2, 3).source, pointer=OTHER, mode=RestoreMode.CLAIM, member="")
        grant = self.begin(day(2), restore_from=own)
        assert self.is_member(grant)
        self.confirm(grant, claim=True)
        (adopted,) = [c for c in self.gateway.describe(JOB).checkpoints if c.location == POINTER]
        assert (adopted.status, adopted.properties.unclaimed) == (CheckpointStatus.COMPLETED, True)

    # Order of runs

    def test_the_runs_after_the_member_follow_in_their_order(self) -> None:
        self.restore()
        self.restored_run(2)
        third = self.work(day(3, clear_marker=AGAIN), 1, retained_runs=3, num_retained=3)
        fourth = self.work(day(4), 1, retained_runs=3, num_retained=3)
        assert [self.candidates(third), self.candidates(fourth)] == [[8, 7], [9, 8, 7]]
        with pytest.raises(RunSupersededError):
            self.begin(day(3, clear_marker="10/10"))

    def test_a_run_after_the_member_that_starts_over_returns_to_the_member(self) -> None:
        self.restore()
        self.restored_run(3)
        again = self.begin(day(3, clear_marker="10/10"), retained_runs=3, num_retained=3)
        assert self.candidates(again) == [7]

    def test_the_run_of_the_member_does_not_start_over_with_nothing(self) -> None:
        self.restore()
        self.restored_run(2)
        with pytest.raises(NoRestorableCheckpointError, match="before run"):
            self.begin(day(2, clear_marker="10/10"))

    # The request

    def test_a_member_that_another_job_took_shares_no_ids_with_this_one(self) -> None:
        retained = self.ids()
        (done,) = self.restore(replace(self.member(2, 3), is_foreign=True)).operators
        assert [c.checkpoint_id for c in reversed(done.taken_back)] == retained
        assert done.warning == ""
        self.restored_run(2)
        assert self.operator().first_run == ""

    @pytest.mark.parametrize("is_rewound", [True, False], ids=["rewound", "cleared"])
    def test_a_member_whose_output_a_later_attempt_has_replaced_comes_with_a_warning(self, is_rewound: bool) -> None:
        member = self.member(3, 6)
        if is_rewound:
            self.rewinding.rewind(RewindJob(job_id=JOB, run_key=day(3).run_key))
        assert self.restore(member, dry_run=True).operators[0].warning == "", (
            "nothing is replaced before the first commit"
        )
        self.work(day(3, clear_marker=AGAIN))
        (done,) = self.restore(member, dry_run=True).operators
        assert "'aggregate' has gone back to an earlier checkpoint since its member was taken" in done.warning
        assert self.restore(self.member(2, 4), dry_run=True).operators[0].warning == ""

    def test_a_member_from_before_a_start_with_a_changed_source_comes_with_a_warning(self) -> None:
        member, grant = self.member(3, 6), self.begin(day(3, clear_marker=AGAIN))
        self.gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=None))
        complete_checkpoint(self.gateway, grant.attempt)
        self.fail(grant)
        assert self.operator().generation == member.generation
        (done,) = self.restore(member, dry_run=True).operators
        assert "'aggregate' has started over since its member was taken" in done.warning

    def test_a_member_from_before_a_restore_in_place_comes_without_a_warning(self) -> None:
        self.restore()
        self.fail(self.begin(day(2)))
        self.restored_run(2)
        assert self.operator().generation == 3
        (done,) = self.restore().operators
        assert done.warning == ""

    def test_the_result_names_what_is_taken_back(self) -> None:
        (done,) = self.restore().operators
        assert [c.checkpoint_id for c in done.taken_back] == [6, 5, 4]
        assert (done.first_run, present(done.newest).owner) == (day(2).run_key, day(3))

    def test_an_attempt_whose_task_is_dead_is_fenced(self) -> None:
        dead = self.begin(day(4))
        (done,) = self.restore().operators
        assert present(done.fenced).owner == day(4)
        with pytest.raises(StaleAttemptError):
            complete_checkpoint(self.gateway, dead.attempt)

    def test_a_dry_run_says_the_same_and_changes_nothing(self, clock: ManualClock) -> None:
        before = self.gateway.describe(JOB)
        clock.advance(60)
        dry = self.restore(dry_run=True)
        after = self.gateway.describe(JOB)
        assert (after.job, rows_of(after), after.actions) == (before.job, rows_of(before), ())
        assert self.restore() == dry

    def test_it_may_be_repeated_until_the_first_checkpoint(self) -> None:
        first = self.restore()
        assert self.restore() == first
        grant = self.begin(day(2))
        self.confirm(grant)
        self.fail(grant)
        (again,) = self.restore().operators
        assert again.taken_back == first.operators[0].taken_back
        assert [status for status, _ in self.requests()] == [RequestStatus.QUEUED]
        assert self.is_member(self.begin(day(2)))

    def test_after_its_end_it_may_be_requested_once_more(self) -> None:
        self.restore()
        self.restored_run(2)
        (done,) = self.restore().operators
        assert [c.checkpoint_id for c in done.taken_back] == [8, 7], "of another generation than the member"
        assert self.is_member(self.begin(day(2)))

    @pytest.mark.parametrize("fault", [CoordinatorUnavailableError, CommitStateUnknownError])
    def test_a_repetition_after_a_fault_has_one_result(self, store: JobStore, fault: type[Exception]) -> None:
        faulty: Any = FaultyStore(store, fault)
        self.restoring = JobRestoring(faulty, self.liveness)
        with pytest.raises(fault):
            self.restore()
        assert len(self.requests()) == (fault is CommitStateUnknownError)
        self.restoring = JobRestoring(store, self.liveness)
        self.restore()
        assert [status for status, _ in self.requests()] == [RequestStatus.QUEUED]

    @pytest.mark.parametrize("is_running", [True, False])
    def test_a_known_request_changes_nothing_whatever_has_happened_since(self, is_running: bool) -> None:
        savepoint = JobSavepoint(pointer=POINTER, members=(self.member(2, 3), self.member(2, 3, uid="gone")))
        request = RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna")
        first = self.restoring.restore(request)
        self.restored_run(2)
        self.begin(day(3, clear_marker=AGAIN), uid="late")
        if is_running:
            self.begin(day(3, clear_marker=AGAIN), retained_runs=3, num_retained=3)
            self.liveness.let_run(day(3).run_id)
        before = self.gateway.describe(JOB)
        again = self.restoring.restore(request)
        assert ([o.uid for o in again.operators], again.missing) == (["aggregate"], first.missing)
        after = self.gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), before.actions)

    @pytest.mark.parametrize(
        "change",
        [
            {"pointer": OTHER},
            {"metadata_uri": f"{OTHER}/_metadata"},
            {"mode": RestoreMode.CLAIM},
            {"member": "other"},
            {"problem": "none"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_member_that_is_not_of_the_savepoint_is_refused_and_changes_nothing(self, change: dict[str, Any]) -> None:
        member = self.member(2, 3)
        wrong = replace(member, source=replace(member.source, **change))
        savepoint = JobSavepoint(pointer=POINTER, members=(self.member(2, 3, uid="first"), wrong))
        with pytest.raises(InvalidConfigurationError, match="member of stage 'aggregate' to be one of the savepoint"):
            self.restoring.restore(RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna"))
        assert self.gateway.describe(JOB).actions == ()

    # Files

    def test_the_first_checkpoint_is_full_and_the_member_is_never_deleted(self) -> None:
        self.restore()
        self.restored_run(2)
        rows = {c.checkpoint_id: c for c in self.gateway.describe(JOB).checkpoints}
        assert rows[8].properties.snapshot_type is CheckpointType.FULL_CHECKPOINT
        self.work(day(3, clear_marker=AGAIN), 3, num_retained=1, retained_runs=0)
        (member,) = [c for c in self.gateway.describe(JOB).checkpoints if c.location == POINTER]
        assert (member.status, member.awaits_discard) == (CheckpointStatus.SUBSUMED, False)

    def test_what_was_there_before_stays_until_the_first_checkpoint(self) -> None:
        self.restore()
        grant = self.begin(day(2), retained_runs=3, num_retained=3)
        self.confirm(grant)
        assert self.ids() == [2, 4, 5, 6, 7]
        assert [c.checkpoint_id for c in grant.effects.discards] == [1, 3]
        complete_checkpoint(self.gateway, grant.attempt)
        assert self.ids() == [7, 8]

    def test_readers_see_the_member_once_it_is_restored(self) -> None:
        self.restore()
        assert self.read() == 6
        first = self.begin(day(2))
        assert self.read() == 6
        self.confirm(first)
        assert self.read() == 7
        self.fail(first)
        self.begin(day(2))
        assert self.read() == 7

    def read(self) -> int:
        """Return the checkpoint that readers of the state get."""
        return present(self.gateway.latest_checkpoints(JOB)).checkpoints[0].checkpoint_id

    # Its other ends

    @staticmethod
    def wanted(action: JobAction, **changes: Any) -> UserAction:
        return UserAction(
            **{"job_id": JOB, "action": action, "request_key": new_key(), "requested_by": "bob"} | changes
        )

    def half_restored(self, tries: str) -> None:
        """Restore in place and let attempts fail before or after they confirm."""
        self.restore()
        for has_confirmed in tries:
            grant = self.begin(day(3, clear_marker=AGAIN))
            if has_confirmed == "c":
                self.confirm(grant)
            self.fail(grant)

    TRIES = pytest.mark.parametrize(
        "tries",
        ["", "f", "c", "cf", "fc"],
        ids=["untaken", "not read", "restored", "restored, then not read", "not read, then restored"],
    )

    @TRIES
    def test_a_withdrawal_returns_to_the_checkpoints_of_before(self, tries: str) -> None:
        self.half_restored(tries)
        wanted = self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR)
        assert [c.checkpoint_id for c in self.actions.preview(wanted).kept] == [6, 5, 4, 2]
        self.actions.request(wanted)
        assert self.requests() == [(RequestStatus.FAILED, "withdrawn by bob")]
        assert self.read() == 6
        grant = self.begin(day(4), retained_runs=3, num_retained=3)
        assert (self.candidates(grant), grant.restore_from) == ([6, 5, 4, 2], None)
        completed = present(complete_checkpoint(self.gateway, grant.attempt).checkpoint)
        assert self.read() == completed.checkpoint_id

    @TRIES
    def test_a_withdrawal_returns_to_the_open_commits_of_before(self, tries: str) -> None:
        complete_checkpoint(self.gateway, self.begin(day(3)).attempt, has_commit=True)
        self.half_restored(tries)
        assert self.gateway.describe(JOB).checkpoints[6].awaits_commit
        self.actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR))
        assert self.begin(day(3)).effects.commits == (7,)

    def test_the_attempt_of_a_restore_does_not_await_the_commits_of_before(self) -> None:
        complete_checkpoint(self.gateway, self.begin(day(3)).attempt, has_commit=True)
        self.restore()
        grant = self.begin(day(3))
        assert grant.effects.commits == ()
        self.gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))

    @TRIES
    def test_a_fresh_start_after_a_withdrawal_is_one(self, tries: str) -> None:
        """The generation of the restore is used again."""
        self.half_restored(tries)
        self.actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR))
        rerun = day(1, run_id="manual", clear_marker=AGAIN)
        with pytest.raises(RunSupersededError):
            self.begin(rerun)
        self.rewinding.rewind(RewindJob(job_id=JOB, run_key=day(1).run_key))
        for _ in range(2):
            grant = self.begin(day(1))
            assert (grant.is_restore, grant.candidates) == (False, ())
            self.fail(grant)

    @TRIES
    def test_a_rewind_starts_from_the_checkpoints_of_before(self, tries: str) -> None:
        self.half_restored(tries)
        request = RewindJob(job_id=JOB, run_key=day(3).run_key)
        before = self.gateway.describe(JOB)
        dry = self.rewinding.rewind(replace(request, dry_run=True))
        assert (rows_of(self.gateway.describe(JOB)), self.gateway.describe(JOB).actions) == (
            rows_of(before),
            before.actions,
        )
        assert self.rewinding.rewind(request) == dry
        (done,) = dry
        assert ([c.checkpoint_id for c in done.taken_back], done.withdrawn_restore) == ([6, 5], POINTER)
        assert self.requests() == [(RequestStatus.FAILED, "replaced by a rewind")]
        assert self.candidates(self.begin(day(3, clear_marker=AGAIN))) == [4, 2]

    @TRIES
    def test_the_choice_of_a_checkpoint_ends_it(self, tries: str) -> None:
        self.half_restored(tries)
        wanted = self.wanted(JobAction.RESTORE, checkpoint_id=5)
        assert [c.checkpoint_id for c in self.actions.preview(wanted).deleted] == [6]
        self.actions.request(wanted)
        assert self.requests() == [(RequestStatus.FAILED, "replaced by the choice of checkpoint 5")]
        assert self.candidates(self.begin(day(3))) == [5]

    def test_the_restored_member_may_be_chosen(self) -> None:
        self.half_restored("c")
        wanted = self.wanted(JobAction.RESTORE, checkpoint_id=7)
        assert any(POINTER in note for note in self.actions.preview(wanted).notes)
        self.actions.request(wanted)
        assert self.is_member(self.begin(day(3)))

    def test_it_replaces_the_choice_of_a_checkpoint(self) -> None:
        self.actions.request(self.wanted(JobAction.RESTORE, checkpoint_id=5))
        (done,) = self.restore().operators
        assert done.replaced == "checkpoint 5"
        assert self.is_member(self.begin(day(3)))
        choice = next(a for a in requested_actions(self.gateway.describe(JOB)) if a.checkpoint_id == 5)
        assert (choice.status, choice.message) == (RequestStatus.FAILED, f"replaced by a restore of {POINTER}")

    @TRIES
    def test_another_restore_replaces_it(self, tries: str) -> None:
        self.half_restored(tries)
        (done,) = self.restore(self.member(1, 2), pointer=OTHER).operators
        assert ([c.checkpoint_id for c in done.taken_back], done.replaced) == ([6, 5, 4], POINTER)
        assert sorted(self.requests()) == [
            (RequestStatus.FAILED, f"replaced by a restore of {OTHER}"),
            (RequestStatus.QUEUED, ""),
        ]
        assert [c.location for c in self.begin(day(1)).candidates] == [OTHER]

    def test_it_is_not_withdrawn_from_an_attempt_that_works_on_it(self) -> None:
        self.restore()
        grant = self.begin(day(3))
        for wanted in (
            self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR),
            self.wanted(JobAction.RESTORE, checkpoint_id=5),
        ):
            with pytest.raises(ConcurrentAttemptError, match="wait until its first checkpoint"):
                self.actions.request(wanted)
        self.confirm(grant)
        complete_checkpoint(self.gateway, grant.attempt)
        assert [status for status, _ in self.requests()] == [RequestStatus.COMPLETED]

    @TRIES
    def test_the_removal_of_the_job_ends_it(self, store: JobStore, clock: ManualClock, tries: str) -> None:
        self.half_restored(tries)
        clock.advance(10 * 24 * 3600)
        maintenance = JobMaintenance(store, UnknownRuns(), NoTokens(), clock, pause=lambda _: None)
        maintenance.retire(RetireJob(job_id=JOB, is_named=True))
        assert self.requests() == [(RequestStatus.FAILED, "the checkpoints of the job are deleted")]
        for _ in range(2):
            grant = self.begin(day(1))
            assert grant.is_restore is False
            self.fail(grant)


class FaultyStore:
    """
    A store whose transactions do not reach the database, or whose reply is lost.

    :param error: ``CommitStateUnknownError`` for a lost reply.
    """

    def __init__(self, store: JobStore, error: type[Exception]) -> None:
        self._store = store
        self._error = error

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    @contextmanager
    def transaction(
        self, job_id: JobId, *, create_as: str | None = None, reads: FirstRead | None = None
    ) -> Iterator[JobTransaction]:
        """Open a transaction that fails."""
        with self._store.transaction(job_id, create_as=create_as, reads=reads) as tx:
            yield tx
            if self._error is not CommitStateUnknownError:
                raise self._error("planned")
        raise self._error("planned")
