"""Values of all types in a table, and tables that are there before a sink comes."""

from __future__ import annotations

import datetime
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.testing.sink_contract import SCHEMA
from tests.unit.spark.connectors.sql.databases import TABLE, Place

BERLIN = datetime.timezone(datetime.timedelta(hours=1))
MOMENT = datetime.datetime.fromisoformat("2024-01-31T12:30:15.123456")
COLUMNS = [
    ("yes", pa.bool_(), True),
    ("tiny", pa.int8(), -128),
    ("small", pa.int16(), -32768),
    ("whole", pa.int32(), 2**31 - 1),
    ("large", pa.int64(), -(2**63)),
    ("single", pa.float32(), 0.5),
    ("real", pa.float64(), 0.1),
    ("exact", pa.decimal128(38, 10), Decimal("1234567890123456789012345678.0123456789")),
    ("words", pa.string(), 'a "quoted", text\nof two lines with \\N and \\. in it'),
    ("empty", pa.string(), ""),
    ("octets", pa.binary(), b"\x00\xff\n,"),
    ("day", pa.date32(), datetime.date(1970, 1, 1)),
    ("moment", pa.timestamp("us"), MOMENT),
    ("instant", pa.timestamp("us", "Europe/Berlin"), MOMENT.replace(tzinfo=BERLIN)),
    ("unsigned", pa.uint64(), 2**64 - 1),
]
NAMES = [name for name, _, _ in COLUMNS]
VALUES = pa.table({name: pa.array([value, None], kind) for name, kind, value in COLUMNS})


def written(place: Place, rows: pa.Table, **settings: object) -> None:
    first = place.open(1, schema=rows.schema, settings=settings)
    first.commit(1, first.write_table(rows))


def test_values_of_all_types_and_nulls_are_in_the_table(postgres):
    written(postgres, VALUES)
    found = postgres.run(f"SELECT {', '.join(NAMES)} FROM {TABLE} ORDER BY whole")
    plain = [bytes(value) if isinstance(value, memoryview) else value for value in found[0]]
    assert plain == [value for _, _, value in COLUMNS]
    assert found[1] == (None,) * len(COLUMNS)


def test_values_of_all_types_and_nulls_are_in_a_file_of_sqlite(sqlite):
    written(sqlite, VALUES)
    found = sqlite.run(f"SELECT {', '.join(NAMES)} FROM {TABLE} ORDER BY whole DESC")
    texts = {
        "exact": str(COLUMNS[7][2]),
        "day": "1970-01-01",
        "moment": "2024-01-31 12:30:15.123456",
        "instant": "2024-01-31 11:30:15.123456",
        "unsigned": str(2**64 - 1),
    }
    assert list(found[0]) == [texts.get(name, value) for name, _, value in COLUMNS]
    assert found[1] == (None,) * len(COLUMNS)


def test_numbers_that_are_none_are_kept_in_postgres(postgres):
    written(postgres, pa.table({"number": [math.inf, -math.inf, math.nan]}))
    found = [value for (value,) in postgres.run(f"SELECT number FROM {TABLE} ORDER BY number")]
    assert found[:2] == [-math.inf, math.inf]
    assert math.isnan(found[2])


def test_names_that_need_quotes_are_quoted(place):
    table = pa.table({"order": [1], 'a "strange" name': ["x"], "Große": [2]})
    written(place, table, upsert_by=["order"])
    assert place.run(f'SELECT "order", "a ""strange"" name", "Große" FROM {TABLE}') == [(1, "x", 2)]


def test_a_table_of_another_schema_gets_the_rows_and_has_the_log_beside_it(postgres):
    postgres.run("DROP SCHEMA IF EXISTS lake CASCADE")
    postgres.run("CREATE SCHEMA lake")
    first = postgres.open(1, settings={"table": "lake.balances"})
    first.add(1, 1)
    postgres.open(2, generation=2, settings={"table": "lake.balances"}).add(2, 2)
    assert postgres.rows("key", "lake.balances") == [(2,)]
    assert postgres.run("SELECT epoch FROM lake.statecheck_sink_heads") == [(2,)]
    postgres.run("DROP SCHEMA lake CASCADE")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.struct([("a", pa.int64())]), pa.map_(pa.string(), pa.int64())]
)
def test_a_nested_column_is_refused_before_any_work(sqlite, kind):
    with pytest.raises(UnsupportedStateError, match="found 'nested' of type"):
        sqlite.open(1, schema=pa.schema([("nested", kind)]))
    assert sqlite.run("SELECT name FROM sqlite_master") == []


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ([("a", pa.int64()), ("a", pa.int64())], "found a more than once"),
        ([], "found none at all"),
        ([("_statecheck_lineage", pa.string())], "because the sink uses this name"),
        ([("_statecheck_row", pa.int64())], "because the sink uses this name"),
        ([("_statecheck_place", pa.int64())], "because the sink uses this name"),
        ([("b", pa.int64())], "found no a among"),
    ],
)
def test_output_without_the_right_columns_is_refused_before_any_work(sqlite, columns, told):
    with pytest.raises(UnsupportedStateError, match=told):
        sqlite.open(1, schema=pa.schema(columns), settings={"upsert_by": ["a"]})


MARKS = "_statecheck_lineage VARCHAR(12), _statecheck_checkpoint BIGINT"


@pytest.mark.parametrize(
    ("columns", "told"),
    [
        ("key BIGINT, name TEXT", "add it as VARCHAR"),
        (f"key BIGINT, {MARKS}", "column 'name' is missing"),
        (f"key TEXT, name TEXT, {MARKS}", "column 'key' is TEXT and would be BIGINT"),
        (f"key BIGINT, name BIGINT, {MARKS}", "column 'name' is BIGINT and would be TEXT"),
        (f"key BIGINT, name TEXT, other TEXT NOT NULL, {MARKS}", "column 'other' is not part of the output"),
        (
            f"key BIGINT, name TEXT GENERATED ALWAYS AS ('x') STORED, {MARKS}",
            "column 'name' has values that the database",
        ),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_any_work(place, columns, told):
    place.run(f"CREATE TABLE {TABLE} ({columns})")
    with pytest.raises(UnsupportedStateError, match=told):
        place.open(1)


def test_a_column_that_cannot_be_null_takes_values_and_refuses_null_before_the_checkpoint(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT NOT NULL, name TEXT, {MARKS})")
    attempt = place.open(1)
    attempt.add(1, 1)
    assert place.rows() == [(1, "name 1")]
    with pytest.raises(UnsupportedStateError, match=r"column 'key', which cannot be null .* null in 1 row;"):
        attempt.write_table(pa.table({"key": pa.array([None], pa.int64()), "name": ["a"]}))


def test_output_that_is_never_null_makes_no_column_that_cannot_be_null(place):
    place.open(1, schema=pa.schema([SCHEMA.field("key").with_nullable(False), SCHEMA.field("name")]))
    attempt = place.open(2)
    attempt.commit(1, attempt.write_table(pa.table({"key": pa.array([None], pa.int64()), "name": ["a"]})))
    assert place.rows() == [(None, "a")]


def test_a_column_that_is_too_narrow_is_refused_before_any_work(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key INTEGER, name TEXT, {MARKS})")
    with pytest.raises(UnsupportedStateError, match="column 'key' is INTEGER and would be BIGINT"):
        postgres.open(1)


def test_an_identity_column_that_an_upsert_cannot_write_is_refused_before_any_work(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name TEXT, {MARKS})")
    with pytest.raises(UnsupportedStateError, match="column 'key' has values that the database generates"):
        postgres.open(1, settings={"upsert_by": ["key"]})
    keyed = pa.schema([SCHEMA.field("key").with_nullable(False), SCHEMA.field("name")])
    postgres.open(1, schema=keyed).add(1, 1)
    assert postgres.rows() == [(1, "name 1")]


def test_a_column_that_is_wide_enough_is_taken_as_it_is(postgres):
    postgres.run(f"CREATE TABLE {TABLE} (key NUMERIC(22, 2), name VARCHAR(50), {MARKS})")
    postgres.open(1).add(1, 1)
    assert postgres.rows() == [(1, "name 1")]


def test_a_file_of_sqlite_has_no_lengths(sqlite):
    sqlite.run(f"CREATE TABLE {TABLE} (key NUMERIC(2), name VARCHAR(2), {MARKS})")
    sqlite.open(1).add(1, 1000)
    assert sqlite.rows() == [(1000, "name 1000")]


@pytest.mark.parametrize(
    "columns", ["key NUMERIC(20), name VARCHAR", "name TEXT, key BIGINT, other TEXT DEFAULT 'x' NOT NULL"]
)
def test_a_table_that_fits_is_taken_as_it_is(place, columns):
    place.run(f"CREATE TABLE {TABLE} ({columns}, {MARKS})")
    place.open(1).add(1, 1)
    assert place.seen == [1]


@pytest.mark.parametrize(
    ("columns", "fits"),
    [
        ("key BIGINT NOT NULL PRIMARY KEY, name TEXT", True),
        ("key BIGINT NOT NULL, name TEXT, UNIQUE (key)", True),
        ("key BIGINT NOT NULL, name TEXT, UNIQUE (key, name)", False),
        ("key BIGINT NOT NULL, name TEXT", False),
    ],
)
def test_rows_replace_others_only_where_their_keys_are_unique(place, columns, fits):
    place.run(
        f"CREATE TABLE {TABLE} "
        f"({columns.replace(', UNIQUE', f', {MARKS}, UNIQUE') if 'UNIQUE' in columns else f'{columns}, {MARKS}'})"
    )
    settings = {"upsert_by": ["key"]}
    if fits:
        first = place.open(1, settings=settings)
        first.add(1, 1, name="old")
        first.add(2, 1, name="new")
        assert place.rows() == [(1, "new 1")]
    else:
        with pytest.raises(UnsupportedStateError, match="no primary key or unique index on exactly key"):
            place.open(1, settings=settings)


@pytest.mark.parametrize("constraint", ["UNIQUE (key) DEFERRABLE", "PRIMARY KEY (key) DEFERRABLE INITIALLY DEFERRED"])
def test_a_constraint_that_may_be_checked_later_is_none(postgres, constraint):
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT NOT NULL, name TEXT, {MARKS}, {constraint})")
    with pytest.raises(UnsupportedStateError, match="no primary key or unique index"):
        postgres.open(1, settings={"upsert_by": ["key"]})


@pytest.mark.parametrize(
    ("index", "fits"), [("(key) INCLUDE (name)", True), ("(key, lower(name))", False), ("(key, name)", False)]
)
def test_a_unique_index_counts_with_the_columns_that_it_makes_unique(postgres, index, fits):
    postgres.run("DROP SCHEMA IF EXISTS lake CASCADE")
    postgres.run("CREATE SCHEMA lake")
    postgres.run(f'CREATE TABLE lake."A table" (key BIGINT NOT NULL, name TEXT, {MARKS})')
    postgres.run(f'CREATE UNIQUE INDEX ours ON lake."A table" {index}')
    attempt = postgres.attempt(1, settings={"table": "lake.A table", "upsert_by": ["key"]})
    if fits:
        attempt.open().add(1, 1, 1)
        assert postgres.rows("key", 'lake."A table"') == [(1,)]
    else:
        with pytest.raises(UnsupportedStateError, match="no primary key or unique index"):
            attempt.open()
    postgres.run("DROP SCHEMA lake CASCADE")


def test_a_unique_index_on_some_of_the_rows_is_none(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT NOT NULL, name TEXT, {MARKS})")
    place.run(f"CREATE UNIQUE INDEX of_some ON {TABLE} (key) WHERE name IS NOT NULL")
    with pytest.raises(UnsupportedStateError, match="no primary key or unique index"):
        place.open(1, settings={"upsert_by": ["key"]})


def test_a_task_that_writes_other_columns_than_another_is_loaded_with_its_own(place):
    place.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, more BIGINT, {MARKS})")
    first = place.open(1)
    wide = pa.table({"key": [2], "name": ["b"], "more": [3]})
    first.commit(1, [*first.write(1), *first.write_table(wide)])
    assert place.run(f"SELECT key, more FROM {TABLE} ORDER BY key") == [(1, None), (2, 3)]


def test_text_is_kept_whatever_encoding_the_session_has(postgres):
    latin = Place(f"{postgres.url}{'&' if '?' in postgres.url else '?'}client_encoding=latin1", postgres.folder)
    written(latin, pa.table({"words": ["Grüße, 日本 €"]}))
    assert postgres.rows("words") == [("Grüße, 日本 €",)]


@pytest.mark.parametrize("upsert_by", [[], ["key %(x)s"]])
def test_names_with_a_percent_sign_are_kept(place, upsert_by):
    name = "share_%s_100%"
    table = pa.table({"key %(x)s": [1, 2], "%": ["a", "b"]})
    place.run(f'DROP TABLE IF EXISTS "{name}"')
    written(place, table, table=name, upsert_by=upsert_by)
    assert [row[:2] for row in place.rows("*", f'"{name}"')] == [(1, "a"), (2, "b")]
    place.run(f'DROP TABLE "{name}"')


def test_text_is_loaded_into_types_that_only_the_database_has(postgres):
    postgres.run("DROP TYPE IF EXISTS mood CASCADE")
    postgres.run("CREATE TYPE mood AS ENUM ('sad', 'happy')")
    postgres.run(f"CREATE TABLE {TABLE} (id UUID PRIMARY KEY, more JSONB, plain JSON, mood mood, {MARKS})")
    upper = "0F8FAD5B-D9CB-469F-A165-70867728950E"
    columns = {"id": [upper, upper.lower()], "more": ["{}", '{"a": 1}'], "plain": ["1", None], "mood": ["sad", "happy"]}
    written(
        postgres, pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()}), upsert_by=["id"]
    )
    # Both rows have one key there, and the last one stays.
    assert postgres.rows("CAST(id AS TEXT), more, plain, mood") == [(upper.lower(), {"a": 1}, None, "happy")]
    postgres.run(f"DROP TABLE {TABLE}")
    postgres.run("DROP TYPE mood")
