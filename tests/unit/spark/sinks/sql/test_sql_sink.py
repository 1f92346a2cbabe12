"""What a reader of a table sees of the output of a stage, attempt after attempt."""

from __future__ import annotations

import pytest
from sqlalchemy import make_url, text
from sqlalchemy.dialects import postgresql

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    EnvironmentNotReadyError,
    StorageError,
    UnsupportedStateError,
)
from airflow_provider_statecheck.spark.sinks.sink import CHECKPOINT, LINEAGE, lineage_of
from airflow_provider_statecheck.spark.sinks.sql.loading import COMMITS, HEADS, RowLoader, TableName, output_table
from airflow_provider_statecheck.spark.tables.databases import SinkDatabase
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.sinks.sql.databases import TABLE

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
    (staged,) = (place.folder / "staging").rglob(written[1]["files"][0]["staged"])
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


def test_staged_rows_go_with_their_commit(place):
    first = place.open(1)
    first.add(1, 1)
    assert place.staged == []


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


def test_keys_are_locked_in_their_order():
    table = output_table(TableName.parse(TABLE), SCHEMA, keys=["name", "key"], marks_rows=True, is_sqlite=False)
    loader = RowLoader(table, ["name", "key"])
    statement = str(loader._upsert(loader._staged_table()).compile(dialect=postgresql.dialect()))
    assert "ORDER BY anon_1.name, anon_1.key ON CONFLICT" in " ".join(statement.split())


def test_a_table_of_the_user_with_the_name_of_ours_stays(postgres):
    postgres.run("DROP TABLE IF EXISTS statecheck_staged")
    postgres.run("CREATE TABLE statecheck_staged (key BIGINT)")
    first = postgres.open(1, settings=UPSERT)
    first.add(1, 1)
    first.add(2, 2)
    assert postgres.rows("key", "statecheck_staged") == []
    postgres.run("DROP TABLE statecheck_staged")


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
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name UUID)")
    first = postgres.open(1, settings={"mark_rows": False})
    written = first.write(1, name="secret")
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
