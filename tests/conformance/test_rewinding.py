"""The contract of rewinding over each store."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import ManualClock
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.rewinding_contract import RewindingContract


class TestInMemory(RewindingContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)


class SqlContract(RewindingContract):
    @pytest.fixture
    def store(self, engine: Engine, clock: ManualClock) -> SqlJobStore:
        return SqlJobStore(engine, clock)


class TestSqlite(OnSqlite, SqlContract): ...


class TestPostgres(OnPostgres, SqlContract): ...
