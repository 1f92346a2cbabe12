"""What a call reads together with the lock on the row of its job is what it would read afterwards."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, PendingCheckpoint, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRequest, CheckpointStatus
from airflow_provider_statecheck.checkpoint.store import FirstRead, JobTransaction, rolled_back
from airflow_provider_statecheck.exceptions import StaleAttemptError
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.messages import complete_checkpoint, make_registration, present


class FirstStatementContract:
    @pytest.fixture
    def coordinator(self, store: SqlJobStore) -> AttemptCoordinator:
        return AttemptCoordinator(store)

    @pytest.fixture
    def attempt(self, coordinator: AttemptCoordinator) -> AttemptRef:
        return coordinator.register(make_registration()).attempt

    @pytest.mark.parametrize("ends_checkpoint", [False, True])
    @pytest.mark.parametrize("request_key", [None, "unknown"])
    @pytest.mark.parametrize("completed", [0, 4])
    @pytest.mark.parametrize("has_pending", [False, True])
    def test_a_call_finds_the_rows_that_it_would_read_one_by_one(
        self,
        store: SqlJobStore,
        coordinator: AttemptCoordinator,
        attempt: AttemptRef,
        ends_checkpoint: bool,
        request_key: str | None,
        completed: int,
        has_pending: bool,
    ) -> None:
        for _ in range(completed):
            complete_checkpoint(coordinator, attempt)
        if has_pending:
            trigger(coordinator, attempt)
        with store.transaction(attempt.job_id) as tx:
            expected = rows_of(tx, attempt)
        reads = FirstRead(operator_id=attempt.operator_id, request_key=request_key, ends_checkpoint=ends_checkpoint)
        with store.transaction(attempt.job_id, reads=reads) as tx:
            assert rows_of(tx, attempt) == expected

    def test_a_call_finds_several_pending_checkpoints_and_requests(
        self, store: SqlJobStore, coordinator: AttemptCoordinator, attempt: AttemptRef
    ) -> None:
        for number in range(3):
            trigger(coordinator, attempt)
            with store.transaction(attempt.job_id) as tx:
                tx.save_request(queued(attempt, tx.now, number))
        with store.transaction(attempt.job_id) as tx:
            expected = rows_of(tx, attempt)
        with store.transaction(
            attempt.job_id, reads=FirstRead(operator_id=attempt.operator_id, ends_checkpoint=True)
        ) as tx:
            found = rows_of(tx, attempt)
        assert found == expected
        assert [len(found["open"]), len(found["requests"])] == [3, 3]

    def test_a_trigger_that_is_repeated_gets_its_checkpoint_even_if_that_is_gone(
        self, store: SqlJobStore, coordinator: AttemptCoordinator, attempt: AttemptRef
    ) -> None:
        request = TriggerCheckpoint(attempt=attempt, request_key=new_key())
        first = coordinator.trigger(request)
        assert coordinator.trigger(request) == first
        with store.transaction(attempt.job_id) as tx:
            row = present(tx.checkpoint(first.checkpoint_id))
            gone = replace(row, status=CheckpointStatus.ABORTED, ended_at=tx.now, discarded_at=tx.now)
            tx.update_checkpoint(gone, expected=CheckpointStatus.PENDING)
        assert coordinator.trigger(request) == first


class TestSqlite(OnSqlite, FirstStatementContract): ...


class TestPostgres(OnPostgres, FirstStatementContract):
    @pytest.mark.parametrize("is_replaced", [True, False], ids=["committed", "rolled back"])
    def test_a_call_that_waited_for_another_transition_sees_what_it_committed(
        self,
        store: SqlJobStore,
        coordinator: AttemptCoordinator,
        attempt: AttemptRef,
        schema_url: str,
        is_replaced: bool,
    ) -> None:
        name = new_key()
        engine = create_engine(schema_url, connect_args={"application_name": name})
        waiting = AttemptCoordinator(SqlJobStore(engine))
        with ThreadPoolExecutor(1) as pool:
            with store.transaction(attempt.job_id) if is_replaced else rolled_back(store, attempt.job_id) as tx:
                call = pool.submit(trigger, waiting, attempt)
                wait_until_blocked(store.engine, name, call)
                operator = present(tx.operator(attempt.operator_id))
                tx.save_operator(replace(operator, epoch=operator.epoch + 1))
            if is_replaced:
                with pytest.raises(StaleAttemptError, match="was replaced by attempt 2"):
                    call.result()
            else:
                assert call.result().checkpoint_id == 1
        engine.dispose()


def wait_until_blocked(engine: Engine, name: str, call: Future[Any]) -> None:
    """Return when a connection waits for a lock that another one holds."""
    query = text(
        "SELECT count(*) FROM pg_stat_activity WHERE application_name = :name AND wait_event_type = 'Lock'"
    ).bindparams(name=name)
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        while not connection.scalar(query):
            assert not call.done(), call.result()


def trigger(coordinator: AttemptCoordinator, attempt: AttemptRef) -> PendingCheckpoint:
    return coordinator.trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))


def queued(attempt: AttemptRef, now: datetime, number: int) -> CheckpointRequest:
    """Return a request to the operator of an attempt."""
    return CheckpointRequest(
        job_id=attempt.job_id,
        request_key=f"key {number}",
        operator_id=attempt.operator_id,
        properties=CheckpointProperties.for_savepoint(),
        requested_at=now,
    )


def rows_of(tx: JobTransaction, attempt: AttemptRef) -> dict[str, Any]:
    """Return what the calls of an attempt decide by."""
    return {
        "operator": tx.operator(attempt.operator_id),
        "attempt": tx.attempt(attempt.operator_id, attempt.epoch),
        "open": tx.open_checkpoints(attempt.operator_id),
        "repeated": tx.checkpoint_by_request("unknown"),
        "statistics": tx.statistics(attempt.operator_id),
        "requests": tx.open_requests(attempt.operator_id),
        "requests of the job": tx.requests_of_job(),
    }
