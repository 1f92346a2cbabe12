"""What a transition changes is written once, and only over the rows that it has read."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime

import pytest
from sqlalchemy import update
from sqlalchemy.engine import Connection, Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef
from airflow_provider_statecheck.checkpoint.properties import CheckpointProperties
from airflow_provider_statecheck.checkpoint.records import CheckpointRecord, CheckpointRequest, CheckpointStatus
from airflow_provider_statecheck.exceptions import CoordinatorError
from airflow_provider_statecheck.metadata import statements
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import CHECKPOINTS, OPERATORS, REQUESTS
from airflow_provider_statecheck.metadata.unit_of_work import UnitOfWork
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.messages import complete_checkpoint, make_registration

MANY = 120
"""More rows than one statement writes."""


class UnitOfWorkContract:
    @pytest.fixture
    def attempt(self, engine: Engine) -> AttemptRef:
        coordinator = AttemptCoordinator(SqlJobStore(engine))
        attempt = coordinator.register(make_registration()).attempt
        complete_checkpoint(coordinator, attempt)
        return attempt

    @pytest.fixture
    def connection(self, engine: Engine) -> Iterator[Connection]:
        with engine.connect() as connection:
            yield connection

    @pytest.fixture
    def rows(self, connection: Connection, attempt: AttemptRef) -> UnitOfWork:
        return UnitOfWork(connection, attempt.job_id)

    def test_changes_of_several_tables_are_written(
        self, engine: Engine, connection: Connection, rows: UnitOfWork, attempt: AttemptRef
    ) -> None:
        operator, checkpoint = rows.get(OPERATORS, attempt.operator_id), first(rows)
        assert operator is not None
        rows.save(OPERATORS, replace(operator, first_run="monday"))
        rows.save(CHECKPOINTS, replace(checkpoint, unusable_reason="torn"))
        rows.add(CHECKPOINTS, replace(checkpoint, checkpoint_id=7, request_key=new_key()))
        rows.flush()
        connection.commit()
        view = SqlJobStore(engine).describe(attempt.job_id)
        assert view.operators == (replace(operator, first_run="monday"),)
        assert [(c.checkpoint_id, c.unusable_reason) for c in view.checkpoints] == [(1, "torn"), (7, None)]

    def test_a_row_that_is_added_and_changed_is_written_as_it_is_at_the_end(self, rows: UnitOfWork) -> None:
        added = replace(first(rows), checkpoint_id=7, request_key=new_key(), status=CheckpointStatus.PENDING)
        rows.add(CHECKPOINTS, added)
        rows.save(CHECKPOINTS, replace(added, status=CheckpointStatus.ABORTED))
        [read] = rows.read(CHECKPOINTS, CHECKPOINTS.by_key, checkpoint_id=7)
        assert read.status is CheckpointStatus.ABORTED

    def test_a_query_finds_what_was_changed_before(self, rows: UnitOfWork, attempt: AttemptRef) -> None:
        for _ in range(MANY):
            rows.save(REQUESTS, request(attempt))
        assert len(rows.read(REQUESTS, statements.OPEN_REQUESTS, operator_id=attempt.operator_id)) == MANY

    @pytest.mark.parametrize("others", [0, 1], ids=["alone", "with another row"])
    @pytest.mark.parametrize("changes", [{"status": CheckpointStatus.SUBSUMED}, {"epoch": 9}], ids=["status", "epoch"])
    def test_a_row_that_is_not_as_it_was_read_is_not_written(
        self, connection: Connection, rows: UnitOfWork, attempt: AttemptRef, others: int, changes: dict[str, object]
    ) -> None:
        checkpoint = first(rows)
        connection.execute(update(CHECKPOINTS.table).values(changes))
        rows.save(CHECKPOINTS, replace(checkpoint, unusable_reason="torn"))
        for _ in range(others):
            rows.save(REQUESTS, request(attempt))
        with pytest.raises(CoordinatorError, match="another writer changed one"):
            rows.flush()
        assert first(UnitOfWork(connection, attempt.job_id)) == replace(checkpoint, **changes)  # type: ignore[arg-type]


class TestSqlite(OnSqlite, UnitOfWorkContract): ...


class TestPostgres(OnPostgres, UnitOfWorkContract): ...


def first(rows: UnitOfWork) -> CheckpointRecord:
    found = rows.get(CHECKPOINTS, 1)
    assert found is not None
    return found


def request(attempt: AttemptRef) -> CheckpointRequest:
    return CheckpointRequest(
        job_id=attempt.job_id,
        request_key=new_key(),
        operator_id=attempt.operator_id,
        properties=CheckpointProperties.for_savepoint(),
        requested_at=datetime(2026, 1, 1, tzinfo=UTC),
    )
