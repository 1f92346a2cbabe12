"""Rows of a database in key ranges, and changes of rows that were read."""

from __future__ import annotations

import itertools
import pickle
from contextlib import nullcontext
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest
import sqlalchemy as sa
from hypothesis import HealthCheck, given, settings, strategies as st
from pyspark.sql.types import DateType, IntegerType, LongType, StringType, StructField, StructType

from airflow_provider_statecheck.exceptions import (
    CorruptStateError,
    InvalidConfigurationError,
    SourceChangedError,
    SourceError,
    SourceRestartRequiredError,
)
from airflow_provider_statecheck.spark.connectors.sql import source as sql_source
from airflow_provider_statecheck.spark.connectors.sql.relation import KeyRange, equal_widths, ranges_between
from airflow_provider_statecheck.spark.connectors.sql.source import Observation, merge_adjacent
from tests.unit.spark.connectors.runs import state_of
from tests.unit.spark.connectors.sql.source_tables import Table, increments, keys_of, without_spark

SqlSource: Any = sql_source.SqlSource  # no session is needed here


@pytest.fixture(autouse=True)
def _reads_without_spark(monkeypatch):
    without_spark(monkeypatch)


@pytest.fixture
def url(tmp_path):
    return f"sqlite:///{tmp_path}/shop.db"


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.db)])
def any_url(request, tmp_path):
    return f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@pytest.fixture
def orders(url):
    return Table(url, sa.Column("id", sa.Integer), sa.Column("changed", sa.Integer, server_default="1"))


def source_of(table, **named):
    return SqlSource(table.url, table.name, **{"rows_per_increment": 4, "readers": 2, **named})


def after_one(source):
    """The state of an attempt that finished one increment."""
    enumerator = source.open(None)
    increment = enumerator.next_increment()
    enumerator.load(increment)
    enumerator.finish(increment)
    return state_of(enumerator)


def after_all(source, state=None, **named):
    enumerator = source.open(None, state, **named)
    increments(enumerator)
    return state_of(enumerator)


def test_an_increment_has_about_as_many_rows_as_the_user_says_in_a_range_for_each_reader(orders):
    orders.add_keys(range(10))
    found = increments(source_of(orders).open(None))
    assert [[[row["id"] for row in rows] for rows in increment] for increment in found] == [
        [[0, 1], [2, 3]],
        [[4, 5], [6, 7]],
        [[8, 9]],
    ]


def test_ranges_of_equal_width_count_nothing(orders, monkeypatch):
    orders.add_keys([0, 1, 2, 100])
    monkeypatch.setattr("airflow_provider_statecheck.spark.connectors.sql.relation.Relation.ends_of_ranges", None)
    found = increments(source_of(orders, rows_per_increment=None, ranges=2).open(None))
    assert [[[row["id"] for row in rows] for rows in increment] for increment in found] == [
        [[0, 1, 2], []],
        [[], [100]],
    ]


def test_rows_of_one_key_are_in_one_range(orders):
    orders.add_keys([1] * 9 + [2])
    found = increments(source_of(orders).open(None))
    assert [[len(rows) for rows in increment] for increment in found] == [[9, 1]]


def test_rows_without_a_key_are_a_range_of_their_own(orders):
    orders.add_keys([None, 1, None])
    assert keys_of(increments(source_of(orders).open(None))) == [1, None, None]


def test_an_empty_table_has_no_increment_and_a_new_run_reads_what_came(orders):
    state = after_all(source_of(orders))
    orders.add_keys([1, None])
    assert keys_of(increments(source_of(orders).open(None, state, new_run=True))) == [1, None]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.lists(st.none() | st.integers(-50, 50), max_size=30), min_size=1, max_size=3),
    st.integers(1, 12),
    st.integers(1, 3),
    st.lists(st.integers(0, 3), max_size=5),
    st.booleans(),
)
def test_nothing_is_lost_or_doubled_wherever_attempts_end(orders, runs, rows, readers, ends, is_by_width):
    orders.execute("delete from orders")
    cut = {"rows_per_increment": None, "ranges": rows} if is_by_width else {"rows_per_increment": rows}
    source, state, expected, found = source_of(orders, readers=readers, **cut), None, [], []
    for number, keys in enumerate(runs):
        # Rows of a later run have larger keys, and the first run has all that have none.
        added = [key if key is None else key + 200 * number for key in keys if number == 0 or key is not None]
        if added:
            orders.add_keys(added)
        expected += added
        for i, left in enumerate([*ends, 1000]):
            enumerator = source.open(None, state, new_run=number > 0 and i == 0)
            for increment in itertools.islice(iter(enumerator.next_increment, None), left):
                found.append(enumerator.load(increment))
                enumerator.finish(increment)
            enumerator.next_increment()  # planned, and lost with the attempt
            state = state_of(enumerator)

    in_order = [(key is not None, key or 0) for key in keys_of(found)]
    assert sorted(in_order) == sorted((key is not None, key or 0) for key in expected)


def test_a_new_run_reads_first_what_the_one_before_left(orders):
    orders.add_keys(range(6))
    state = after_one(source_of(orders))
    orders.add_keys([6])

    enumerator = source_of(orders).open(None, state, new_run=True)

    assert keys_of(increments(enumerator)) == [4, 5, 6]
    assert enumerator.snapshot()["increments"] == 2


def test_the_state_of_many_runs_does_not_grow(orders):
    state, sizes = None, []
    for day in range(6):
        orders.add_keys(range(day * 10, day * 10 + 10))
        state = after_all(source_of(orders, version_column="changed"), state, new_run=day > 0)
        sizes.append(len(repr(state)))
    assert max(sizes) - sizes[1] < 40


def test_rows_that_arrive_behind_the_mark_are_not_noticed_without_a_version(orders):
    orders.add_keys([1, 5])
    state = after_all(source_of(orders))
    orders.add_keys([2, None])
    assert keys_of(increments(source_of(orders).open(None, state, new_run=True))) == [None]


@pytest.mark.parametrize("change", ["update orders set changed = 2 where id = 1", "delete from orders where id = 1"])
@pytest.mark.parametrize("new_run", [True, False])
def test_with_a_version_each_change_of_what_was_read_fails(orders, change, new_run):
    orders.add_keys(range(10))
    source = source_of(orders, version_column="changed")
    state = after_one(source)
    orders.execute(change)
    with pytest.raises(SourceChangedError, match="keys up to 3 changed"):
        source.open(None, state, new_run=new_run)


def test_with_a_version_a_row_that_arrives_behind_the_mark_of_an_earlier_run_fails(orders):
    orders.add_keys([1, 5])
    source = source_of(orders, version_column="changed")
    state = after_all(source, after_all(source), new_run=True)
    orders.add_keys([2])
    with pytest.raises(SourceChangedError, match="2 rows with versions up to 1 are now 3"):
        source.open(None, state, new_run=True)


def test_with_a_version_rows_may_change_before_they_are_read(orders):
    orders.add_keys(range(10))
    source = source_of(orders, version_column="changed")
    state = after_one(source)
    orders.execute("update orders set changed = 2 where id = 9")
    assert keys_of(increments(source.open(None, state))) == [4, 5, 6, 7, 8, 9]


def test_with_a_version_rows_may_change_where_an_attempt_looked_and_did_not_finish(orders):
    orders.add_keys(range(10))
    source = source_of(orders, version_column="changed")
    enumerator = source.open(None)
    first = enumerator.next_increment()
    enumerator.load(first)
    enumerator.finish(first)
    enumerator.load(enumerator.next_increment())
    orders.execute("update orders set changed = 2 where id = 5")
    assert keys_of(increments(source.open(None, state_of(enumerator)))) == [4, 5, 6, 7, 8, 9]


@pytest.mark.parametrize(("on_change", "kind"), [("fail", SourceChangedError), ("restart", SourceRestartRequiredError)])
def test_with_a_version_a_change_while_an_increment_is_read_is_noticed(orders, on_change, kind):
    orders.add_keys(range(10))
    enumerator = source_of(orders, version_column="changed", on_change=on_change).open(None)
    increment = enumerator.next_increment()
    enumerator.load(increment)
    orders.execute("update orders set changed = 2 where id = 3")
    with pytest.raises(kind, match="keys above 1 up to 3 changed"):
        enumerator.require_unchanged(increment)


@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        (sa.BigInteger, [2**40 + n for n in range(9)]),
        (sa.Text, ["", "Abc", "abc", "b c", "a'b", "é", "z\\", "100%", ":x"]),
        (sa.Date, [date(2026, 1, 1) + timedelta(n) for n in range(9)]),
        (sa.DateTime, [datetime(2026, 1, 1, microsecond=n, tzinfo=UTC).replace(tzinfo=None) for n in range(9)]),
        (sa.DateTime(timezone=True), [datetime(2026, 1, 1, microsecond=n, tzinfo=UTC) for n in range(9)]),
        (sa.Numeric(30, 2), [Decimal(n) / 4 for n in range(9)]),
        (sa.Double, [n / 3 for n in range(9)]),
    ],
    ids=["bigint", "text", "date", "timestamp", "timestamptz", "numeric", "double"],
)
def test_keys_of_any_ordered_type_are_cut_and_go_on_from_a_checkpoint(any_url, kind, keys):
    if "sqlite" in any_url:
        keys = [key.replace(tzinfo=None) if isinstance(key, datetime) else key for key in keys]
    table = Table(any_url, sa.Column("id", kind))
    table.add_keys(keys)
    source = source_of(table)
    first = source.open(None)
    increment = first.next_increment()
    found = [first.load(increment)]
    first.finish(increment)
    found += increments(source.open(None, state_of(first)))
    assert len(found) == 3
    assert sorted(keys_of(found)) == sorted(keys)


@pytest.mark.parametrize("end", [";", " -- the newest ones"])
def test_a_query_is_read_like_a_table(any_url, end):
    table = Table(any_url, sa.Column("Id", sa.Integer), sa.Column("name", sa.Text))
    table.add(*({"Id": n, "name": "12:30 100%"} for n in range(6)))
    query = """select "Id", name as "na me", '::x :y 100%' as odd from orders where name like '%:30%' and "Id" > 1"""
    schema = StructType(
        [StructField("Id", LongType()), StructField("na me", StringType()), StructField("odd", StringType())]
    )
    found = increments(SqlSource(any_url, query=query + end, key="Id", schema=schema, rows_per_increment=2).open(None))
    assert found[0][0] == [{"Id": 2, "na me": "12:30 100%", "odd": "::x :y 100%"}]
    assert keys_of(found, "Id") == [2, 3, 4, 5]


def test_a_table_may_have_a_schema_before_its_name(postgres_url):
    table = Table(postgres_url, sa.Column("id", sa.Integer))
    table.add_keys([1])
    assert keys_of(increments(SqlSource(postgres_url, "public.orders").open(None))) == [1]


def test_chosen_columns_come_in_their_order_and_need_not_have_the_key(orders):
    orders.add_keys([1])
    ((rows,),) = increments(source_of(orders, columns=["changed"]).open(None))
    assert rows == [{"changed": 1}]


def test_columns_stay_those_of_the_first_attempt(orders):
    orders.add_keys(range(6))
    state = after_one(source_of(orders))
    orders.execute("alter table orders add column later text")
    found = increments(source_of(orders).open(None, state))
    assert [row for rows in found[0] for row in rows] == [{"id": 4, "changed": 1}, {"id": 5, "changed": 1}]


def test_a_later_run_reads_columns_that_were_added(orders):
    orders.add_keys(range(4))
    state = after_one(source_of(orders))
    orders.execute("alter table orders add column later text")
    orders.add_keys([9])
    found = increments(source_of(orders).open(None, state, new_run=True))
    assert {"id": 9, "changed": 1, "later": None} in [row for each in found for rows in each for row in rows]


@pytest.mark.parametrize("named", [{"columns": ["no_such"]}, {"key": "no_such"}, {"version_column": "no_such"}])
def test_a_column_that_is_not_there_is_refused(orders, named):
    with pytest.raises(InvalidConfigurationError, match="no_such"):
        source_of(orders, **named).open(None)


def test_a_table_that_is_not_there_is_refused(orders):
    with pytest.raises(InvalidConfigurationError, match="Expected a table order"):
        SqlSource(orders.url, "order").open(None)


def test_a_column_without_a_counterpart_is_refused_unless_it_is_left_out(url):
    table = Table(url, sa.Column("id", sa.Integer), sa.Column("at", sa.Time))
    table.add_keys([1])
    with pytest.raises(InvalidConfigurationError, match=r"at TIME"):
        source_of(table).open(None)
    assert keys_of(increments(source_of(table, columns=["id"]).open(None))) == [1]


def test_a_key_that_the_database_gives_as_text_is_refused(postgres_url):
    table = Table(postgres_url, sa.Column("id", sa.Uuid))
    with pytest.raises(InvalidConfigurationError, match="numbers, dates, times or texts"):
        source_of(table).open(None)


def test_a_value_of_another_type_is_told_with_its_column(orders):
    orders.execute("insert into orders (id, changed) values (1, 'many')")
    with pytest.raises(SourceError, match="column 'changed' of table orders"):
        increments(source_of(orders).open(None))


def test_a_number_that_is_too_large_for_its_type_is_told(orders):
    orders.add_keys([2**40])
    source = source_of(orders, schema=StructType([StructField("id", IntegerType())]))
    with pytest.raises(SourceError, match="column 'id'"):
        increments(source.open(None))


@pytest.mark.parametrize(
    ("written", "given", "told"),
    [
        ("1.5", "bigint", "1.5 would be changed"),
        ("2.0", "bigint", None),
        ("timestamp '2026-01-01 10:00:00'", "date", "2026-01-01 10:00:00 would be changed"),
        ("timestamp '2026-01-01 00:00:00'", "date", None),
    ],
)
def test_a_value_is_never_cut_to_fit_its_type(postgres_url, written, given, told):
    kinds = {"bigint": LongType(), "date": DateType()}
    schema = StructType([StructField("id", LongType()), StructField("value", kinds[given])])
    source = SqlSource(postgres_url, query=f"select 1 as id, {written} as value", schema=schema)
    with pytest.raises(SourceError, match=f"column 'value' of the query.*{told}") if told else nullcontext():
        assert keys_of(increments(source.open(None)), "value") in ([2], [date(2026, 1, 1)])


@pytest.mark.parametrize("ranges", [None, 2])
@pytest.mark.parametrize(
    ("kind", "keys"),
    [
        ("date", ["'2026-01-01'", "'infinity'"]),
        ("timestamptz", ["'2026-01-01'", "'infinity'"]),
        ("numeric", ["1", "'NaN'"]),
        ("double precision", ["1", "'NaN'"]),
        ("real", ["0.1", "0.2"]),
    ],
)
def test_a_largest_key_that_python_cannot_name_is_refused_before_rows_are_lost(postgres_url, kind, keys, ranges):
    table = Table(postgres_url, sa.Column("id", sa.Integer))
    table.execute(f"alter table orders alter id type {kind} using null")
    table.execute(f"insert into orders values ({'), ('.join(keys)})")
    limits = {"rows_per_increment": 4 if ranges is None else None, "ranges": ranges}
    with pytest.raises(SourceError, match="as the largest value of 'id', which is another one there"):
        source_of(table, **limits).open(None)


@pytest.mark.parametrize(
    ("kind", "key"),
    [(sa.DateTime, "'2026-01-01T10:00:00'"), (sa.DateTime, "'2026-01-01 10:00:00Z'"), (sa.Numeric(4, 2), "1.001")],
)
def test_a_largest_key_in_another_notation_is_refused_before_rows_are_lost(url, kind, key):
    table = Table(url, sa.Column("id", kind))
    table.execute(f"insert into orders values ({key})")
    with pytest.raises(SourceError, match="as the largest value of 'id', which is another one there"):
        source_of(table).open(None)


def test_another_key_than_that_of_the_state_is_refused(orders):
    orders.add_keys(range(6))
    with pytest.raises(InvalidConfigurationError, match="by the key 'id', found key='changed'"):
        source_of(orders, key="changed").open(None, after_one(source_of(orders)))


@pytest.mark.parametrize("reader", [None, {}, {"key": "id"}])
def test_a_damaged_state_is_refused(orders, reader):
    orders.add_keys([1])
    state = after_one(source_of(orders)) | {"reader": reader}

    with pytest.raises(CorruptStateError, match="position of a source"):
        source_of(orders).open(None, state)


def test_a_source_is_shown_without_its_secrets_and_holds_no_connection():
    source = SqlSource("postgresql+psycopg2://me:very-secret@host/shop", "orders")
    assert repr(source) == "SqlSource('postgresql+psycopg2://host/shop', 'orders')"
    assert repr(pickle.loads(pickle.dumps(source))) == repr(source)


def test_the_address_is_not_in_the_state(orders):
    orders.add_keys(range(6))
    assert orders.url not in repr(after_one(source_of(orders)))


def test_the_same_ranges_are_read_again_by_another_attempt(orders):
    orders.add_keys(range(10))
    state = after_one(source_of(orders))
    orders.add_keys([5, 5, 5])

    planned = list(iter(source_of(orders).open(None, state).next_increment, None))

    assert [[split.split_id for split in increment.splits] for increment in planned] == [
        ["[3, 5]", "[5, 7]"],
        ["[7, 9]"],
    ]


def test_a_range_is_read_in_batches(orders, monkeypatch):
    monkeypatch.setattr("airflow_provider_statecheck.spark.connectors.sql.source.ROWS_PER_BATCH", 3)
    orders.add_keys(range(10))
    assert keys_of(increments(source_of(orders, rows_per_increment=100).open(None))) == list(range(10))


KEYS = st.one_of(
    st.integers(),
    st.text(),
    st.floats(allow_nan=False),
    st.decimals(allow_nan=False, allow_infinity=False),
    st.dates(),
    st.datetimes(),
    st.datetimes(timezones=st.just(UTC)),
    st.binary(),
)


def at(hour):
    return datetime(2026, 1, 1, hour, tzinfo=UTC)


@given(KEYS, KEYS)
def test_a_range_is_the_same_after_its_name(above, up_to):
    for keys in (KeyRange(above, up_to), KeyRange(None, up_to), KeyRange()):
        found = KeyRange.of_name(keys.name)
        assert found == keys
        assert type(found.up_to) is type(keys.up_to)
        assert "\0" not in keys.name


@pytest.mark.parametrize("name", ["", "nil", "[1]", "7", "[1, 2, 3]"])
def test_a_name_of_another_form_is_refused(name):
    with pytest.raises(CorruptStateError, match="range of keys"):
        KeyRange.of_name(name)


def test_ranges_have_no_gaps_and_the_first_of_a_new_run_begins_behind_the_mark():
    assert ranges_between(None, [3, 5]) == [KeyRange(None, 3), KeyRange(3, 5)]
    assert ranges_between(5, [8]) == [KeyRange(5, 8)]


def test_the_same_key_twice_ends_one_range():
    assert ranges_between(None, ["a", "a", "b"]) == [KeyRange(None, "a"), KeyRange("a", "b")]


@given(st.integers(), st.integers(0, 10**6), st.integers(1, 50))
def test_equal_widths_of_whole_numbers_are_ascending_and_end_with_the_largest(lowest, span, count):
    ends = equal_widths(lowest, lowest + span, count)
    assert ends == sorted(set(ends))
    assert (ends[-1], len(ends) <= count) == (lowest + span, True)
    widths = [high - low for low, high in pairwise(ends)]
    assert all(width <= -(-span // count) for width in widths)


@pytest.mark.parametrize(
    ("lowest", "highest", "ends"),
    [
        (0, 9, [3, 6, 9]),
        (0.0, 3.0, [1.0, 2.0, 3.0]),
        (Decimal(0), Decimal("1.5"), [Decimal("0.5"), Decimal(1), Decimal("1.5")]),
        (date(2026, 1, 1), date(2026, 1, 7), [date(2026, 1, 3), date(2026, 1, 5), date(2026, 1, 7)]),
        (at(0), at(3), [at(1), at(2), at(3)]),
        (5, 5, [5]),
        (1, 2, [1, 2]),
    ],
)
def test_numbers_days_and_times_are_cut_into_equal_widths(lowest, highest, ends):
    assert equal_widths(lowest, highest, 3) == ends


@pytest.mark.parametrize("key", ["a", True, b"a"])
def test_other_keys_have_no_width(key):
    with pytest.raises(InvalidConfigurationError, match="counting rows"):
        equal_widths(key, key, 2)


def seen(above, up_to, rows=1, newest=None):
    return Observation(KeyRange(above, up_to), rows, newest)


def test_neighbours_become_one():
    assert merge_adjacent([seen(None, 3, 2, 7), seen(3, 5, 1, 9), seen(5, 6)]) == [seen(None, 6, 4, 9)]


def test_ranges_with_a_gap_between_them_and_rows_without_a_key_stay_apart():
    apart = [seen(None, 3), seen(5, 6), seen(None, None), seen(6, 8)]
    assert merge_adjacent(apart) == apart
