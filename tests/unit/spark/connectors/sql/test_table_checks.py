"""Tables that lose rows, refuse them at the commit, or for which the user lacks rights, refused before any work."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import NotSupportedError

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnfitOutputError
from airflow_provider_statecheck.spark.connectors.sql.loading import COMMITS, HEADS
from tests.unit.spark.connectors.sql.databases import TABLE

MARKS = "_statecheck_lineage VARCHAR(12), _statecheck_checkpoint BIGINT"
COLUMNS = f"key BIGINT PRIMARY KEY, name TEXT, {MARKS}"
UPSERT = {"upsert_by": ["key"]}


def opened(place, epoch=1, **settings):
    return place.open(epoch, settings=settings)


# Tables that a crash empties


def test_an_unlogged_table_is_refused_and_a_logged_one_takes_rows(postgres):
    postgres.run(f"CREATE UNLOGGED TABLE {TABLE} ({COLUMNS})")
    for settings in ({}, UPSERT):
        with pytest.raises(UnfitOutputError, match="it is unlogged: the database empties it after a crash"):
            opened(postgres, **settings)
    postgres.run(f"ALTER TABLE {TABLE} SET LOGGED")
    opened(postgres).add(1, 1)
    assert postgres.seen == [1]


def test_partitions_that_a_crash_empties_or_that_are_elsewhere_are_refused(postgres):
    postgres.run(f"CREATE TABLE {TABLE} ({COLUMNS}) PARTITION BY RANGE (key)")
    postgres.run(f"CREATE TABLE {TABLE}_a PARTITION OF {TABLE} FOR VALUES FROM (0) TO (9) PARTITION BY RANGE (key)")
    postgres.run(f"CREATE UNLOGGED TABLE {TABLE}_b PARTITION OF {TABLE}_a DEFAULT")
    with pytest.raises(UnfitOutputError, match=f"its partition {TABLE}_b is unlogged"):
        opened(postgres)
    postgres.run(f"ALTER TABLE {TABLE}_b SET LOGGED")
    opened(postgres).add(1, 1)
    assert postgres.seen == [1]


@pytest.mark.parametrize("name", [HEADS, COMMITS])
def test_unlogged_tables_of_the_commit_log_are_refused(postgres, name):
    opened(postgres)
    postgres.run(f"ALTER TABLE {name} SET UNLOGGED")
    with pytest.raises(EnvironmentNotReadyError, match=rf"Expected a table {name} .* it is unlogged"):
        opened(postgres, 2)
    postgres.run(f"ALTER TABLE {name} SET LOGGED")
    opened(postgres, 3).add(1, 1)
    assert postgres.seen == [1]


# Rules


@pytest.mark.parametrize("event", ["INSERT", "UPDATE"])
def test_a_table_with_a_rule_takes_appended_rows_and_no_upserts(postgres, event):
    postgres.run(f"CREATE TABLE {TABLE} ({COLUMNS})")
    postgres.run(f"CREATE RULE watched AS ON {event} TO {TABLE} DO ALSO SELECT 1")
    with pytest.raises(UnfitOutputError, match="its rule 'watched' is for INSERT or UPDATE, which an upsert does not"):
        opened(postgres, **UPSERT)
    opened(postgres).add(1, 1)
    assert postgres.seen == [1]


def test_a_rule_that_keeps_deleted_rows_is_refused_where_rows_are_retracted(postgres):
    postgres.run(f"CREATE TABLE {TABLE} ({COLUMNS})")
    postgres.run(f"CREATE RULE kept AS ON DELETE TO {TABLE} DO INSTEAD NOTHING")
    with pytest.raises(UnfitOutputError, match="its rule 'kept' replaces DELETE, so that replaced rows would stay"):
        opened(postgres)
    opened(postgres, mark_rows=False).add(1, 1)
    assert postgres.seen == [1]


# Rights


@pytest.fixture
def user(postgres):
    """A user who has every right but those on the target table."""
    postgres.run(f"CREATE TABLE {TABLE} ({COLUMNS})")
    opened(postgres)
    postgres.run("CREATE ROLE writer")
    postgres.run(f"GRANT ALL ON {HEADS}, {COMMITS} TO writer")
    url = make_url(postgres.url).update_query_dict({"options": "-c role=writer"})
    yield replace(postgres, url=url.render_as_string(hide_password=False))
    postgres.run("GRANT TEMPORARY ON DATABASE postgres TO PUBLIC")
    postgres.run("DROP OWNED BY writer")
    postgres.run("DROP ROLE writer")


NEEDED = {
    "append": ({"mark_rows": False}, ("INSERT",)),
    "marked": ({}, ("INSERT", "SELECT", "DELETE")),
    "upsert": ({**UPSERT, "mark_rows": False}, ("INSERT", "SELECT", "UPDATE")),
    "marked upsert": (UPSERT, ("INSERT", "SELECT", "UPDATE", "DELETE")),
}


@pytest.mark.parametrize(("settings", "rights"), NEEDED.values(), ids=NEEDED)
def test_each_right_that_a_commit_or_a_retraction_needs_is_checked_before_any_work(postgres, user, settings, rights):
    for lacking in rights:
        postgres.run(f"REVOKE ALL ON {TABLE} FROM writer")
        given = [each for each in rights if each != lacking]
        if given:
            postgres.run(f"GRANT {', '.join(given)} ON {TABLE} TO writer")
        with pytest.raises(UnfitOutputError, match=f"the user may not {lacking} ") as refused:
            opened(user, 2, **settings)
        assert len(refused.value.differences) == 1
    postgres.run(f"GRANT {', '.join(rights)} ON {TABLE} TO writer")
    first = opened(user, 3, **settings)
    first.add(1, 1)
    first.add(2, 2)
    if "DELETE" in rights:
        user.open(4, settings=settings, generation=2).add(1, 2)
        assert postgres.seen == [2]


def test_rights_on_columns_count_for_these_columns_only(postgres, user):
    unmarked = {**UPSERT, "mark_rows": False}
    postgres.run(f"GRANT INSERT (key), SELECT, UPDATE ON {TABLE} TO writer")
    with pytest.raises(UnfitOutputError, match=r"may not INSERT into it \(column 'name'\)"):
        opened(user, 2, mark_rows=False)
    postgres.run(f"GRANT INSERT (key, name) ON {TABLE} TO writer")
    opened(user, 3, mark_rows=False).add(1, 1)
    with pytest.raises(UnfitOutputError, match=r"\(column '_statecheck_lineage', '_statecheck_checkpoint'\)"):
        user.open(1, settings=unmarked, job="other")
    postgres.run(f"GRANT INSERT (_statecheck_lineage, _statecheck_checkpoint) ON {TABLE} TO writer")
    user.open(2, settings=unmarked, job="other").add(1, 2)
    assert postgres.seen == [1, 2]


def test_an_upsert_needs_the_right_to_create_temporary_tables(postgres, user):
    postgres.run(f"GRANT ALL ON {TABLE} TO writer")
    (name,) = postgres.run("SELECT current_database()")[0]
    postgres.run(f"REVOKE TEMPORARY ON DATABASE {name} FROM PUBLIC")
    try:
        with pytest.raises(UnfitOutputError, match="may not create temporary tables"):
            opened(user, 2, **UPSERT)
        opened(user, 3).add(1, 1)
    finally:
        postgres.run(f"GRANT TEMPORARY ON DATABASE {name} TO PUBLIC")
    assert postgres.seen == [1]


def test_a_sequence_that_gives_values_to_another_column_needs_a_right(postgres, user):
    postgres.run(f"ALTER TABLE {TABLE} ADD COLUMN row_id BIGSERIAL")
    postgres.run(f"GRANT ALL ON {TABLE} TO writer")
    with pytest.raises(UnfitOutputError, match=rf"the sequence {TABLE}_row_id_seq of column 'row_id'"):
        opened(user, 2)
    postgres.run(f"GRANT USAGE ON SEQUENCE {TABLE}_row_id_seq TO writer")
    opened(user, 3).add(1, 1)
    assert postgres.seen == [1]


@pytest.mark.parametrize(
    ("name", "right"), [(HEADS, "UPDATE"), (HEADS, "SELECT"), (COMMITS, "INSERT"), (COMMITS, "DELETE")]
)
def test_rights_on_the_tables_of_the_commit_log_are_checked(postgres, user, name, right):
    postgres.run(f"GRANT ALL ON {TABLE} TO writer")
    postgres.run(f"REVOKE {right} ON {name} FROM writer")
    with pytest.raises(EnvironmentNotReadyError, match=rf"Expected a table {name} .* the user may not {right} "):
        opened(user, 2)
    postgres.run(f"GRANT {right} ON {name} TO writer")
    opened(user, 3).add(1, 1)
    assert postgres.seen == [1]


# Unique keys


TEXT_KEY = pa.schema([("key", pa.string()), ("name", pa.string())])


def upsert_texts(place, *keys):
    attempt = place.open(1, schema=TEXT_KEY, settings=UPSERT)
    attempt.commit(1, attempt.write_table(pa.table({"key": keys, "name": keys})))
    return [key for (key,) in place.rows("key")]


@pytest.mark.parametrize(
    "index",
    ["key COLLATE NOCASE", "key COLLATE RTRIM", "lower(key)", "key) WHERE (name IS NOT NULL"],
    ids=["nocase", "rtrim", "expression", "partial"],
)
def test_a_unique_index_of_sqlite_that_takes_different_keys_for_equal_is_refused(sqlite, index):
    sqlite.run(f"CREATE TABLE {TABLE} (key TEXT, name TEXT, {MARKS})")
    sqlite.run(f"CREATE UNIQUE INDEX by_key ON {TABLE} ({index})")
    with pytest.raises(UnfitOutputError, match="no primary key or unique index on exactly key"):
        upsert_texts(sqlite, "a", "A")


@pytest.mark.parametrize(
    ("columns", "kept"),
    [
        ("key TEXT PRIMARY KEY", ["A", "a"]),
        ("key TEXT UNIQUE", ["A", "a"]),
        ("key TEXT COLLATE NOCASE PRIMARY KEY", ["a"]),
        ("key TEXT COLLATE RTRIM UNIQUE", ["A", "a"]),
        ("key TEXT COLLATE NOCASE UNIQUE", ["a"]),
    ],
)
def test_an_index_of_sqlite_with_the_collation_of_its_column_takes_upserts(sqlite, columns, kept):
    sqlite.run(f"CREATE TABLE {TABLE} ({columns}, name TEXT, {MARKS})")
    assert upsert_texts(sqlite, "a", "A") == kept


def test_a_single_integer_as_the_primary_key_of_sqlite_takes_upserts(sqlite):
    sqlite.run(f"CREATE TABLE {TABLE} (key INTEGER PRIMARY KEY, name TEXT, {MARKS})")
    opened(sqlite, **UPSERT).add(1, 1)
    assert sqlite.seen == [1]


def test_an_index_of_postgresql_with_another_nondeterministic_collation_is_refused(postgres):
    postgres.run("DROP COLLATION IF EXISTS any_case")
    try:
        postgres.run("CREATE COLLATION any_case (provider = icu, locale = 'und-u-ks-level2', deterministic = false)")
    except NotSupportedError:
        pytest.skip("this PostgreSQL was built without ICU")
    postgres.run(f"CREATE TABLE {TABLE} (key TEXT, name TEXT, {MARKS})")
    postgres.run(f'CREATE UNIQUE INDEX by_key ON {TABLE} (key COLLATE "any_case")')
    with pytest.raises(UnfitOutputError, match="no primary key or unique index on exactly key"):
        upsert_texts(postgres, "a", "A")
    postgres.run(f'CREATE UNIQUE INDEX by_text ON {TABLE} (key COLLATE "C")')
    postgres.run("DROP INDEX by_key")
    assert upsert_texts(postgres, "a", "A") == ["A", "a"]
    postgres.clear()
    postgres.run("DROP COLLATION any_case")
