"""The contract of the newest checkpoints of a changed job over each store."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, text
from sqlalchemy.engine import Engine

from airflow_provider_statecheck.checkpoint.store import JobStore
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.metadata.sql_store import JoinedSqlJobStore, SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from tests.conformance.databases import OnPostgres, OnSqlite
from tests.contracts.latest_contract import OTHER, ChangedJobContract, Job, newest
from tests.contracts.runs_of_a_job import JOB
from tests.messages import ManualClock


class SqlContract(ChangedJobContract):
    def test_a_commit_of_another_process_is_seen_by_the_next_check(
        self, job: Job, store: JobStore, engine: Engine, clock: ManualClock
    ) -> None:
        """Connections are reused, and none of them may hold an old snapshot."""
        other = SqlJobStore(engine.execution_options(), clock)
        for _ in range(3):
            known = newest(store).job.rows_version
            assert store.latest_checkpoints(JOB, known) is None
            with other.transaction(JOB) as tx:
                tx.draw_checkpoint_id()
                if engine.dialect.name != "sqlite":
                    assert store.latest_checkpoints(JOB, known) is None, "not committed yet"
            assert store.latest_checkpoints(JOB, known) is not None

    def test_a_check_in_an_open_transaction_sees_its_changes(
        self, job: Job, store: JobStore, engine: Engine, clock: ManualClock
    ) -> None:
        known = newest(store).job.rows_version
        with engine.connect() as connection:
            joined = JoinedSqlJobStore(connection, clock)
            assert joined.latest_checkpoints(JOB, known) is None
            with joined.transaction(JOB) as tx:
                tx.draw_checkpoint_id()
            assert joined.latest_checkpoints(JOB, known) is not None
            connection.rollback()
        assert store.latest_checkpoints(JOB, known) is None


class TestSqlite(OnSqlite, SqlContract):
    def test_missing_tables_are_named(self, store: JobStore, engine: Engine) -> None:
        METADATA.drop_all(engine)
        with pytest.raises(EnvironmentNotReadyError, match="airflow db migrate"):
            store.latest_checkpoints(JOB, OTHER)


class TestPostgres(OnPostgres, SqlContract):
    def test_a_connection_that_the_server_closed_is_replaced(
        self, job: Job, store: JobStore, engine: Engine, schema_url: str
    ) -> None:
        known = newest(store).job.rows_version
        with engine.connect() as connection:
            closed = connection.scalar(text("SELECT pg_backend_pid()"))
        other = create_engine(schema_url)
        with other.connect() as connection:
            connection.execute(text("SELECT pg_terminate_backend(:pid)"), {"pid": closed})
        other.dispose()
        assert store.latest_checkpoints(JOB, known) is None
