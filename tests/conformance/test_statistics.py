"""The contract of statistics over each store."""

from __future__ import annotations

import pytest
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore
from airflow_provider_statecheck.testing.messages import ManualClock
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.statistics_contract import StatisticsContract


class TestInMemory(StatisticsContract):
    @pytest.fixture
    def store(self, clock: ManualClock) -> InMemoryJobStore:
        return InMemoryJobStore(clock)


class SqlContract(StatisticsContract):
    @pytest.fixture
    def store(self, engine: Engine, clock: ManualClock) -> SqlJobStore:
        return SqlJobStore(engine, clock)

    # Its hundreds of checkpoints are quick in memory only.
    test_the_row_stays_small_whatever_is_told = pytest.mark.soak(
        StatisticsContract.test_the_row_stays_small_whatever_is_told
    )


class TestSqlite(OnSqlite, SqlContract): ...


class TestPostgres(OnPostgres, SqlContract): ...
