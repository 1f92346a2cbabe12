"""Attempts that meet in a database do not mix."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.exceptions import CoordinatorError, StaleAttemptError
from airflow_provider_statecheck.spark.sinks.sql.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.tables.databases import SinkDatabase
from tests.unit.spark.sinks.sql.databases import TABLE, Place


def test_a_new_attempt_waits_for_the_transaction_of_a_zombie_and_then_goes_on_from_it(postgres, monkeypatch):
    zombie = postgres.open(1)
    written = zombie.write(1)
    publish, is_within, may_end = SqlDestination._publish, Event(), Event()

    def slow(destination: SqlDestination, *rest: Any) -> None:
        publish(destination, *rest)
        is_within.set()
        assert may_end.wait(60)

    monkeypatch.setattr(SqlDestination, "_publish", slow)
    with ThreadPoolExecutor(2) as pool:
        committing = pool.submit(zombie.commit, 1, written)
        assert is_within.wait(60)
        opening = pool.submit(postgres.open, 2, restored=1, restored_epoch=1)
        _wait_for_a_lock(postgres)
        assert not opening.done()
        may_end.set()
        committing.result(60)
        second = opening.result(60)
    monkeypatch.undo()
    second.commit(1, written)
    assert postgres.seen == [1]


def _wait_for_a_lock(place: Place) -> None:
    waiting = "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%statecheck_sink_heads%'"
    assert any(place.run(waiting) for _ in range(100_000))


def test_attempts_that_meet_while_they_open_leave_the_newest_with_the_table(postgres):
    first = [postgres.attempt(epoch) for epoch in range(1, 5)]

    def opened(attempt: Any) -> bool:
        try:
            attempt.open()
        except StaleAttemptError:
            return False
        return True

    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(opened, first))
    assert found[-1]
    for attempt in first[:-1]:
        with pytest.raises((StaleAttemptError, CoordinatorError)):
            attempt.commit(attempt.context.epoch, first[-1].write(9))
    first[-1].add(5, 5)
    assert postgres.seen == [5]


def test_sinks_that_meet_while_they_make_the_tables_all_get_them(postgres):
    attempts = [postgres.attempt(1, job=f"job {n}") for n in range(4)]
    with ThreadPoolExecutor(4) as pool:
        for n, attempt in enumerate(pool.map(lambda each: each.open(), attempts)):
            attempt.add(1, n)
    assert postgres.seen == [0, 1, 2, 3]


def test_an_attempt_that_stopped_within_a_transaction_does_not_keep_others_away_for_ever(postgres):
    engine = create_engine(postgres.url)
    database = SinkDatabase(postgres.url)
    with database.transaction() as connection:
        limits = [
            connection.execute(text(f"SHOW {name}")).scalar()
            for name in ("lock_timeout", "idle_in_transaction_session_timeout")
        ]
    engine.dispose()
    assert limits == ["10min", "5min"]


def test_a_commit_of_many_rows_of_many_tasks_is_one(place):
    first = place.open(1)
    written = [each for subtask in range(3) for each in first.write(*range(subtask, 60000, 3), subtask=subtask)]
    first.commit(1, written)
    assert place.run(f"SELECT count(*), sum(key) FROM {TABLE}") == [(60000, 59999 * 30000)]
    assert place.commits == [(1, 1, 60000)]
