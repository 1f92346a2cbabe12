"""The contract of state handles over each kind of rows."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import create_engine, event, text
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.state_handle_store import HandleRow
from airflow_provider_statecheck.exceptions import CommitStateUnknownError
from airflow_provider_statecheck.metadata.database import open_engine
from airflow_provider_statecheck.metadata.models import Base
from airflow_provider_statecheck.metadata.sql_state_handles import SqlHandleRows
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.memory_store import InMemoryHandleRows, InMemoryJobStore
from tests.contracts.state_handle_store_contract import JOB, OPERATOR, StateHandleStoreContract


class TestInMemory(StateHandleStoreContract):
    @pytest.fixture
    def jobs(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)

    @pytest.fixture
    def gateway(self, jobs: InMemoryJobStore) -> AttemptCoordinator:
        return AttemptCoordinator(jobs)

    @pytest.fixture
    def rows(self, jobs: InMemoryJobStore) -> InMemoryHandleRows:
        return InMemoryHandleRows(jobs, JOB)


class SqlContract(StateHandleStoreContract):
    @pytest.fixture
    def gateway(self, engine: Engine, clock: ManualClock) -> AttemptCoordinator:
        return AttemptCoordinator(SqlJobStore(engine, clock))

    @pytest.fixture
    def rows(self, engine: Engine, clock: ManualClock) -> SqlHandleRows:
        return SqlHandleRows(engine, JOB, OPERATOR, clock)

    def test_a_connection_lost_at_a_statement_leaves_the_outcome_unknown(self, engine: Engine) -> None:
        def lose(conn: object, cursor: object, statement: str, *_: object) -> None:
            if statement.startswith("INSERT INTO statecheck_state_handle "):
                raise DBAPIError(statement, None, Exception("gone"), connection_invalidated=True)

        event.listen(engine, "before_cursor_execute", lose)
        with pytest.raises(CommitStateUnknownError), self.handle_rows.transaction() as tx:
            tx.save(HandleRow(name="a", handle=b""))


class TestSqlite(SqlContract):
    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = open_engine(f"sqlite:///{tmp_path}/state.db")
        yield engine
        engine.dispose()


@pytest.mark.db
class TestPostgres(SqlContract):
    @pytest.fixture
    def engine(self, postgres_url: str) -> Iterator[Engine]:
        schema = f"t{uuid.uuid4().hex}"
        engine = create_engine(postgres_url, connect_args={"options": f"-csearch_path={schema}"})
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        Base.metadata.create_all(engine)
        yield engine
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()
