"""Rows, staged files, settings and failures of a SQL sink."""

from __future__ import annotations

import copy
import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from string import ascii_letters
from threading import Event
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, event, make_url, text

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    CorruptStateError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StaleAttemptError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.connectors.exactly_once.target_files import TargetFiles
from airflow_provider_statecheck.spark.connectors.sink import CHECKPOINT, LINEAGE, lineage_of
from airflow_provider_statecheck.spark.connectors.sql.databases import SinkDatabase
from airflow_provider_statecheck.spark.connectors.sql.loading import COMMITS, HEADS, RowLoader
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt
from tests.unit.spark.connectors.sql.databases import TABLE, Place

UPSERT = {"upsert_by": ["key"]}


def test_rows_say_who_made_them(place):
    first = place.open(1)
    first.add(1, 1)
    lineage = lineage_of(first.context.job_id, first.context.uid)
    assert place.rows(f"{LINEAGE}, {CHECKPOINT}") == [(lineage, 1)]


def test_a_later_attempt_makes_the_commit_that_never_was(place):
    written = place.open(1).write(1, 2)
    # It has no input of its own, and so knows no columns.
    second = place.open(2, restored=1, restored_epoch=1, schema=None)
    second.commit(1, written)
    second.finish()
    assert place.seen == [1, 2]


def test_a_commit_that_fails_leaves_nothing_and_may_be_repeated(place):
    first = place.open(1)
    written = [*first.write(1), *first.write(2, subtask=1)]
    staged = place.folder / "staging" / written[1]["files"][0]["name"]
    moved = staged.rename(place.folder / "moved")
    with pytest.raises(CorruptStateError, match=r"found none; it was deleted, or .* another disk"):
        first.commit(1, written)
    assert (place.seen, place.commits) == ([], [])
    moved.rename(staged)
    first.commit(1, written)
    assert place.seen == [1, 2]


def test_staged_rows_that_were_changed_are_not_committed(place):
    first = place.open(1)
    written = first.write(1)
    written[0]["files"][0]["rows"] = 2
    with pytest.raises(CorruptStateError, match="Expected 2 rows in the staged file"):
        first.commit(1, written)
    assert place.seen == []


def test_staged_rows_of_earlier_attempts_go_with_the_first_commit_of_a_newer_one(place):
    first = place.open(1)
    open_commit, _ = first.write(1), first.write(2)
    second = place.open(2, restored=1, restored_epoch=1)
    assert len(place.staged) == 2
    second.commit(1, open_commit)
    assert len(place.staged) == 1
    second.add(2, 20)
    assert place.staged == []
    assert place.seen == [1, 20]


def test_rows_of_others_are_never_touched(place):
    place.open(1, job="other").add(1, 1)
    place.run(f"INSERT INTO {TABLE} (key, name) VALUES (7, 'by hand')")
    place.open(1).add(1, 2)
    place.open(2, generation=2).add(2, 20)
    assert place.seen == [1, 7, 20]


def test_two_sinks_of_one_job_may_have_tables_of_their_own_with_one_log_table(place):
    place.open(1).add(1, 1)
    place.run("DROP TABLE IF EXISTS other_balances")
    second = place.attempt(2, restored=1, restored_epoch=1, settings={"table": "other_balances"}).open()
    second.add(2, 2)
    assert place.rows("key", "other_balances") == [(2,)]
    assert place.seen == [1]
    assert len(place.run(f"SELECT 1 FROM {HEADS}")) == 2
    place.run("DROP TABLE other_balances")


def test_unmarked_rows_are_added_to_a_table_without_our_columns(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, added_at TEXT)")
    place.open(1, settings={"mark_rows": False}).add(1, 1)
    assert place.rows("key, name, added_at") == [(1, "name 1", None)]


@pytest.mark.parametrize("start", [{"generation": 2}, {"restored": 1, "restored_epoch": 1}])
def test_rows_that_were_not_marked_then_are_not_taken_back_by_a_sink_that_marks_now(place, start):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {LINEAGE} VARCHAR(12), {CHECKPOINT} BIGINT)")
    first = place.open(1, settings={"mark_rows": False})
    first.add(1, 1)
    first.add(2, 2)
    with pytest.raises(EnvironmentNotReadyError, match="cannot be rolled back"):
        place.open(2, **start)
    assert place.seen == [1, 2]


def test_a_sink_that_marks_now_goes_on_behind_rows_that_were_not_marked_then(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {LINEAGE} VARCHAR(12), {CHECKPOINT} BIGINT)")
    first = place.open(1, settings={"mark_rows": False})
    first.add(1, 1)
    open_commit = first.write(2)
    second = place.open(2, restored=2, restored_epoch=1)
    second.commit(2, open_commit)
    second.add(3, 3)
    place.open(3, restored=1, restored_epoch=1).add(4, 4)
    assert place.seen == [1, 4]


def test_keys_are_locked_in_their_order(postgres):
    statements: list[str] = []

    @event.listens_for(Engine, "before_cursor_execute")
    def note(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        statements.append(" ".join(statement.split()))

    try:
        postgres.open(1, settings={"upsert_by": ["name", "key"]}).add(1, 1)
    finally:
        event.remove(Engine, "before_cursor_execute", note)
    assert [each for each in statements if "ORDER BY anon_1.name, anon_1.key ON CONFLICT" in each]


def test_a_table_of_the_user_with_the_name_of_ours_stays(postgres):
    postgres.run("DROP TABLE IF EXISTS statecheck_staged")
    postgres.run("CREATE TABLE statecheck_staged (key BIGINT)")
    first = postgres.open(1, settings=UPSERT)
    first.add(1, 1)
    first.add(2, 2)
    assert postgres.rows("key", "statecheck_staged") == []
    postgres.run("DROP TABLE statecheck_staged")


def test_a_table_with_the_name_of_the_temporary_one_takes_upserts(postgres):
    postgres.run("DROP TABLE IF EXISTS statecheck_staged")
    first = postgres.open(1, settings={**UPSERT, "table": "statecheck_staged"})
    first.add(1, 1, name="old")
    first.add(2, 1, name="new")
    assert postgres.rows(table="statecheck_staged") == [(1, "new 1")]
    postgres.run("DROP TABLE statecheck_staged")


CHANGES = {
    "42703 column": "ALTER TABLE {0} RENAME name TO other",
    "0A000 rule": "CREATE RULE other AS ON INSERT TO {0} DO ALSO SELECT 1",
    "42P10 key": "ALTER TABLE {0} DROP CONSTRAINT {0}_pkey",
    "54000 row": "ALTER TABLE {0} ALTER name SET STORAGE PLAIN",
}


@pytest.mark.parametrize("change", list(CHANGES))
def test_an_error_that_each_retry_would_meet_again_is_not_retried(postgres, change):
    first = postgres.open(1, settings=UPSERT)
    written = first.write(1, name="".join(random.Random(1).choices(ascii_letters, k=9000)))
    postgres.run(CHANGES[change].format(TABLE))
    with pytest.raises(UnsupportedStateError, match="rejected the output") as told:
        first.commit(1, written)
    assert not told.value.retryable
    assert postgres.commits == []


@pytest.mark.parametrize(("setting", "used"), [("off", "on"), ("local", "local"), ("remote_apply", "remote_apply")])
def test_a_commit_waits_until_it_is_durable(postgres, setting, used):
    url = make_url(postgres.url).update_query_dict({"options": f"-csynchronous_commit={setting}"})
    with SinkDatabase(url.render_as_string(hide_password=False)).transaction() as connection:
        assert connection.execute(text("SHOW synchronous_commit")).scalar() == used


def test_all_columns_may_be_keys(place):
    first = place.open(1, settings={"upsert_by": ["key", "name"]})
    first.add(1, 1)
    first.add(2, 1, 2)
    assert place.rows() == [(1, "name 1"), (2, "name 2")]


def test_unmarked_rows_may_replace_others_too(place):
    first = place.open(1, settings={**UPSERT, "mark_rows": False})
    first.add(1, 1, name="old")
    first.add(2, 1, name="new")
    assert place.rows() == [(1, "new 1")]


def test_a_row_that_an_unmarked_one_has_replaced_stays_if_its_first_writer_goes_back(place):
    first = place.open(1, settings=UPSERT)
    first.add(1, 1, name="first")
    first.add(2, 2, name="first")
    place.open(1, settings={**UPSERT, "mark_rows": False}, job="other").add(1, 2, 3, name="other")
    place.open(2, restored=1, settings=UPSERT).add(3, 4, name="second")
    assert place.rows() == [(1, "first 1"), (2, "other 2"), (3, "other 3"), (4, "second 4")]


def test_output_that_a_constraint_refuses_is_told_without_its_values(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT CHECK (length(name) < 8))")
    first = place.open(1, settings={"mark_rows": False})
    written = first.write(1, name="secret")
    with pytest.raises(UnsupportedStateError, match="rejected the output") as told:
        first.commit(1, written)
    assert "secret 1" not in str(told.value)
    assert told.value.__cause__ is None
    assert (place.seen, place.commits) == ([], [])


def test_output_that_does_not_convert_is_told_without_its_values(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT)")
    first = postgres.open(1, settings={"mark_rows": False})
    written = first.write(1, name="secret")
    postgres.run(f"ALTER TABLE {TABLE} ALTER name TYPE UUID USING NULL")
    with pytest.raises(UnsupportedStateError, match="rejected the output: InvalidTextRepresentation") as told:
        first.commit(1, written)
    assert "secret" not in str(told.value)
    assert postgres.commits == []


def test_a_table_that_is_gone_is_told(place):
    first = place.open(1)
    written = first.write(1)
    place.run(f"DROP TABLE {TABLE}")
    with pytest.raises(StorageError, match="failed"):
        first.commit(1, written)
    assert place.run(f"SELECT * FROM {COMMITS}") == []


@pytest.mark.parametrize("statement", [f"DROP TABLE {TABLE}", f"DELETE FROM {TABLE}"])
def test_a_table_without_the_rows_of_earlier_commits_is_told(place, caplog, statement):
    first = place.open(1)
    first.add(1)
    place.open(2, restored=1)
    assert "has no rows" not in caplog.text
    place.open(3, restored=1).add(2, 1)
    place.run(statement)
    place.open(4, restored=2, restored_epoch=3)
    assert "has no rows, although earlier checkpoints have added some: it was recreated or emptied" in caplog.text


def test_a_user_who_may_only_add_rows_may_restore(postgres, caplog):
    caplog.set_level("INFO")
    unmarked = {"mark_rows": False}
    postgres.open(1, settings=unmarked).add(1, 1)
    postgres.run("CREATE ROLE adder")
    try:
        postgres.run(f"GRANT INSERT ON {TABLE} TO adder")
        postgres.run(f"GRANT ALL ON {HEADS}, {COMMITS} TO adder")
        url = make_url(postgres.url).update_query_dict({"options": "-c role=adder"})
        adder = replace(postgres, url=url.render_as_string(hide_password=False))
        adder.open(2, settings=unmarked, restored=1).add(2, 2)
        assert "is not searched for rows" in caplog.text
        assert postgres.seen == [1, 2]
    finally:
        postgres.run("DROP OWNED BY adder")
        postgres.run("DROP ROLE adder")


def test_rows_wait_on_an_object_store_and_go_with_their_commit(object_store, sqlite):
    object_store.faults.clear()
    options = object_store.storage_options
    staging = f"s3://{object_store.make_bucket()}/staging"

    def make() -> SqlSink:
        return SqlSink(sqlite.url, "balances", staging=staging, storage_options=options)

    first = SinkAttempt(make(), 1).open()
    first.add(1, 1, 2)
    open_commit, _ = first.write(3), first.write(4)
    second = SinkAttempt(make(), 2, restored=2, restored_epoch=1).open()
    second.commit(2, open_commit)
    second.finish()
    assert sqlite.seen == [1, 2, 3]
    lineage = lineage_of(second.context.job_id, second.context.uid)
    assert TargetFiles.open(staging, lineage, options).list_files() == {}


def test_a_new_attempt_waits_for_the_transaction_of_a_zombie_and_then_goes_on_from_it(postgres, monkeypatch):
    zombie = postgres.open(1)
    written = zombie.write(1)
    load, is_within, may_end = RowLoader.load, Event(), Event()

    def slow(loader: RowLoader, *rest: Any) -> int:
        rows = load(loader, *rest)
        is_within.set()
        assert may_end.wait(60)
        return rows

    monkeypatch.setattr(RowLoader, "load", slow)
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


SECRET = "postgresql+psycopg2://ada:engine-1843@localhost:1/lake?sslpassword=hidden"


def a_sink(url, tmp_path, **settings):
    return SqlSink(url, "balances", staging=f"file://{tmp_path}/staging", **settings)


def test_a_sink_is_shown_without_its_password(tmp_path):
    shown = repr(a_sink(SECRET, tmp_path))
    assert shown == "SqlSink('postgresql+psycopg2://localhost/lake', 'balances')"


def test_a_database_that_does_not_answer_is_told_without_the_password(tmp_path):
    with pytest.raises(StorageError, match="The database postgresql") as told:
        SinkAttempt(a_sink(SECRET, tmp_path), 1).open()
    chain = f"{told.value} {told.value.__cause__} {told.value.__dict__}"
    assert "engine-1843" not in chain
    assert "hidden" not in chain


def test_tasks_get_a_copy_without_the_url(sqlite):
    opened = sqlite.open(1).sink
    assert sqlite.url.encode() not in pickle.dumps({**opened.__getstate__(), "_shown": ""})
    with pytest.raises(CoordinatorError, match="found the copy of a task"):
        SinkAttempt(pickle.loads(pickle.dumps(opened)), 1).open()


def test_what_tasks_hand_over_names_no_database(sqlite):
    assert "sqlite" not in str(sqlite.open(1).write(1))


def test_a_sink_that_was_not_opened_is_copied_whole(sqlite):
    sink = copy.deepcopy(sqlite.sink())
    SinkAttempt(sink, 1).open().add(1, 1)
    assert sqlite.seen == [1]


def test_a_url_comes_from_the_environment_of_the_driver_when_the_sink_is_opened(sqlite, tmp_path, monkeypatch):
    sink = a_sink("env:LAKE_URL", tmp_path)
    with pytest.raises(InvalidConfigurationError, match="LAKE_URL"):
        SinkAttempt(sink, 1).open()
    monkeypatch.setenv("LAKE_URL", sqlite.url)
    SinkAttempt(sink, 1).open()
    assert repr(sink) == "SqlSink('env:LAKE_URL', 'balances')"


def test_a_url_comes_from_a_function_that_is_called_when_the_sink_is_opened(sqlite, tmp_path):
    calls = []

    def url():
        calls.append(1)
        return sqlite.url

    sink = a_sink(url, tmp_path)
    assert calls == []
    SinkAttempt(sink, 1).open().add(1, 1)
    assert sqlite.seen == [1]


@pytest.mark.parametrize(
    "url",
    [
        "mysql+pymysql://host/name",
        "postgresql+asyncpg://host/name",
        "sqlite+aiosqlite:///a.db",
        "sqlite://",
        "sqlite:///:memory:",
    ],
)
def test_a_database_that_nobody_tried_or_that_is_in_memory_is_refused(tmp_path, url):
    with pytest.raises(InvalidConfigurationError, match=r"postgresql\+psycopg2.* or of an SQLite file"):
        SinkAttempt(a_sink(url, tmp_path), 1).open()


def test_a_staging_directory_that_is_a_file_is_refused(sqlite):
    (sqlite.folder / "staging").write_text("")
    with pytest.raises(EnvironmentNotReadyError, match="found a file"):
        sqlite.open(1)
