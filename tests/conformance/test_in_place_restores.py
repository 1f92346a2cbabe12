"""The contract of restores in place over each store."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import ManualClock
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.in_place_restore_contract import InPlaceRestoreContract


class TestInMemory(InPlaceRestoreContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)


class SqlContract(InPlaceRestoreContract):
    @pytest.fixture
    def store(self, engine: Engine, clock: ManualClock) -> SqlJobStore:
        return SqlJobStore(engine, clock)


class TestSqlite(OnSqlite, SqlContract): ...


class TestPostgres(OnPostgres, SqlContract): ...
