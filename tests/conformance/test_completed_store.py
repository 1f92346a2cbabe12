"""The contract of completed checkpoints over each kind of rows."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.metadata.sql_state_handles import SqlHandleRows
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.memory_store import InMemoryHandleRows, InMemoryJobStore
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.completed_store_contract import JOB, OPERATOR, CompletedCheckpointStoreContract


class TestInMemory(CompletedCheckpointStoreContract):
    @pytest.fixture
    def jobs(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)

    @pytest.fixture
    def gateway(self, jobs: InMemoryJobStore) -> AttemptCoordinator:
        return AttemptCoordinator(jobs)

    @pytest.fixture
    def rows(self, jobs: InMemoryJobStore) -> InMemoryHandleRows:
        return InMemoryHandleRows(jobs, JOB)


class SqlContract(CompletedCheckpointStoreContract):
    @pytest.fixture
    def gateway(self, engine: Engine, clock: ManualClock) -> AttemptCoordinator:
        return AttemptCoordinator(SqlJobStore(engine, clock))

    @pytest.fixture
    def rows(self, engine: Engine, clock: ManualClock) -> SqlHandleRows:
        return SqlHandleRows(engine, JOB, OPERATOR, clock)


class TestSqlite(OnSqlite, SqlContract):
    pass


class TestPostgres(OnPostgres, SqlContract):
    pass
