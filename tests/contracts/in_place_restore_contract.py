"""
What holds for jobs that are restored in place, as a suite that passes over every store.

Subclass :class:`InPlaceRestoreContract` and give the fixture ``store``.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import (
    AttemptGrant,
    BeginSavepoint,
    ConfirmRestore,
    DisposeSavepoint,
    EndSavepoint,
    FinishAttempt,
    RequestSavepoint,
    TriggerCheckpoint,
)
from airflow_provider_statecheck.checkpoint.properties import CheckpointType, RestoreMode, RestoreSource
from airflow_provider_statecheck.checkpoint.records import (
    AttemptStatus,
    CheckpointRecord,
    CheckpointStatus,
    JobAction,
    OnClear,
    OperatorRecord,
    RequestStatus,
)
from airflow_provider_statecheck.checkpoint.store import JobStore, JobTransaction
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
    SavepointPart,
)
from airflow_provider_statecheck.maintenance.rewind import JobRewinding, RewindJob
from airflow_provider_statecheck.maintenance.savepoints import JobSavepoints
from tests.contracts.maintenance_contract import NoTokens
from tests.contracts.running_tasks import RunningTasks
from tests.contracts.runs_of_a_job import AGAIN, JOB, OPERATOR, RunsWithTasks, day, rows_of
from tests.messages import ManualClock, complete_checkpoint, make_acknowledgement

POINTER = f"memory://mine/savepoint-{JOB[:6]}-0f6f7c1e2b3a"
OTHER = f"memory://mine/savepoint-{JOB[:6]}-111111111111"
FAILED = AttemptStatus.FAILED
NEXT = {
    "a retry": (day(3), {}),
    "a clear": (day(3, clear_marker=AGAIN), {}),
    "a clear that restarts": (day(3, clear_marker=AGAIN), {"on_clear": OnClear.RESTART}),
    "the run that the part has reached": (day(2, clear_marker=AGAIN), {}),
    "a new run": (day(4), {}),
    "a run that is run again": (day(3, run_id="manual"), {}),
}


class InPlaceRestoreContract(RunsWithTasks):
    """All stages of a job return to a savepoint together, and none leaves it before it has completed a checkpoint."""

    @pytest.fixture
    def restoring(self, store: JobStore, liveness: RunningTasks) -> JobRestoring:
        """Return what is tested."""
        return JobRestoring(store, liveness)

    @pytest.fixture
    def rewinding(self, store: JobStore, liveness: RunningTasks) -> JobRewinding:
        """Return the rewinding of the same rows."""
        return JobRewinding(store, liveness)

    @pytest.fixture
    def actions(self, store: JobStore, rewinding: JobRewinding) -> JobActions:
        """Return the actions of users on the same rows."""
        return JobActions(store, JobSavepoints(store), rewinding)

    @pytest.fixture
    def three_days(self, gateway: AttemptCoordinator) -> None:
        """Let three runs complete the checkpoints 1 and 2, 3 and 4, and 5 and 6."""
        self.week(gateway, 1, 2, 3, retained_runs=3, num_retained=3)

    @staticmethod
    def part(number: int, checkpoint_id: int, uid: str = "aggregate", generation: int = 1) -> SavepointPart:
        """Return the part of a stage at a checkpoint of a day's run."""
        source = RestoreSource(
            pointer=POINTER,
            metadata_uri=f"{POINTER}/_metadata",
            metadata_size=7,
            metadata_sha256="0" * 64,
            full_size_bytes=5,
            part=uid,
            run=day(number).run_key,
        )
        return SavepointPart(uid=uid, checkpoint_id=checkpoint_id, generation=generation, run=source.run, source=source)

    def restore(
        self, restoring: JobRestoring, *parts: SavepointPart, pointer: str = POINTER, dry_run: bool = False
    ) -> RestoredJob:
        """Restore the job in place; by default from a savepoint of the stage at checkpoint 3, in the second run."""
        place: Any = {"pointer": pointer, "metadata_uri": f"{pointer}/_metadata"}
        moved = [replace(p, source=replace(p.source, **place)) for p in parts or (self.part(2, 3),)]
        savepoint = JobSavepoint(pointer=pointer, parts=tuple(moved))
        return restoring.restore(RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna", dry_run=dry_run))

    @staticmethod
    def savepoint(store: JobStore) -> CheckpointRecord:
        """Let a command take a savepoint."""
        savepoints, key = JobSavepoints(store), new_key()
        savepoints.request(RequestSavepoint(job_id=JOB, operator_id=OPERATOR, request_key=key))
        begun = savepoints.begin(
            BeginSavepoint(job_id=JOB, request_key=key, savepoint_dir="memory://mine", trigger_key=new_key())
        )
        return savepoints.end(
            EndSavepoint(job_id=JOB, checkpoint_id=begun.checkpoint_id, metadata_uri=f"{begun.location}/_metadata")
        )

    @staticmethod
    def confirm(gateway: AttemptCoordinator, grant: AttemptGrant, **changes: Any) -> None:
        """Let a driver confirm what it was granted."""
        restored = grant.candidates[0].checkpoint_id
        gateway.confirm_restore(ConfirmRestore(attempt=grant.attempt, checkpoint_id=restored, **changes))

    @staticmethod
    def fail(gateway: AttemptCoordinator, grant: AttemptGrant) -> None:
        """Let an attempt fail."""
        gateway.finish(FinishAttempt(attempt=grant.attempt, status=FAILED))

    def restored_run(self, gateway: AttemptCoordinator, number: int, **settings: Any) -> AttemptGrant:
        """Let the run of a day restore the part and complete one checkpoint."""
        grant = self.begin(gateway, day(number, clear_marker=AGAIN), retained_runs=3, num_retained=3, **settings)
        self.confirm(gateway, grant)
        complete_checkpoint(gateway, grant.attempt)
        gateway.finish(FinishAttempt(attempt=grant.attempt, status=AttemptStatus.FINISHED))
        return grant

    @staticmethod
    def requests(gateway: AttemptCoordinator) -> list[tuple[RequestStatus, str]]:
        """Return how far the restores in place are, and their outcome; the oldest first."""
        listed = reversed(requested_actions(gateway.describe(JOB)))
        return [(each.status, each.message) for each in listed if each.pointer is not None]

    @staticmethod
    def operator(gateway: AttemptCoordinator, uid: str = "aggregate") -> OperatorRecord:
        """Return the row of an operator."""
        return next(o for o in gateway.describe(JOB).operators if o.uid == uid)

    @staticmethod
    def is_part(grant: AttemptGrant) -> bool:
        """Return whether an attempt may restore the part, and nothing else."""
        return [c.location for c in grant.candidates] == [POINTER]

    # The savepoint of a restore that waits

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize("scheme", ["s3", "s3a"])
    def test_the_savepoint_of_a_restore_that_waits_is_not_disposed(
        self, gateway: AttemptCoordinator, store: JobStore, restoring: JobRestoring, scheme: str
    ) -> None:
        pointer = f"s3a://mine/savepoint-{JOB[:6]}-0f6f7c1e2b3a"
        dispose = DisposeSavepoint(job_id=JOB, pointer=pointer.replace("s3a", scheme))
        self.restore(restoring, pointer=pointer)
        with pytest.raises(
            ConcurrentAttemptError, match="found that the restore in place of operator 'aggregate' waits"
        ):
            JobSavepoints(store).dispose(dispose)
        grant = self.begin(gateway, day(2, clear_marker=AGAIN))
        with pytest.raises(ConcurrentAttemptError, match="wait until it has ended"):
            JobSavepoints(store).dispose(dispose)
        self.fail(gateway, grant)
        with pytest.raises(ConcurrentAttemptError, match="withdraw the restore; then dispose of the savepoint again"):
            JobSavepoints(store).dispose(dispose)
        self.restored_run(gateway, 2)
        assert JobSavepoints(store).dispose(dispose).checkpoint is None

    @pytest.mark.usefixtures("three_days")
    def test_a_savepoint_that_no_restore_waits_for_is_disposed(self, store: JobStore, restoring: JobRestoring) -> None:
        self.restore(restoring)
        assert JobSavepoints(store).dispose(DisposeSavepoint(job_id=JOB, pointer=OTHER)).checkpoint is None
        self.restore(restoring, pointer=OTHER)
        assert JobSavepoints(store).dispose(DisposeSavepoint(job_id=JOB, pointer=POINTER)).checkpoint is None

    @pytest.mark.usefixtures("three_days")
    def test_a_savepoint_that_is_disposed_of_is_not_restored_and_nothing_changes(
        self, gateway: AttemptCoordinator, store: JobStore, restoring: JobRestoring
    ) -> None:
        """Its files are deleted after its row has ended, so they may still be there."""
        savepoint = self.savepoint(store)
        self.restore(restoring, pointer=savepoint.location, dry_run=True)
        JobSavepoints(store).dispose(DisposeSavepoint(job_id=JOB, pointer=savepoint.location))
        before = gateway.describe(JOB)
        for dry_run in (True, False):
            with pytest.raises(CheckpointNotFoundError, match="found that it is disposed; nothing was changed"):
                self.restore(restoring, pointer=savepoint.location, dry_run=dry_run)
        after = gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), before.actions)

    # What the next attempt restores

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize(("owner", "settings"), NEXT.values(), ids=NEXT)
    def test_the_next_attempt_restores_the_part_whatever_it_is(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, owner: Any, settings: dict[str, Any]
    ) -> None:
        self.restore(restoring)
        grant = self.begin(gateway, owner, **settings)
        (part,) = grant.candidates
        assert (part.location, part.properties.part, part.run_key) == (POINTER, "aggregate", day(2).run_key)
        assert (part.status, part.properties.unclaimed) == (CheckpointStatus.PENDING, True)
        assert grant.is_restore
        assert grant.restore_from == replace(self.part(2, 3).source)
        assert grant.start_reason.endswith(f"restored in place from {POINTER}")
        assert grant.generation == 2

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize("confirms", [False, True], ids=["before it read the part", "after it restored the part"])
    @pytest.mark.parametrize(("owner", "settings"), NEXT.values(), ids=NEXT)
    def test_an_attempt_after_one_without_a_checkpoint_restores_the_part_again(
        self,
        gateway: AttemptCoordinator,
        restoring: JobRestoring,
        owner: Any,
        settings: dict[str, Any],
        confirms: bool,
    ) -> None:
        self.restore(restoring)
        first = self.begin(gateway, day(2, clear_marker=AGAIN))
        if confirms:
            self.confirm(gateway, first)
        self.fail(gateway, first)
        again = self.begin(gateway, owner, **settings)
        assert self.is_part(again)
        assert [status for status, _ in self.requests(gateway)] == [RequestStatus.QUEUED]

    @pytest.mark.usefixtures("three_days")
    def test_the_first_checkpoint_ends_it(self, gateway: AttemptCoordinator, restoring: JobRestoring) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 2)
        assert self.requests(gateway) == [(RequestStatus.COMPLETED, f"attempt 4 restored its part of {POINTER}")]
        assert self.operator(gateway).in_place_restore is None
        grant = self.begin(gateway, day(3, clear_marker=AGAIN), retained_runs=3, num_retained=3)
        assert self.candidates(grant) == [8, 7], "its own checkpoint, then the part"
        assert grant.restore_from is None

    @pytest.mark.usefixtures("three_days")
    def test_a_savepoint_of_the_user_does_not_end_it(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions
    ) -> None:
        self.restore(restoring)
        grant = self.begin(gateway, day(2, clear_marker=AGAIN))
        self.confirm(gateway, grant)
        key = actions.request(self.wanted(JobAction.SAVEPOINT, operator_id=OPERATOR)).request_key
        trigger = TriggerCheckpoint(
            attempt=grant.attempt, request_key=new_key(), serves=key, savepoint_dir="memory://mine"
        )
        pending = gateway.trigger(trigger)
        gateway.acknowledge(make_acknowledgement(grant.attempt, pending))
        self.fail(gateway, grant)
        assert self.is_part(self.begin(gateway, day(2, clear_marker=AGAIN)))

    @pytest.mark.usefixtures("three_days")
    def test_a_repeated_registration_gets_the_same_grant(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        key = new_key()
        first = self.begin(gateway, day(2), attempt_key=key)
        assert self.begin(gateway, day(2), attempt_key=key) == first
        self.confirm(gateway, first)
        again = self.begin(gateway, day(2), attempt_key=key)
        assert (self.candidates(again), again.restore_from) == (self.candidates(first), first.restore_from)

    @pytest.mark.usefixtures("three_days")
    def test_a_registration_that_is_refused_leaves_it_to_the_next_one(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, liveness: RunningTasks
    ) -> None:
        self.restore(restoring)
        before = gateway.describe(JOB)
        with pytest.raises(RunSupersededError, match="found the earlier run"):
            self.begin(gateway, day(1, clear_marker=AGAIN))
        assert rows_of(gateway.describe(JOB)) == rows_of(before)
        first = self.begin(gateway, day(2))
        liveness.let_run(day(2).run_id)
        with pytest.raises(ConcurrentAttemptError):
            self.begin(gateway, day(3))
        self.fail(gateway, first)
        assert self.is_part(self.begin(gateway, day(3)))

    @pytest.mark.usefixtures("three_days")
    def test_the_task_claims_nothing(self, gateway: AttemptCoordinator, restoring: JobRestoring) -> None:
        """A task with ``claim_mode="claim"`` asks to own the savepoint that it names, which this is not."""
        self.restore(restoring)
        own = replace(self.part(2, 3).source, pointer=OTHER, mode=RestoreMode.CLAIM, part="")
        grant = self.begin(gateway, day(2), restore_from=own)
        assert self.is_part(grant)
        self.confirm(gateway, grant, claim=True)
        (adopted,) = [c for c in gateway.describe(JOB).checkpoints if c.location == POINTER]
        assert (adopted.status, adopted.properties.unclaimed) == (CheckpointStatus.COMPLETED, True)

    # Order of runs

    @pytest.mark.usefixtures("three_days")
    def test_the_runs_after_the_part_follow_in_their_order(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 2)
        third = self.work(gateway, day(3, clear_marker=AGAIN), 1, retained_runs=3, num_retained=3)
        fourth = self.work(gateway, day(4), 1, retained_runs=3, num_retained=3)
        assert [self.candidates(third), self.candidates(fourth)] == [[8, 7], [9, 8, 7]]
        with pytest.raises(RunSupersededError):
            self.begin(gateway, day(3, clear_marker="10/10"))

    @pytest.mark.usefixtures("three_days")
    def test_a_run_after_the_part_that_starts_over_returns_to_the_part(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 3)
        again = self.begin(gateway, day(3, clear_marker="10/10"), retained_runs=3, num_retained=3)
        assert self.candidates(again) == [7]

    @pytest.mark.usefixtures("three_days")
    def test_the_run_of_the_part_does_not_start_over_with_nothing(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 2)
        with pytest.raises(NoRestorableCheckpointError, match="before run"):
            self.begin(gateway, day(2, clear_marker="10/10"))

    def test_a_first_run_that_starts_over_begins_with_nothing(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.work(gateway, day(1), 2)
        self.restore(restoring, self.part(1, 1))
        self.restored_run(gateway, 1)
        assert self.begin(gateway, day(1, clear_marker="10/10")).is_restore is False

    # Stages without a part

    def test_a_stage_without_a_part_starts_without_state(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        for uid in ("aggregate", "late"):
            self.week(gateway, 1, 2, uid=uid)
        done = self.restore(restoring, self.part(1, 1), self.part(1, 9, uid="loads[b]"))
        assert [(each.uid, each.part is not None) for each in done.operators] == [("aggregate", True), ("late", False)]
        assert [each.uid for each in done.missing] == ["loads[b]"]
        late = self.begin(gateway, day(2), uid="late")
        assert (late.is_restore, late.candidates, late.generation) == (False, (), 2)
        assert late.start_reason.endswith(f"without state in the savepoint {POINTER} of the job")
        self.fail(gateway, late)
        again = self.begin(gateway, day(2), uid="late")
        assert again.is_restore is False
        complete_checkpoint(gateway, again.attempt)
        assert (RequestStatus.COMPLETED, f"attempt 4 started without state, which {POINTER} does not contain") in (
            self.requests(gateway)
        )

    def test_a_stage_without_a_part_ignores_the_savepoint_that_its_task_names(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        for uid in ("aggregate", "late"):
            self.week(gateway, 1, uid=uid)
        self.restore(restoring, self.part(1, 1))
        own = replace(self.part(1, 1, uid="late").source, pointer=OTHER, part="", problem="gone")
        for status in (FAILED, None):
            late = self.begin(gateway, day(1, clear_marker=AGAIN), uid="late", restore_from=own)
            assert (late.is_restore, late.candidates, late.restore_from) == (False, (), None)
            if status is not None:
                self.fail(gateway, late)

    # The request

    @pytest.mark.usefixtures("three_days")
    def test_a_part_that_another_job_took_shares_no_ids_with_this_one(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        retained = self.ids(gateway)
        (done,) = self.restore(restoring, replace(self.part(2, 3), is_foreign=True)).operators
        assert [c.checkpoint_id for c in reversed(done.taken_back)] == retained
        assert done.warning == ""
        self.restored_run(gateway, 2)
        assert self.operator(gateway).first_run == ""

    def test_a_part_from_before_a_fresh_start_comes_with_a_warning(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        part = self.part(1, 2)
        self.week(gateway, 1)
        assert self.restore(restoring, part, dry_run=True).operators[0].warning == ""
        self.work(gateway, day(1, clear_marker=AGAIN), on_clear=OnClear.RESTART)
        (done,) = self.restore(restoring, part).operators
        assert "'aggregate' has started over since its part was taken" in done.warning
        assert self.restore(restoring, part).operators == (done,)
        self.fail(gateway, self.begin(gateway, day(1)))
        (again,) = self.restore(restoring, part).operators
        assert again.warning == done.warning

    @pytest.mark.usefixtures("three_days")
    def test_a_part_from_before_a_restore_in_place_comes_without_a_warning(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.fail(gateway, self.begin(gateway, day(2)))
        self.restored_run(gateway, 2)
        assert self.operator(gateway).generation == 3
        (done,) = self.restore(restoring).operators
        assert done.warning == ""

    @pytest.mark.usefixtures("three_days")
    def test_the_result_names_what_is_taken_back(self, restoring: JobRestoring) -> None:
        (done,) = self.restore(restoring).operators
        assert [c.checkpoint_id for c in done.taken_back] == [6, 5, 4]
        assert done.newest is not None
        assert (done.first_run, done.newest.owner) == (day(2).run_key, day(3))

    def test_nothing_is_restored_while_a_task_runs(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, liveness: RunningTasks
    ) -> None:
        self.week(gateway, 1, 2, uid="aggregate")
        self.week(gateway, 1, uid="late")
        self.begin(gateway, day(2), uid="late")
        liveness.let_run(day(2).run_id)
        before = gateway.describe(JOB)
        with pytest.raises(ConcurrentAttemptError, match="nothing was changed"):
            self.restore(restoring, self.part(1, 1))
        after = gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), ())

    @pytest.mark.usefixtures("three_days")
    def test_an_attempt_whose_task_is_dead_is_fenced(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        dead = self.begin(gateway, day(4))
        (done,) = self.restore(restoring).operators
        assert done.fenced is not None
        assert done.fenced.owner == day(4)
        with pytest.raises(StaleAttemptError):
            complete_checkpoint(gateway, dead.attempt)

    @pytest.mark.usefixtures("three_days")
    def test_a_dry_run_says_the_same_and_changes_nothing(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, clock: ManualClock
    ) -> None:
        before = gateway.describe(JOB)
        clock.advance(60)
        dry = self.restore(restoring, dry_run=True)
        after = gateway.describe(JOB)
        assert (after.job, rows_of(after), after.actions) == (before.job, rows_of(before), ())
        assert self.restore(restoring) == dry

    def test_a_job_that_is_not_there_is_told(self, restoring: JobRestoring) -> None:
        with pytest.raises(CheckpointNotFoundError):
            self.restore(restoring)

    @pytest.mark.usefixtures("three_days")
    def test_it_may_be_repeated_until_the_first_checkpoint(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        first = self.restore(restoring)
        assert self.restore(restoring) == first
        grant = self.begin(gateway, day(2))
        self.confirm(gateway, grant)
        self.fail(gateway, grant)
        (again,) = self.restore(restoring).operators
        assert again.taken_back == first.operators[0].taken_back
        assert [status for status, _ in self.requests(gateway)] == [RequestStatus.QUEUED]
        assert self.is_part(self.begin(gateway, day(2)))

    @pytest.mark.usefixtures("three_days")
    def test_after_its_end_it_may_be_requested_once_more(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 2)
        (done,) = self.restore(restoring).operators
        assert [c.checkpoint_id for c in done.taken_back] == [8, 7], "of another generation than the part"
        assert self.is_part(self.begin(gateway, day(2)))

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize("fault", [CoordinatorUnavailableError, CommitStateUnknownError])
    def test_a_repetition_after_a_fault_has_one_result(
        self, gateway: AttemptCoordinator, store: JobStore, liveness: RunningTasks, fault: type[Exception]
    ) -> None:
        faulty: Any = FaultyStore(store, fault)
        with pytest.raises(fault):
            self.restore(JobRestoring(faulty, liveness))
        assert len(self.requests(gateway)) == (fault is CommitStateUnknownError)
        self.restore(JobRestoring(store, liveness))
        assert [status for status, _ in self.requests(gateway)] == [RequestStatus.QUEUED]

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize("is_running", [True, False])
    def test_a_known_request_changes_nothing_whatever_has_happened_since(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, liveness: RunningTasks, is_running: bool
    ) -> None:
        savepoint = JobSavepoint(pointer=POINTER, parts=(self.part(2, 3), self.part(2, 3, uid="gone")))
        request = RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna")
        first = restoring.restore(request)
        self.restored_run(gateway, 2)
        self.begin(gateway, day(3, clear_marker=AGAIN), uid="late")
        if is_running:
            self.begin(gateway, day(3, clear_marker=AGAIN), retained_runs=3, num_retained=3)
            liveness.let_run(day(3).run_id)
        before = gateway.describe(JOB)
        again = restoring.restore(request)
        assert ([o.uid for o in again.operators], again.missing) == (["aggregate"], first.missing)
        after = gateway.describe(JOB)
        assert (rows_of(after), after.actions) == (rows_of(before), before.actions)

    @pytest.mark.usefixtures("three_days")
    @pytest.mark.parametrize(
        "change",
        [
            {"pointer": OTHER},
            {"metadata_uri": f"{OTHER}/_metadata"},
            {"mode": RestoreMode.CLAIM},
            {"part": "other"},
            {"problem": "none"},
        ],
        ids=lambda change: next(iter(change)),
    )
    def test_a_part_that_is_not_of_the_savepoint_is_refused_and_changes_nothing(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, change: dict[str, Any]
    ) -> None:
        part = self.part(2, 3)
        wrong = replace(part, source=replace(part.source, **change))
        savepoint = JobSavepoint(pointer=POINTER, parts=(self.part(2, 3, uid="first"), wrong))
        with pytest.raises(InvalidConfigurationError, match="part of stage 'aggregate' to be one of the savepoint"):
            restoring.restore(RestoreJob(job_id=JOB, savepoint=savepoint, requested_by="anna"))
        assert gateway.describe(JOB).actions == ()

    # Files

    @pytest.mark.usefixtures("three_days")
    def test_the_first_checkpoint_is_full_and_the_part_is_never_deleted(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        self.restored_run(gateway, 2)
        rows = {c.checkpoint_id: c for c in gateway.describe(JOB).checkpoints}
        assert rows[8].properties.snapshot_type is CheckpointType.FULL_CHECKPOINT
        self.work(gateway, day(3, clear_marker=AGAIN), 3, num_retained=1, retained_runs=0)
        (part,) = [c for c in gateway.describe(JOB).checkpoints if c.location == POINTER]
        assert (part.status, part.awaits_discard) == (CheckpointStatus.SUBSUMED, False)

    @pytest.mark.usefixtures("three_days")
    def test_what_was_there_before_stays_until_the_first_checkpoint(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        grant = self.begin(gateway, day(2), retained_runs=3, num_retained=3)
        self.confirm(gateway, grant)
        assert self.ids(gateway) == [2, 4, 5, 6, 7]
        assert [c.checkpoint_id for c in grant.effects.discards] == [1, 3]
        complete_checkpoint(gateway, grant.attempt)
        assert self.ids(gateway) == [7, 8]

    @pytest.mark.usefixtures("three_days")
    def test_readers_see_the_part_once_it_is_restored(
        self, gateway: AttemptCoordinator, restoring: JobRestoring
    ) -> None:
        self.restore(restoring)
        assert self.read(gateway) == 6
        first = self.begin(gateway, day(2))
        assert self.read(gateway) == 6
        self.confirm(gateway, first)
        assert self.read(gateway) == 7
        self.fail(gateway, first)
        self.begin(gateway, day(2))
        assert self.read(gateway) == 7

    @staticmethod
    def read(gateway: AttemptCoordinator) -> int:
        """Return the checkpoint that readers of the state get."""
        latest = gateway.latest_checkpoints(JOB)
        assert latest is not None
        return latest.checkpoints[0].checkpoint_id

    # Its other ends

    @staticmethod
    def wanted(action: JobAction, **changes: Any) -> UserAction:
        """Return an action of a user."""
        return UserAction(
            **{"job_id": JOB, "action": action, "request_key": new_key(), "requested_by": "bob"} | changes
        )

    def half_restored(self, gateway: AttemptCoordinator, restoring: JobRestoring, tries: str) -> None:
        """Restore in place and let attempts fail before or after they confirm."""
        self.restore(restoring)
        for has_confirmed in tries:
            grant = self.begin(gateway, day(3, clear_marker=AGAIN))
            if has_confirmed == "c":
                self.confirm(gateway, grant)
            self.fail(gateway, grant)

    TRIES = pytest.mark.parametrize(
        "tries",
        ["", "f", "c", "cf", "fc"],
        ids=["untaken", "not read", "restored", "restored, then not read", "not read, then restored"],
    )

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_a_withdrawal_returns_to_the_checkpoints_of_before(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions, tries: str
    ) -> None:
        self.half_restored(gateway, restoring, tries)
        wanted = self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR)
        assert [c.checkpoint_id for c in actions.preview(wanted).kept] == [6, 5, 4, 2]
        actions.request(wanted)
        assert self.requests(gateway) == [(RequestStatus.FAILED, "withdrawn by bob")]
        assert self.read(gateway) == 6
        grant = self.begin(gateway, day(4), retained_runs=3, num_retained=3)
        assert (self.candidates(grant), grant.restore_from) == ([6, 5, 4, 2], None)
        completed = complete_checkpoint(gateway, grant.attempt).checkpoint
        assert completed is not None
        assert self.read(gateway) == completed.checkpoint_id

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_a_fresh_start_after_a_withdrawal_is_one(
        self,
        gateway: AttemptCoordinator,
        restoring: JobRestoring,
        actions: JobActions,
        rewinding: JobRewinding,
        tries: str,
    ) -> None:
        """The generation of the restore is used again."""
        self.half_restored(gateway, restoring, tries)
        actions.request(self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR))
        rerun = day(1, run_id="manual", clear_marker=AGAIN)
        with pytest.raises(RunSupersededError):
            self.begin(gateway, rerun)
        rewinding.rewind(RewindJob(job_id=JOB, run_key=day(1).run_key))
        for _ in range(2):
            grant = self.begin(gateway, day(1))
            assert (grant.is_restore, grant.candidates) == (False, ())
            self.fail(gateway, grant)

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_a_rewind_starts_from_the_checkpoints_of_before(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, rewinding: JobRewinding, tries: str
    ) -> None:
        self.half_restored(gateway, restoring, tries)
        request = RewindJob(job_id=JOB, run_key=day(3).run_key)
        before = gateway.describe(JOB)
        dry = rewinding.rewind(replace(request, dry_run=True))
        assert (rows_of(gateway.describe(JOB)), gateway.describe(JOB).actions) == (rows_of(before), before.actions)
        assert rewinding.rewind(request) == dry
        (done,) = dry
        assert ([c.checkpoint_id for c in done.taken_back], done.withdrawn_restore) == ([6, 5], POINTER)
        assert self.requests(gateway) == [(RequestStatus.FAILED, "replaced by a rewind")]
        assert self.candidates(self.begin(gateway, day(3, clear_marker=AGAIN))) == [4, 2]

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_the_choice_of_a_checkpoint_ends_it(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions, tries: str
    ) -> None:
        self.half_restored(gateway, restoring, tries)
        actions.request(self.wanted(JobAction.RESTORE, checkpoint_id=5))
        assert self.requests(gateway) == [(RequestStatus.FAILED, "replaced by the choice of checkpoint 5")]
        assert self.candidates(self.begin(gateway, day(3))) == [5]

    @pytest.mark.usefixtures("three_days")
    def test_the_restored_part_may_be_chosen(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions
    ) -> None:
        self.half_restored(gateway, restoring, "c")
        wanted = self.wanted(JobAction.RESTORE, checkpoint_id=7)
        assert any(POINTER in note for note in actions.preview(wanted).notes)
        actions.request(wanted)
        assert self.is_part(self.begin(gateway, day(3)))

    @pytest.mark.usefixtures("three_days")
    def test_it_replaces_the_choice_of_a_checkpoint(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions
    ) -> None:
        actions.request(self.wanted(JobAction.RESTORE, checkpoint_id=5))
        (done,) = self.restore(restoring).operators
        assert done.replaced == "checkpoint 5"
        assert self.is_part(self.begin(gateway, day(3)))
        choice = next(a for a in requested_actions(gateway.describe(JOB)) if a.checkpoint_id == 5)
        assert (choice.status, choice.message) == (RequestStatus.FAILED, f"replaced by a restore of {POINTER}")

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_another_restore_replaces_it(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions, tries: str
    ) -> None:
        self.half_restored(gateway, restoring, tries)
        (done,) = self.restore(restoring, self.part(1, 2), pointer=OTHER).operators
        assert ([c.checkpoint_id for c in done.taken_back], done.replaced) == ([6, 5, 4], POINTER)
        assert sorted(self.requests(gateway)) == [
            (RequestStatus.FAILED, f"replaced by a restore of {OTHER}"),
            (RequestStatus.QUEUED, ""),
        ]
        assert [c.location for c in self.begin(gateway, day(1)).candidates] == [OTHER]

    @pytest.mark.usefixtures("three_days")
    def test_it_is_not_withdrawn_from_an_attempt_that_works_on_it(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, actions: JobActions
    ) -> None:
        self.restore(restoring)
        grant = self.begin(gateway, day(3))
        for wanted in (
            self.wanted(JobAction.WITHDRAW, operator_id=OPERATOR),
            self.wanted(JobAction.RESTORE, checkpoint_id=5),
        ):
            with pytest.raises(ConcurrentAttemptError, match="wait until its first checkpoint"):
                actions.request(wanted)
        self.confirm(gateway, grant)
        complete_checkpoint(gateway, grant.attempt)
        assert [status for status, _ in self.requests(gateway)] == [RequestStatus.COMPLETED]

    @pytest.mark.usefixtures("three_days")
    @TRIES
    def test_the_removal_of_the_job_ends_it(
        self, gateway: AttemptCoordinator, restoring: JobRestoring, store: JobStore, clock: ManualClock, tries: str
    ) -> None:
        self.half_restored(gateway, restoring, tries)
        clock.advance(10 * 24 * 3600)
        maintenance = JobMaintenance(store, UnknownRuns(), NoTokens(), clock, pause=lambda _: None)
        maintenance.retire(RetireJob(job_id=JOB, is_named=True))
        assert self.requests(gateway) == [(RequestStatus.FAILED, "the checkpoints of the job are deleted")]
        for _ in range(2):
            grant = self.begin(gateway, day(1))
            assert grant.is_restore is False
            self.fail(gateway, grant)


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
    def transaction(self, job_id: JobId, *, create_as: str | None = None) -> Iterator[JobTransaction]:
        """Open a transaction that fails."""
        with self._store.transaction(job_id, create_as=create_as) as tx:
            yield tx
            if self._error is not CommitStateUnknownError:
                raise self._error("planned")
        raise self._error("planned")
