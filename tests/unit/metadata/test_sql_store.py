"""What a transition writes, reads and leaves behind on its connection, and how a script opens a database."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from sqlalchemy import create_engine, event, inspect
from sqlalchemy.engine import Engine
from sqlalchemy.pool import QueuePool

from airflow_provider_statecheck.checkpoint.checkpoint_summary import CheckpointSummary, StepSummary
from airflow_provider_statecheck.checkpoint.coordinator import AttemptCoordinator
from airflow_provider_statecheck.checkpoint.ids import new_key
from airflow_provider_statecheck.checkpoint.messages import AttemptRef, TriggerCheckpoint
from airflow_provider_statecheck.checkpoint.records import AttemptStatus, CheckpointStatus, RowsVersion
from airflow_provider_statecheck.exceptions import (
    CommitStateUnknownError,
    CoordinatorError,
    CoordinatorUnavailableError,
    InvalidConfigurationError,
)
from airflow_provider_statecheck.metadata.sql_store import SqlJobStore
from airflow_provider_statecheck.metadata.tables import METADATA
from airflow_provider_statecheck.metadata.unit_of_work import open_engine
from tests.messages import complete_checkpoint, make_registration, present
from tests.sqlite_rows import new_engine


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Engine]:
    engine = new_engine(tmp_path / "state.db")
    yield engine
    engine.dispose()


@pytest.fixture
def store(engine: Engine) -> SqlJobStore:
    return SqlJobStore(engine)


@pytest.fixture
def attempt(store: SqlJobStore) -> AttemptRef:
    return AttemptCoordinator(store).register(make_registration()).attempt


@pytest.fixture
def statements(engine: Engine) -> list[str]:
    found: list[str] = []

    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        found.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    return found


def test_operator_comes_with_its_newest_attempt_in_one_statement(
    store: SqlJobStore, attempt: AttemptRef, statements: list[str]
) -> None:
    with store.transaction(attempt.job_id) as tx:
        statements.clear()
        operator = tx.operator(attempt.operator_id)
        newest = tx.attempt(attempt.operator_id, attempt.epoch)
    assert operator is not None
    assert newest is not None
    assert (operator.epoch, newest.epoch, newest.status) == (1, 1, AttemptStatus.RUNNING)
    assert len(statements) == 1


def test_operator_whose_attempts_were_removed_is_found_without_one(store: SqlJobStore, attempt: AttemptRef) -> None:
    with store.transaction(attempt.job_id) as tx:
        tx.remove_attempts((attempt,))
        assert tx.operator(attempt.operator_id) is not None
        assert tx.attempt(attempt.operator_id, attempt.epoch) is None


def test_earlier_attempt_is_read_by_its_own_epoch(store: SqlJobStore, attempt: AttemptRef) -> None:
    AttemptCoordinator(store).register(make_registration())
    with store.transaction(attempt.job_id) as tx:
        operator = tx.operator(attempt.operator_id)
        earlier = tx.attempt(attempt.operator_id, attempt.epoch)
    assert operator is not None
    assert earlier is not None
    assert (operator.epoch, earlier.epoch, earlier.status) == (2, 1, AttemptStatus.FENCED)


def test_transition_reads_what_it_wrote(store: SqlJobStore, attempt: AttemptRef) -> None:
    complete_checkpoint(AttemptCoordinator(store), attempt)
    with store.transaction(attempt.job_id) as tx:
        [known] = tx.open_checkpoints(attempt.operator_id)
        tx.update_checkpoint(replace(known, unusable_reason="torn"), expected=CheckpointStatus.COMPLETED)
        tx.add_checkpoint(replace(known, checkpoint_id=7, request_key=new_key()))
        found = [(row.checkpoint_id, row.unusable_reason) for row in tx.open_checkpoints(attempt.operator_id)]
        kept = [(row.checkpoint_id, row.unusable_reason) for row in tx.view().checkpoints]
    assert found == kept == [(1, "torn"), (7, None)]


def test_removed_rows_are_forgotten(store: SqlJobStore, attempt: AttemptRef) -> None:
    complete_checkpoint(AttemptCoordinator(store), attempt)
    with store.transaction(attempt.job_id) as tx:
        assert len(tx.open_checkpoints(attempt.operator_id)) == 1
        tx.remove_checkpoints((1,))
        assert tx.checkpoint(1) is None
        assert tx.open_checkpoints(attempt.operator_id) == []


def test_only_columns_that_changed_are_written(store: SqlJobStore, attempt: AttemptRef, statements: list[str]) -> None:
    complete_checkpoint(AttemptCoordinator(store), attempt)
    with store.transaction(attempt.job_id) as tx:
        known = present(tx.checkpoint(1))
        statements.clear()
        tx.update_checkpoint(replace(known, unusable_reason="torn"), expected=CheckpointStatus.COMPLETED)
    [written] = [statement for statement in statements if statement.startswith("UPDATE statecheck_checkpoint")]
    assert written.startswith("UPDATE statecheck_checkpoint SET unusable_reason=? WHERE")


def test_saving_a_known_row_unchanged_writes_nothing(
    store: SqlJobStore, attempt: AttemptRef, statements: list[str]
) -> None:
    with store.transaction(attempt.job_id) as tx:
        operator = present(tx.operator(attempt.operator_id))
        statements.clear()
        tx.save_operator(operator)
    assert statements == []


def test_row_that_was_not_read_is_replaced_whole(store: SqlJobStore, attempt: AttemptRef) -> None:
    with store.transaction(attempt.job_id) as tx:
        known = present(tx.attempt(attempt.operator_id, attempt.epoch))
    ended_at = datetime(2026, 1, 2, tzinfo=UTC) + timedelta(microseconds=1)
    ended = replace(known, status=AttemptStatus.FAILED, ended_at=ended_at, message="disk full")
    with store.transaction(attempt.job_id) as tx:
        tx.save_attempt(ended)
    assert store.describe(attempt.job_id).attempts == (ended,)


def test_update_of_a_checkpoint_that_another_writer_changed_is_refused(store: SqlJobStore, attempt: AttemptRef) -> None:
    AttemptCoordinator(store).trigger(TriggerCheckpoint(attempt=attempt, request_key=new_key()))
    [known] = store.describe(attempt.job_id).checkpoints
    aborted = replace(known, status=CheckpointStatus.ABORTED)
    with pytest.raises(CoordinatorError, match="another writer"), store.transaction(attempt.job_id) as tx:
        tx.update_checkpoint(aborted, expected=CheckpointStatus.COMPLETED)
    assert store.describe(attempt.job_id).checkpoints[0].status is CheckpointStatus.PENDING


def test_failed_commit_leaves_the_outcome_unknown_and_no_transaction_open(
    store: SqlJobStore, attempt: AttemptRef, engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(connection: Any) -> None:
        raise sqlite3.OperationalError("disk I/O error")

    with monkeypatch.context() as patch:
        patch.setattr(engine.dialect, "do_commit", fail)
        with pytest.raises(CommitStateUnknownError), store.transaction(attempt.job_id) as tx:
            tx.draw_checkpoint_id()
    pooled = engine.raw_connection()
    assert not pooled.dbapi_connection.in_transaction  # type: ignore[union-attr]
    pooled.close()
    with store.transaction(attempt.job_id) as tx:
        assert tx.draw_checkpoint_id() == 1


@pytest.mark.parametrize("known", [None, RowsVersion(1, datetime(2026, 1, 1, tzinfo=UTC))], ids=["rows", "version"])
def test_pool_without_a_free_connection_is_a_coordinator_that_is_unavailable(
    store: SqlJobStore, attempt: AttemptRef, engine: Engine, known: RowsVersion | None
) -> None:
    busy = create_engine(engine.url, poolclass=QueuePool, pool_size=1, max_overflow=0, pool_timeout=0)
    with busy.connect():
        waiting = SqlJobStore(busy)
        with pytest.raises(CoordinatorUnavailableError, match="free connection"):
            waiting.latest_checkpoints(attempt.job_id, known)
        with (
            pytest.raises(CoordinatorUnavailableError, match="free connection"),
            waiting.transaction(attempt.job_id),
        ):
            pytest.fail("there is no connection for it")
    busy.dispose()


def test_a_transition_reads_no_figures_of_open_checkpoints_and_leaves_them_as_they_are(
    engine: Engine, store: SqlJobStore
) -> None:
    coordinator = AttemptCoordinator(store)
    attempt = coordinator.register(make_registration(num_retained=1)).attempt
    figures = CheckpointSummary(
        steps=(StepSummary(name="sessions", outcome="computed", seconds=2.5),), write_seconds=0.5
    )
    complete_checkpoint(coordinator, attempt, summary=figures)
    with store.transaction(attempt.job_id) as tx:
        (row,) = tx.open_checkpoints(attempt.operator_id)
        assert row.summary is None
        assert tx.summary(row.checkpoint_id) == figures
        # Another read of the whole row does not lose them either.
        assert tx.checkpoint_by_request(row.request_key) == replace(row, summary=figures)
        tx.update_checkpoint(replace(row, unusable_reason="damaged"), expected=CheckpointStatus.COMPLETED)
    assert coordinator.checkpoint(attempt.job_id, 1) == replace(row, summary=figures, unusable_reason="damaged")
    complete_checkpoint(coordinator, attempt)
    complete_checkpoint(coordinator, attempt)
    assert [c.summary for c in coordinator.describe(attempt.job_id).checkpoints] == [figures, None, None]


def test_scripts_that_open_a_new_database_at_once_all_find_its_tables(tmp_path: Path) -> None:
    together = Barrier(4)

    def tables_found(database: Path) -> set[str]:
        together.wait()
        engine = open_engine(f"sqlite:///{database}")
        found = set(inspect(engine).get_table_names())
        engine.dispose()
        return found

    with ThreadPoolExecutor(4) as threads:
        for number in range(5):
            found = threads.map(tables_found, [tmp_path / f"{number}.db"] * 4)
            assert all(METADATA.tables.keys() <= each for each in found)


def test_a_database_that_cannot_be_written_is_opened_for_reading(tmp_path: Path) -> None:
    open_engine(f"sqlite:///{tmp_path}/state.db").dispose()
    open_engine(f"sqlite:///file:{tmp_path}/state.db?mode=ro&uri=true").dispose()


@pytest.mark.parametrize(
    "url",
    [
        None,
        "planted",
        "postgresql://me:planted@host:port/db",
        "nosuch://me:planted@host/db",
        "mysql+nosuch://me:planted@host/db",
    ],
)
def test_what_is_no_url_of_a_database_is_refused_without_being_shown(url: Any) -> None:
    with pytest.raises(InvalidConfigurationError, match="Expected the SQLAlchemy URL of a database") as caught:
        open_engine(url)
    assert "planted" not in f"{caught.value} {caught.value.__cause__}"


def test_an_asynchronous_driver_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfigurationError, match="found the asynchronous driver aiosqlite"):
        open_engine(f"sqlite+aiosqlite:///{tmp_path}/state.db")


def test_a_database_in_a_missing_directory_is_told(tmp_path: Path) -> None:
    with pytest.raises(CoordinatorUnavailableError, match=r"unable to open database file.*create its folder"):
        open_engine(f"sqlite:///{tmp_path}/missing/state.db")
