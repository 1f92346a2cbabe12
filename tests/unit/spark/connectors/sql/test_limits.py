"""Rows, names and relations that a database cannot hold, refused before the checkpoint."""

from __future__ import annotations

import datetime
import math
from contextlib import suppress

import pyarrow as pa
import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from airflow_provider_statecheck.exceptions import UnfitOutputError
from airflow_provider_statecheck.spark.connectors.sql.limits import DatabaseLimits
from airflow_provider_statecheck.spark.connectors.sql.loading import TableName
from tests.unit.spark.connectors.sql.databases import TABLE, Place

MARKS = "_statecheck_lineage VARCHAR(12), _statecheck_checkpoint BIGINT"
MALFORMED = pa.Array.from_buffers(pa.string(), 2, [None, pa.array(["ab", "c"]).buffers()[1], pa.py_buffer(b"a\xffc")])
NOISE = "".join(chr(33 + (number * 7919) % 89) for number in range(2693))


def attempt_with(place, values, columns=None, **settings):
    rows = pa.table({"key": pa.array(range(len(values)), pa.int64()), "value": values})
    if columns is not None:
        place.run(f"CREATE TABLE {TABLE} ({columns}, {MARKS})")
    return place.open(1, schema=rows.schema, settings=settings), rows


def refused(place, values, columns=None, **settings):
    attempt, rows = attempt_with(place, values, columns, **settings)
    with pytest.raises(UnfitOutputError) as error:
        attempt.write_table(rows)
    assert not place.staged
    assert not error.value.retryable
    return str(error.value)


def stored(place, values, columns=None, **settings):
    attempt, rows = attempt_with(place, values, columns, **settings)
    attempt.commit(1, attempt.write_table(rows))
    return [value for (value,) in place.run(f"SELECT value FROM {TABLE} ORDER BY key")]


# Values


@pytest.mark.parametrize(
    "values",
    [
        pa.array([0, 6_666_666, -800_000], pa.date32()),
        pa.array([0, 2**63 - 1, -(2**63)], pa.timestamp("us")),
        pa.array([None, 2**63 - 1, -62_135_596_800_000_001], pa.timestamp("us", "UTC")),
    ],
    ids=lambda values: str(values.type),
)
def test_years_that_readers_of_the_table_do_not_know_are_refused(place, values):
    told = refused(place, values)
    assert "found in a batch of 3 rows: column 'value' has 2 values outside of the years 1 to 9999." in told


def test_the_first_and_the_last_day_are_stored(postgres):
    days = [datetime.date(1, 1, 1), datetime.date(9999, 12, 31)]
    assert stored(postgres, pa.array(days)) == days
    postgres.clear()
    times = [
        datetime.datetime.fromisoformat("0001-01-01"),
        datetime.datetime.fromisoformat("9999-12-31T23:59:59.999999"),
    ]
    assert stored(postgres, pa.array(times, pa.timestamp("us"))) == times


def test_a_text_with_the_character_nul_is_refused_by_postgresql_only(postgres, sqlite):
    told = refused(postgres, pa.array(["secret\0", "plain", None]))
    assert "column 'value' has 1 value with the character NUL" in told
    assert "replace(column, char(0), '')" in told
    assert "secret" not in told
    assert stored(sqlite, pa.array(["a\0b", "plain"])) == ["a\0b", "plain"]


def test_a_text_that_is_not_unicode_is_refused(place):
    assert "column 'value' has 1 value in invalid UTF-8" in refused(place, MALFORMED)


def test_all_columns_and_kinds_of_a_batch_are_told_at_once(postgres):
    rows = pa.table({"a": ["\0", "x", "\0"], "b": pa.array([6_666_666, 0, None], pa.date32())})
    attempt = postgres.open(1, schema=rows.schema)
    with pytest.raises(UnfitOutputError) as error:
        attempt.write_table(rows)
    assert {(each["column"], each["count"]) for each in error.value.violations} == {
        ("column 'a'", 2),
        ("column 'b'", 1),
    }


@pytest.mark.parametrize(
    ("column", "texts", "told"),
    [
        ("VARCHAR(3)", ["äöü", "abcd", "abc "], "2 values of more than 3 characters"),
        ("JSON", ['{"a": [1e5, null]}', "{", "NaN"], "2 values without JSON"),
        ("JSONB", ['"\\\\u0000"', '"\\u0000"', '"\\ud800"', '"\\ud83d\\ude00"'], "2 values without JSON"),
        (
            "UUID",
            ["a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", "{A0EEBC999C0B4EF8BB6D6BB9BD380A11}", "a0"],
            "1 value without a UUID",
        ),
    ],
)
def test_texts_that_a_column_of_another_type_refuses_are_refused(postgres, column, texts, told):
    assert told in refused(postgres, pa.array(texts), f"key BIGINT, value {column}")


def test_texts_that_a_column_of_another_type_takes_are_stored(postgres):
    assert stored(postgres, pa.array(["äöü", "", None]), "key BIGINT, value VARCHAR(3)") == ["äöü", "", None]
    postgres.clear()
    assert stored(postgres, pa.array(['"\\\\u0000"', '[1, "\\ud83d\\ude00"]']), "key BIGINT, value JSONB") == [
        "\\u0000",
        [1, "😀"],
    ]


NUMBERS = ["1e131071", "1e131072", "-12.5e131070", "-12.5e131071", "1e-16383", "1e-16384", "0e-16384", "0e200000"]
NUMBERS += ["0.5e131072", "0.05e131074", "1e200000", "1.25e-16381", "1.25e-16382", "0.00e2147483647", "0e1073741822"]
NUMBERS += ["1" * 131072, "1" * 131073, f"0.{'1' * 16383}", f"0.{'1' * 16384}", "1E+5", "-0", "0e-0"]


def test_numbers_of_json_are_judged_as_postgresql_does(postgres):
    texts = [f'{{"a": [{number}]}}' for number in NUMBERS]
    accepted = []
    for value in texts:
        with suppress(DBAPIError):
            postgres.run(f"SELECT CAST('{value}' AS JSONB) IS NULL".replace(":", "\\:"))
            accepted.append(value)
    assert 0 < len(accepted) < len(texts)
    told = refused(postgres, pa.array(texts), "key BIGINT, value JSONB")
    assert f"column 'value' has {len(texts) - len(accepted)} values without JSON" in told
    for kind, taken in (("JSONB", accepted), ("JSON", texts)):
        postgres.clear()
        attempt, rows = attempt_with(postgres, pa.array(taken), f"key BIGINT, value {kind}")
        attempt.commit(1, attempt.write_table(rows))
        assert len(postgres.rows("key")) == len(taken)


def test_texts_outside_of_an_enumeration_are_refused(postgres):
    postgres.run("DROP TYPE IF EXISTS mood CASCADE")
    postgres.run("CREATE TYPE mood AS ENUM ('good', 'bad')")
    assert "1 value outside of the enumeration" in refused(
        postgres, pa.array(["good", "worse"]), "key BIGINT, value mood"
    )


@pytest.mark.parametrize("column", ["name", '"char"'])
def test_a_column_that_would_cut_texts_is_refused_before_any_work(postgres, column):
    with pytest.raises(UnfitOutputError, match=f"column 'value' is {column}, which cuts texts"):
        attempt_with(postgres, pa.array(["a"]), f"key BIGINT, value {column}")


def test_characters_that_the_encoding_of_the_database_lacks_are_refused(postgres):
    postgres.run_alone("DROP DATABASE IF EXISTS latin")
    postgres.run_alone("CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    latin = Place(make_url(postgres.url).set(database="latin").render_as_string(hide_password=False), postgres.folder)
    assert "1 value with characters that the database does not have" in refused(latin, pa.array(["ü", "日"]))
    latin.clear()
    assert stored(latin, pa.array(["ü"])) == ["ü"]


def test_a_key_that_is_too_long_for_the_index_is_refused_and_a_shorter_one_stored(postgres):
    told = refused(postgres, pa.array([NOISE, NOISE[:-1]]), upsert_by=["value"])
    assert f"index '{TABLE}_pkey' on value has 1 value of more than 2704 bytes" in told
    postgres.clear()
    assert stored(postgres, pa.array([NOISE[:-1]]), upsert_by=["value"]) == [NOISE[:-1]]


def test_a_text_that_is_too_long_for_any_other_index_is_refused(postgres):
    columns = "key BIGINT, value TEXT"
    postgres.run(f"CREATE TABLE {TABLE} ({columns}, {MARKS})")
    postgres.run(f"CREATE INDEX by_value ON {TABLE} (key) INCLUDE (value)")
    told = refused(postgres, pa.array([NOISE, None, "short"]))
    assert "index 'by_value' on key, value has 1 value of more than 2704 bytes" in told


def test_a_long_text_in_a_column_without_an_index_is_stored(postgres):
    assert stored(postgres, pa.array([NOISE * 2])) == [NOISE * 2]


def test_a_number_that_sqlite_would_store_as_null_is_refused_where_null_is(sqlite):
    told = refused(sqlite, pa.array([1.5, math.nan]), "key BIGINT, value DOUBLE NOT NULL")
    assert "column 'value' has 1 value of NaN, which SQLite stores as null" in told
    sqlite.clear()
    assert "1 value of NaN" in refused(sqlite, pa.array([math.nan, 1.5]), upsert_by=["value"])
    sqlite.clear()
    assert stored(sqlite, pa.array([1.5, math.nan])) == [1.5, None]


# Names


@pytest.mark.parametrize(
    ("table", "column", "told"),
    [
        (TABLE, "ü" * 32, "has 64 bytes instead of 63 at most"),
        ("t" * 64, "value", "table 't+' has 64 bytes"),
        (f"{'s' * 64}.t", "value", "schema 's+' has 64 bytes"),
        (TABLE, "a\0b", "has the character NUL"),
        (TABLE, "", "column '' is empty"),
        (TABLE, "ctid", "column 'ctid' is a system column"),
    ],
)
def test_a_name_that_postgresql_cannot_have_is_refused_by_name(postgres, table, column, told):
    schema = pa.schema([("key", pa.int64()), (column, pa.string())])
    with pytest.raises(UnfitOutputError, match=told):
        postgres.open(1, schema=schema, settings={"table": table})


def test_the_longest_name_is_a_column(postgres):
    name = "ü" * 31 + "x"
    first = postgres.open(1, schema=pa.schema([(name, pa.int64())]))
    first.commit(1, first.write_table(pa.table({name: [1]})))
    assert postgres.run(f'SELECT "{name}" FROM {TABLE}') == [(1,)]


def test_names_that_differ_only_in_case_are_refused_by_sqlite_and_are_columns_of_postgresql(sqlite, postgres):
    schema = pa.schema([("id", pa.int64()), ("ID", pa.int64())])
    with pytest.raises(UnfitOutputError, match="columns 'id', 'ID', which differ only in case"):
        sqlite.open(1, schema=schema)
    first = postgres.open(1, schema=schema)
    first.commit(1, first.write_table(pa.table({"id": [1], "ID": [2]})))
    assert postgres.run(f'SELECT id, "ID" FROM {TABLE}') == [(1, 2)]


def test_too_many_columns_are_refused():
    with pytest.raises(UnfitOutputError, match="found 1601 columns where a table has 1600 at most"):
        DatabaseLimits(columns=1600).require_names(TableName(None, "t"), [f"c{n}" for n in range(1601)], "a database")


def test_an_upsert_has_one_column_less_for_its_temporary_table(postgres):
    schema = pa.schema([(f"c{number}", pa.int8()) for number in range(1600)])
    with pytest.raises(UnfitOutputError, match="found 1600 columns where a table has 1599 at most"):
        postgres.open(1, schema=schema, settings={"mark_rows": False, "upsert_by": ["c0"]})


# Relations


def test_a_view_is_refused_before_any_work(place):
    place.run("DROP VIEW IF EXISTS seen")
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {MARKS})")
    place.run(f"CREATE VIEW seen AS SELECT * FROM {TABLE}")
    try:
        with pytest.raises(UnfitOutputError, match="it is a view, not a table"):
            place.open(1, settings={"table": "seen"})
    finally:
        place.run("DROP VIEW seen")


def test_a_materialised_view_is_refused_before_any_work(postgres):
    postgres.run("DROP MATERIALIZED VIEW IF EXISTS kept")
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {MARKS})")
    postgres.run(f"CREATE MATERIALIZED VIEW kept AS SELECT * FROM {TABLE}")
    try:
        with pytest.raises(UnfitOutputError, match="it is a materialised view, not a table"):
            postgres.open(1, settings={"table": "kept", "upsert_by": ["key"]})
    finally:
        postgres.run("DROP MATERIALIZED VIEW kept")


def test_a_partitioned_table_takes_rows(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {MARKS}) PARTITION BY RANGE (key)")
    postgres.run(f"CREATE TABLE {TABLE}_all PARTITION OF {TABLE} DEFAULT")
    postgres.open(1).add(1, 1)
    assert postgres.seen == [1]


def test_row_security_and_missing_rights_of_a_user_are_refused_before_any_work(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {MARKS})")
    postgres.open(1)
    user = _user(postgres)
    with pytest.raises(UnfitOutputError, match="the user may not INSERT into it"):
        user.open(2)
    postgres.run(f"GRANT ALL ON {TABLE} TO limited")
    user.open(2)
    postgres.run(f"ALTER TABLE {TABLE} ENABLE ROW LEVEL SECURITY")
    postgres.run(f"CREATE POLICY all_rows ON {TABLE} USING (true) WITH CHECK (true)")
    with pytest.raises(UnfitOutputError, match="its row security applies to the user"):
        user.open(3)
    postgres.open(3).add(1, 1)  # the owner is exempt
    assert postgres.seen == [1]


def _user(postgres):
    if not postgres.run("SELECT 1 FROM pg_roles WHERE rolname = 'limited'"):
        postgres.run("CREATE ROLE limited LOGIN")
    postgres.run("GRANT USAGE, CREATE ON SCHEMA public TO limited")
    postgres.run("GRANT ALL ON statecheck_sink_heads, statecheck_sink_commits TO limited")
    return Place(make_url(postgres.url).set(username="limited").render_as_string(hide_password=False), postgres.folder)
