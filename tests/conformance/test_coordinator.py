"""The coordinator's contract over each store."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import CheckpointCoordinator
from airflow_provider_statecheck.checkpoint.ids import job_id_of
from airflow_provider_statecheck.checkpoint.records import CheckpointStatus
from airflow_provider_statecheck.metadata.engines import open_engine
from airflow_provider_statecheck.metadata.models import Base
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.testing.clock import ManualClock
from airflow_provider_statecheck.testing.coordinator_contract import CoordinatorContract
from airflow_provider_statecheck.testing.memory_store import InMemoryJobStore


class TestInMemory(CoordinatorContract):
    @pytest.fixture
    def gateway(self, clock: ManualClock) -> CheckpointCoordinator:
        self.rows = InMemoryJobStore(clock)
        return CheckpointCoordinator(self.rows)

    def lose_completed_checkpoints(self, gateway) -> None:
        with self.rows.transaction(job_id_of("sales")) as tx:
            row = tx.checkpoint(1)
            assert row is not None
            tx.update_checkpoint(replace(row, status=CheckpointStatus.SUBSUMED), expected=row.status)


class SqlContract(CoordinatorContract):
    @pytest.fixture
    def gateway(self, engine: Engine, clock: ManualClock) -> CheckpointCoordinator:
        self.database = engine
        return CheckpointCoordinator(SqlJobStore(engine, clock))

    def lose_completed_checkpoints(self, gateway) -> None:
        with self.database.begin() as connection:
            connection.execute(text("UPDATE statecheck_checkpoint SET status = 'subsumed'"))


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
        """Each test has a schema of its own in the one server."""
        schema = f"t{uuid.uuid4().hex}"
        engine = create_engine(postgres_url, connect_args={"options": f"-csearch_path={schema}"})
        with engine.begin() as connection:
            connection.execute(text(f"CREATE SCHEMA {schema}"))
        Base.metadata.create_all(engine)
        yield engine
        with engine.begin() as connection:
            connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))
        engine.dispose()
