"""The contract of completed checkpoints over each kind of rows."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import ManualClock
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.conformance.served import OverHttp
from tests.contracts.completed_store_contract import CompletedCheckpointStoreContract


class TestInMemory(CompletedCheckpointStoreContract):
    @pytest.fixture
    def jobs(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)


class SqlContract(CompletedCheckpointStoreContract):
    @pytest.fixture
    def jobs(self, engine: Engine, clock: ManualClock) -> SqlJobStore:
        return SqlJobStore(engine, clock)


class TestSqlite(OnSqlite, SqlContract):
    pass


class TestPostgres(OnPostgres, SqlContract):
    pass


class TestSqliteOverHttp(OverHttp, OnSqlite, SqlContract):
    pass


@pytest.mark.soak  # HTTP with SQLite and PostgreSQL without HTTP run in make test
class TestPostgresOverHttp(OverHttp, OnPostgres, SqlContract):
    pass
