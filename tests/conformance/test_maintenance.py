"""The contract of maintenance over each store, also when savepoints of the whole job were taken."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.tokens import TokenKeeper
from airflow_provider_statecheck.checkpoint.aligned.aligned_checkpoints import AlignedCheckpoints
from airflow_provider_statecheck.checkpoint.aligned.rows import AbortCheckpoints, AbortScope
from airflow_provider_statecheck.checkpoint.failure import CheckpointFailureReason
from airflow_provider_statecheck.checkpoint.ids import ALIGNED_OPERATOR_ID, JobId, new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties, JobStatus
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointRequest
from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.maintenance.job_maintenance import JobMaintenance, RetireJob
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.maintenance_contract import (
    AIRFLOW,
    BY_RUN,
    DAY,
    TEST,
    MaintainedJobs,
    MaintenanceContract,
)
from tests.job_savepoints import begin_savepoint
from tests.messages import ManualClock, make_leadership, make_owner, make_registration

CALLER = Caller(dag_id="nightly", run_id="run-1", task_id="features")


class SqlContract(MaintenanceContract):
    @pytest.fixture
    def tokens(self, engine: Engine, clock: ManualClock) -> TokenKeeper:
        return TokenKeeper(SqlTokenStore(engine), clock)

    def register(self, tokens: TokenKeeper) -> tuple[str, AttemptRef]:
        token = tokens.issue(CALLER).token
        owner = make_owner(run_id="run-1", airflow=AIRFLOW)
        attempt = self.coordinator.register(make_registration(job_name=TEST, owner=owner)).attempt
        tokens.bind(tokens.check(token), attempt, None)
        return token, attempt

    def test_a_token_goes_with_its_attempts_row(self, tokens, clock):
        """Without the row nobody would know that it is revoked."""
        token, old = self.register(tokens)
        self.coordinator.finish(FinishAttempt(attempt=old, status=AttemptStatus.FAILED))
        newest = self.run(TEST)
        clock.advance(2 * DAY)
        assert self.maintenance.forget(newest.job_id, DAY).attempts == (old,)
        with pytest.raises(AccessDeniedError, match="unknown"):
            tokens.check(token)

    def test_the_tokens_of_a_removed_job_open_nothing_of_its_successor(self, tokens, clock, store):
        token, attempt = self.register(tokens)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        reader = tokens.issue_reader(CALLER, attempt.job_id).token
        self.maintenance.retire(RetireJob(job_id=attempt.job_id))
        self.maintenance.remove(RetireJob(job_id=attempt.job_id))
        assert self.run(TEST, status=None).epoch == attempt.epoch + 1
        for each in (token, reader):
            with pytest.raises(AccessDeniedError, match="unknown"):
                tokens.check(each)

    def test_ended_tokens_are_dropped_and_living_ones_stay(self, engine, tokens, clock):
        ended, attempt = self.register(tokens)
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        clock.advance(2.5 * DAY)
        living = tokens.issue_reader(CALLER, attempt.job_id).token
        store, before = SqlTokenStore(engine), clock.now() - timedelta(days=1)
        assert [store.drop_ended(before, dry_run=True), store.drop_ended(before), store.drop_ended(before)] == [1, 1, 0]
        assert tokens.check(living).is_read_only
        with pytest.raises(AccessDeniedError, match="unknown"):
            tokens.check(ended)

    def test_no_time_drops_the_token_of_an_open_attempt(self, engine, tokens, clock):
        """The clock may be ahead; and as long as the attempt is open, its driver may speak again."""
        token, attempt = self.register(tokens)
        clock.advance(5 * DAY)
        tokens.issue(CALLER)
        assert SqlTokenStore(engine).drop_ended(clock.now() - timedelta(days=1)) == 0
        clock.advance(-5 * DAY)
        assert tokens.check(token).attempt == attempt
        self.coordinator.finish(FinishAttempt(attempt=attempt, status=AttemptStatus.FINISHED))
        clock.advance(5 * DAY)
        assert SqlTokenStore(engine).drop_ended(clock.now() - timedelta(days=1)) == 1

    def test_an_attempt_stays_open_while_its_token_is_good(self, engine, store, tokens, clock):
        _, attempt = self.register(tokens)
        maintenance = JobMaintenance(store, self.runs, SqlTokenStore(engine), clock)
        clock.advance(2 * DAY)
        late = tokens.issue(CALLER).token
        tokens.bind(tokens.check(late), attempt, None)
        clock.advance(2.5 * DAY)
        assert maintenance.close_abandoned(attempt.job_id) == ()
        clock.advance(DAY)
        assert self.close_abandoned(maintenance, attempt.job_id) == (attempt,)

    def test_a_registration_that_meets_the_removal_of_its_job_begins_anew(self, store, monkeypatch):
        attempt = self.run(TEST)
        ensure = store.ensure_job

        def remove_after(job_id, name):
            ensure(job_id, name)
            with store.transaction(job_id) as tx:
                tx.remove_job()

        monkeypatch.setattr(store, "ensure_job", remove_after)
        grant = self.coordinator.register(make_registration(job_name=TEST, owner=make_owner(run_id="run-1")))
        assert (grant.attempt.epoch, grant.is_restore) == (attempt.epoch + 1, False)


class TestSqlite(OnSqlite, SqlContract): ...


class TestPostgres(OnPostgres, SqlContract): ...


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
        rows.resign(leader)

    @staticmethod
    def ask(store: JobStore, job_id: JobId) -> None:
        """Request a savepoint of the job that no process triggers."""
        with store.transaction(job_id) as tx:
            tx.save_request(
                CheckpointRequest(
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
        self, store: JobStore, stage: AttemptRef
    ) -> None:
        self.runs.ended["run-1"] = JobStatus.FINISHED
        self.runs.meanwhile = lambda: self.ask(store, stage.job_id)
        assert self.maintenance.settle_run(stage.job_id) == ()

    def test_the_job_is_removed_although_a_savepoint_was_taken_lately(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        self.runs.over.add("run-1")
        clock.advance(10 * DAY)
        self.end_savepoint(store)
        clock.advance(DAY)
        assert self.maintenance.retire(RetireJob(job_id=stage.job_id, idle_seconds=5 * DAY)) == ()

    def test_the_job_stays_while_a_savepoint_is_in_progress_unless_it_is_named(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        self.runs.over.add("run-1")
        clock.advance(10 * DAY)
        self.ask(store, stage.job_id)
        request = RetireJob(job_id=stage.job_id, idle_seconds=DAY)
        for call in (self.maintenance.refusal, self.maintenance.retire, self.maintenance.remove):
            [reason] = call(request)
            assert reason.endswith("is in progress")
        assert self.maintenance.refusal(RetireJob(job_id=stage.job_id, is_named=True)) == ()

    def test_the_leader_of_a_savepoint_that_was_killed_is_closed(
        self, store: JobStore, clock: ManualClock, stage: AttemptRef
    ) -> None:
        leader = self.lead(store)
        clock.advance(4 * DAY + 1)
        assert self.close_abandoned(self.maintenance, stage.job_id) == (leader,)


class TestRunWithSavepointSqlite(OnSqlite, RunWithSavepoint): ...


class TestRunWithSavepointPostgres(OnPostgres, RunWithSavepoint): ...
