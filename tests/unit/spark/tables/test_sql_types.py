"""Which columns of PostgreSQL store the values of an Arrow type."""

from __future__ import annotations

import pyarrow as pa
import pytest
from sqlalchemy import NullPool, create_engine, inspect, text

from airflow_provider_statecheck.spark.tables.databases import column_type, is_incompatible

pytestmark = pytest.mark.db


@pytest.fixture
def is_refused(postgres_url):
    """Return whether a column of a table, as the database reports it, cannot store an Arrow type."""

    def ask(kind, column):
        with create_engine(postgres_url, poolclass=NullPool).begin() as connection:
            connection.execute(text(f"CREATE TEMPORARY TABLE narrow (value {column}) ON COMMIT DROP"))
            schema = connection.execute(
                text("SELECT nspname FROM pg_namespace WHERE oid = pg_my_temp_schema()")
            ).scalar()
            (found,) = inspect(connection).get_columns("narrow", schema=schema)
            return is_incompatible(column_type("value", kind, is_sqlite=False), found["type"], is_sqlite=False)

    return ask


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "INTEGER"),
        (pa.int64(), "NUMERIC(18)"),
        (pa.int64(), "NUMERIC(20, 2)"),
        (pa.uint64(), "NUMERIC(19)"),
        (pa.decimal128(10, 2), "NUMERIC(12, 1)"),
        (pa.decimal128(10, 2), "NUMERIC(10, 4)"),
        (pa.float64(), "REAL"),
        (pa.string(), "CHAR(50)"),
        (pa.timestamp("us"), "TIMESTAMPTZ"),
        (pa.timestamp("us", "UTC"), "TIMESTAMP"),
    ],
)
def test_a_column_that_is_too_narrow_is_refused(is_refused, kind, column):
    assert is_refused(kind, column)


@pytest.mark.parametrize(
    ("kind", "column"),
    [
        (pa.int64(), "NUMERIC"),
        (pa.int64(), "NUMERIC(19)"),
        (pa.int32(), "NUMERIC(12, 2)"),
        (pa.uint64(), "NUMERIC(22, 2)"),
        (pa.decimal128(10, 2), "NUMERIC(12, 4)"),
        (pa.float32(), "REAL"),
        (pa.float32(), "DOUBLE PRECISION"),
        (pa.string(), "VARCHAR"),
        (pa.string(), "VARCHAR(50)"),
        (pa.timestamp("us", "UTC"), "TIMESTAMPTZ"),
    ],
)
def test_a_column_that_is_wide_enough_fits(is_refused, kind, column):
    assert not is_refused(kind, column)
