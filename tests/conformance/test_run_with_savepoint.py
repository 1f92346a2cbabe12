"""The end of a run, and the removal of its job, when savepoints of the whole job were taken in it."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope, Resign
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptOwner, SnapshotRequest
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.maintenance_contract import BY_RUN, DAY, KnownRuns, MaintainedJobs, NoTokens
from tests.job_savepoints import begin_savepoint
from tests.messages import ManualClock, make_leadership, make_owner


class RunWithSavepoint(MaintainedJobs):
    """A job that is named after its run ends with the run, but not while a savepoint needs its checkpoints."""

    @pytest.fixture
    def stage(self) -> AttemptRef:
        """The attempt of the only stage, which has completed two checkpoints and finished."""
        return self.complete_by_run()

    @staticmethod
    def lead(store: JobStore) -> AttemptRef:
        return AlignedCheckpoints(store).lead(make_leadership(job_name=BY_RUN, owner=make_owner(run_key="", run_id="")))

    @classmethod
    def end_savepoint(cls, store: JobStore) -> None:
        """Let the savepoint in progress fail, if there is one."""
        rows, leader = AlignedCheckpoints(store), cls.lead(store)
        reason = CheckpointFailureReason.CHECKPOINT_DECLINED
        rows.abort(AbortCheckpoints(leader=leader, scope=AbortScope.EVERYTHING, reason=reason))
        rows.resign(Resign(leader=leader))

    @staticmethod
    def ask(store: JobStore, job_id: JobId) -> None:
        """Request a savepoint of the job that no process triggers."""
        with store.transaction(job_id) as tx:
            tx.save_request(
                SnapshotRequest(
                    job_id=job_id,
                    request_key=new_key(),
                    operator_id=ALIGNED_OPERATOR_ID,
                    properties=CheckpointProperties.for_savepoint(force=False),
                    requested_at=tx.now,
                )
            )

    def test_its_checkpoints_go_although_a_savepoint_was_taken(self, store: JobStore, stage: AttemptRef) -> None:
        self.end_savepoint(store)
        assert self.maintenance.settle_run(stage.job_id) == ()
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(stage.job_id) == (1, 2)

    def test_its_checkpoints_stay_until_the_savepoint_has_ended(self, store: JobStore, stage: AttemptRef) -> None:
        begin_savepoint(AlignedCheckpoints(store), stage.operator_id, BY_RUN)
        self.runs.ended["run-1"] = JobStatus.FINISHED
        assert self.maintenance.settle_run(stage.job_id) == ()
        assert all(c.is_restorable for c in self.maintenance.describe(stage.job_id).of_operator(stage.operator_id))
        self.end_savepoint(store)
        assert self.maintenance.settle_run(stage.job_id) == (1, 2)

    def test_a_savepoint_that_has_expired_keeps_none(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        begun = begin_savepoint(AlignedCheckpoints(store), stage.operator_id, BY_RUN)
        self.runs.ended["run-1"] = JobStatus.FINISHED
        clock.advance((begun.expires_at - begun.triggered_at).total_seconds() - 1)
        assert self.maintenance.settle_run(stage.job_id) == ()
        clock.advance(1)
        assert self.maintenance.settle_run(stage.job_id) == (1, 2)

    def test_a_savepoint_that_nobody_triggers_keeps_them_for_a_day(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        self.ask(store, stage.job_id)
        self.runs.ended["run-1"] = JobStatus.FINISHED
        clock.advance(DAY - 1)
        assert self.maintenance.settle_run(stage.job_id) == ()
        clock.advance(1)
        assert self.maintenance.settle_run(stage.job_id) == (1, 2)

    def test_a_savepoint_that_comes_while_the_run_is_looked_at_keeps_them(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        class Requesting(KnownRuns):
            def ended_as(self, owner: AttemptOwner) -> JobStatus | None:
                RunWithSavepoint.ask(store, stage.job_id)
                return JobStatus.FINISHED

        assert JobMaintenance(store, Requesting(), NoTokens(), clock).settle_run(stage.job_id) == ()

    def test_the_job_is_removed_although_a_savepoint_was_taken_lately(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        self.runs.over.add("run-1")
        clock.advance(10 * DAY)
        self.end_savepoint(store)
        clock.advance(DAY)
        assert self.maintenance.retire(RetireJob(job_id=stage.job_id, idle_seconds=5 * DAY)).kept_because == ()

    def test_the_job_stays_while_a_savepoint_is_in_progress_unless_it_is_named(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        self.runs.over.add("run-1")
        clock.advance(10 * DAY)
        self.ask(store, stage.job_id)
        request = RetireJob(job_id=stage.job_id, idle_seconds=DAY)
        for call in (self.maintenance.refusal, self.maintenance.retire, self.maintenance.remove):
            [reason] = call(request).kept_because
            assert reason.endswith("is in progress")
        assert self.maintenance.refusal(RetireJob(job_id=stage.job_id, is_named=True)).kept_because == ()

    def test_the_leader_of_a_savepoint_that_was_killed_is_closed(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        leader = self.lead(store)
        clock.advance(4 * DAY + 1)
        assert self.close_abandoned(self.maintenance, stage.job_id) == (leader,)


class TestSqlite(OnSqlite, RunWithSavepoint): ...


class TestPostgres(OnPostgres, RunWithSavepoint): ...
