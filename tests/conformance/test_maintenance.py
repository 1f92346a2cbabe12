"""The contract of maintenance over each store."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.api.services import TokenKeeper
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, FinishAttempt
from airflow_provider_statecheck.checkpoint.records import AttemptStatus
from airflow_provider_statecheck.exceptions import AccessDeniedError
from airflow_provider_statecheck.maintenance.job_maintenance import ForgetRows, JobMaintenance, RetireJob
from airflow_provider_statecheck.metadata.tables import Caller
from airflow_provider_statecheck.metadata.token_store import SqlTokenStore
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.maintenance_contract import AIRFLOW, DAY, TEST, MaintenanceContract
from tests.messages import ManualClock, make_owner, make_registration

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
        assert self.maintenance.forget(ForgetRows(job_id=newest.job_id, age_seconds=DAY)).attempts == (old,)
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
        ensure = store._ensure_job

        def remove_after(job_id, name):
            ensure(job_id, name)
            with store.transaction(job_id) as tx:
                tx.remove_job()

        monkeypatch.setattr(store, "_ensure_job", remove_after)
        grant = self.coordinator.register(make_registration(job_name=TEST, owner=make_owner(run_id="run-1")))
        assert (grant.attempt.epoch, grant.is_restore) == (attempt.epoch + 1, False)


class TestSqlite(OnSqlite, SqlContract): ...


class TestPostgres(OnPostgres, SqlContract): ...
