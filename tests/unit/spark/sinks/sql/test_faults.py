"""A fault at any step of a SQL sink changes nothing in the end, and attempts that meet in the database do not mix."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st
from sqlalchemy import create_engine, text

from airflow_provider_statecheck.exceptions import CoordinatorError, CorruptStateError, StaleAttemptError, StorageError
from airflow_provider_statecheck.spark.sinks.sql.sql_destination import SqlDestination
from airflow_provider_statecheck.spark.sinks.sql.transactions import SinkDatabase
from airflow_provider_statecheck.spark.sinks.target_files import TargetFiles
from airflow_provider_statecheck.testing.faults import FaultMode, FaultPlan
from tests.unit.spark.sinks.sql.databases import TABLE, Place
from tests.unit.spark.sinks.two_phase.history import Job

STEPS: list[tuple[type[Any], str]] = [
    (SqlDestination, "_replace_log"),
    (SqlDestination, "_retract"),
    (SqlDestination, "_publish"),
    (TargetFiles, "list_files"),
    (TargetFiles, "delete"),
]

EVERY = 6
PARTS = [pytest.param(part, marks=[] if part == 0 else pytest.mark.soak) for part in range(EVERY)]


@contextmanager
def planned(plan: FaultPlan) -> Iterator[None]:
    """Let a step fail: within a transaction, at its end, or when it is made and the reply is lost."""
    transaction = SinkDatabase.transaction

    @contextmanager
    def counted_transaction(database: SinkDatabase) -> Iterator[Any]:
        with transaction(database) as connection:
            yield connection
            plan.carry_out("end", lambda: None, StorageError)
        plan.carry_out("reply", lambda: None, StorageError)

    with pytest.MonkeyPatch.context() as patch:
        for kind, name in STEPS:
            patch.setattr(kind, name, counted(getattr(kind, name), name, plan))
        patch.setattr(SinkDatabase, "transaction", counted_transaction)
        yield


def counted(method: Any, name: str, plan: FaultPlan) -> Any:
    def call(*args: Any, **kwargs: Any) -> Any:
        return plan.carry_out(name, lambda: method(*args, **kwargs), StorageError)

    return call


def place_in(folder: Path) -> Place:
    folder.mkdir(exist_ok=True)
    return Place(f"sqlite:///{folder}/output.db", folder)


def history(place: Place, upsert_by: tuple[str, ...]) -> None:
    """Go through a success, a fall-back, and a fresh start."""
    job = Job(lambda: place.sink(upsert_by=upsert_by))
    job.run(3)
    job.fall_back(2)
    job.run(4)
    job.start_over()
    job.run(2)


@pytest.mark.parametrize("mode", [FaultMode.ERROR, FaultMode.REPLY_LOST])
@pytest.mark.parametrize("part", PARTS)
@pytest.mark.parametrize("upsert_by", [(), ("key",)], ids=["append", "upsert"])
def test_a_fault_at_any_step_changes_nothing_in_the_end(tmp_path, mode, part, upsert_by):
    counting = FaultPlan()
    with planned(counting):
        history(place_in(tmp_path / "undisturbed"), upsert_by)
    assert {name for _, name in STEPS} < set(counting.calls)
    for point, name in list(enumerate(counting.calls, 1))[part::EVERY]:
        place = place_in(tmp_path / str(point))
        with planned(FaultPlan(point=point, mode=mode)):
            history(place, upsert_by)
        assert place.seen == [1, 2], f"{mode} at call {point}, {name}"
        # One whose deletion failed at the very end waits for the next run.
        assert not place.staged or name in ("delete", "list_files")


STORIES = st.lists(
    st.tuples(st.sampled_from(["run", "fall_back", "start_over", "unreadable"]), st.integers(1, 3)), max_size=6
)


@settings(max_examples=20, deadline=None)
@given(story=STORIES, points=st.lists(st.integers(1, 60), max_size=4), upsert_by=st.sampled_from([(), ("key",)]))
def test_after_any_history_the_output_is_that_of_the_last_success(story, points, upsert_by):
    with tempfile.TemporaryDirectory() as name:
        place = place_in(Path(name))
        job = Job(lambda: place.sink(upsert_by=upsert_by))
        faults = iter(points)
        for what, count in story:
            with planned(FaultPlan(point=next(faults, None))):
                _tell(job, what, count)
        job.run(5)
        assert place.seen == [1, 2, 3, 4, 5]


def _tell(job: Job, what: str, count: int) -> None:
    try:
        if what == "run":
            job.attempt(count + 1)
        elif what == "unreadable":
            job.attempt(4, unreadable=count)
        else:
            job.start_over() if what == "start_over" else job.fall_back(count)
    except (CorruptStateError, CoordinatorError):
        job.start_over()
    except StorageError:
        return


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
