"""Rows that are larger than a page of PostgreSQL, refused by the same widths as PostgreSQL's."""

from __future__ import annotations

from decimal import Decimal

import pyarrow as pa
import pytest
from sqlalchemy.exc import DBAPIError

from airflow_provider_statecheck.exceptions import UnfitOutputError
from tests.soak import rest_in_soak
from tests.unit.spark.connectors.sql.databases import TABLE

NOISE = "".join(chr(48 + (number * 7919) % 10) for number in range(400))


def rows_of(*columns):
    return pa.table({f"c{number}": column for number, column in enumerate(columns)})


def is_refused(place, rows, **settings):
    """Return whether the sink refuses rows, which PostgreSQL must refuse, and otherwise take."""
    place.clear()
    attempt = place.open(1, schema=rows.schema, settings={"mark_rows": False, **settings})
    try:
        written = attempt.write_table(rows)
    except UnfitOutputError as error:
        assert "the whole row has 1 value of more than 8160 bytes" in str(error)  # noqa: PT017 - either is right
        assert not place.staged
        with pytest.raises(DBAPIError, match="row is too big"):
            insert(place, rows)
        return True
    attempt.commit(1, written)
    return False


def insert(place, rows):
    values = ", ".join("null" if value is None else f"'{value}'" for value in rows.to_pylist()[-1].values())
    place.run(f"INSERT INTO {TABLE} VALUES ({values})")


def columns_of(values, kind, count):
    return [pa.array(values, kind) for _ in range(count)]


MOST = {
    "bigint": (pa.int64(), 7, 1017),
    "timestamp": (pa.timestamp("us"), 0, 1017),
    "long text": (pa.string(), NOISE, 452),
    "short text": (pa.string(), NOISE[:8], 904),
    "text of 23 characters": (pa.string(), NOISE[100:123], 339),
    "text of 24 characters": (pa.string(), NOISE[100:124], 452),
    "decimal": (pa.decimal128(38, 18), Decimal("-12345678901234567890.123456789012345678"), 353),
    "short decimal": (pa.decimal128(38, 18), Decimal("1.5"), 1162),
}


@pytest.mark.parametrize("name", rest_in_soak(tuple(MOST), "decimal"))
def test_the_limit_of_a_row_is_that_of_postgresql(postgres, name):
    kind, value, most = MOST[name]
    assert not is_refused(postgres, rows_of(*columns_of([value], kind, most)))
    assert is_refused(postgres, rows_of(*columns_of([value], kind, most + 1)))


def test_nulls_take_no_bytes_and_each_row_is_counted(postgres):
    many = columns_of([None, 7], pa.int64(), 1100)
    assert is_refused(postgres, rows_of(*many))
    assert not is_refused(postgres, rows_of(*columns_of([None, None], pa.int64(), 1100)))


def test_columns_of_several_widths_are_aligned(postgres):
    pairs = [column for _ in range(500) for column in (pa.array([True]), pa.array([7], pa.int64()))]
    assert not is_refused(postgres, rows_of(*pairs))
    assert is_refused(postgres, rows_of(*pairs, *pairs[:20]))


def test_marks_and_the_temporary_table_of_an_upsert_count_too(postgres):
    most = columns_of([7], pa.int64(), 1017)
    for settings in ({"mark_rows": True}, {"upsert_by": ["c0"]}):
        postgres.clear()
        attempt = postgres.open(1, schema=rows_of(*most).schema, settings={"mark_rows": False, **settings})
        with pytest.raises(UnfitOutputError, match="the whole row has 1 value of more than 8160 bytes"):
            attempt.write_table(rows_of(*most))
        assert not is_refused(postgres, rows_of(*most[:-4]), **settings)


def test_a_long_value_that_stays_in_its_row_is_refused(postgres):
    marks = "_statecheck_lineage VARCHAR(12), _statecheck_checkpoint BIGINT"
    postgres.run(f"CREATE TABLE {TABLE} (key BIGINT, name TEXT, {marks})")
    postgres.run(f"ALTER TABLE {TABLE} ALTER name SET STORAGE PLAIN")
    attempt = postgres.open(1)
    with pytest.raises(UnfitOutputError, match="the whole row has 1 value of more than 8160 bytes"):
        attempt.write_table(pa.table({"key": [1], "name": ["x" * 8200]}))
    attempt.commit(1, attempt.write_table(pa.table({"key": [1], "name": ["x" * 8000]})))
    assert postgres.seen == [1]


def test_columns_that_are_never_null_and_do_not_fit_are_refused_before_any_work(postgres):
    schema = pa.schema([pa.field(f"c{number}", pa.int64(), nullable=False) for number in range(1100)])
    with pytest.raises(UnfitOutputError, match="its columns take 8823 bytes at least, and a row has 8160 at most"):
        postgres.open(1, schema=schema, settings={"mark_rows": False})


def test_a_table_with_few_columns_has_no_limit_of_its_rows(postgres):
    attempt = postgres.open(1, schema=rows_of(*columns_of([7], pa.int64(), 300)).schema)
    assert attempt.task().__dict__["_limits"].limits == ()
