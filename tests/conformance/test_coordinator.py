"""The coordinator's contract over each store."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.coordinator_contract import CoordinatorContract
from tests.contracts.operator_uids_contract import of_cleared, registration
from tests.contracts.runs_of_a_job import CurrentDags, RunningTasks
from tests.messages import ManualClock


class SqlContract(CoordinatorContract):
    @pytest.fixture
    def coordinator(
        self, engine: Engine, clock: ManualClock, liveness: RunningTasks, dags: CurrentDags
    ) -> AttemptCoordinator:
        self.database = engine
        return AttemptCoordinator(SqlJobStore(engine, clock), liveness, dags)

    def lose_completed_checkpoints(self) -> None:
        with self.database.begin() as connection:
            connection.execute(text("UPDATE statecheck_checkpoint SET status = 'subsumed'"))

    @pytest.mark.parametrize(
        "lose",
        ["DELETE FROM statecheck_checkpoint", "DELETE FROM statecheck_statistics"],
        ids=["forgotten rows", "lost statistics"],
    )
    def test_rows_or_statistics_alone_keep_an_operator_from_being_swapped_for_a_former_one(self, lose: str) -> None:
        self.ran(registration("totals"))
        self.ran(registration("sums", allow_non_restored_state=True))
        self.ran(of_cleared("sums"), checkpoints=0)
        with self.database.begin() as connection:
            connection.execute(text(lose))
        assert self.gateway.register(of_cleared("sums", former_uids=("totals",))).uid == "sums"


class TestSqlite(OnSqlite, SqlContract): ...


@pytest.mark.soak
class TestWithoutReturning(OnSqlite, SqlContract):
    """A database that cannot answer an update with the row, as MySQL."""

    @pytest.fixture
    def engine(self, tmp_path: Path) -> Iterator[Engine]:
        engine = open_engine(f"sqlite:///{tmp_path}/state.db")
        engine.dialect.update_returning = False  # of its own: other engines of the tests share theirs
        yield engine
        engine.dispose()


class TestPostgres(OnPostgres, SqlContract): ...
