"""Addresses of databases, their failures, and types of columns."""

from __future__ import annotations

import logging
import pickle
import sqlite3
import sys
from collections.abc import Iterator

import pyarrow as pa
import pytest
import sqlalchemy
from sqlalchemy import NullPool, create_engine, inspect, text

from airflow_provider_statecheck.checkpoint.masking import masked
from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, InvalidConfigurationError, SourceError
from airflow_provider_statecheck.spark.connectors.sql import databases
from airflow_provider_statecheck.spark.connectors.sql.databases import (
    Database,
    column_type,
    is_incompatible,
    resolved_url,
    shown_address,
)

SECRET = "p@ss/w%rd"
URL = "postgresql+psycopg2://me:p%40ss%2Fw%25rd@127.0.0.1:1/shop?sslpassword=also-secret"
SECRETS = (SECRET, "p%40ss%2Fw%25rd", "also-secret")


@pytest.fixture(autouse=True)
def _without_known_engines() -> Iterator[None]:
    databases.engine_of.cache_clear()
    yield
    databases.engine_of.cache_clear()


def hides(text):
    return not any(secret in text for secret in SECRETS)


def test_an_address_is_a_url_a_variable_or_a_function(monkeypatch):
    monkeypatch.setenv("SHOP", URL)
    for address in (URL, "env:SHOP", lambda: URL):
        assert Database.open(address).shown == "postgresql+psycopg2://127.0.0.1/shop"


@pytest.mark.parametrize(
    ("url", "is_secret"),
    [
        ("sqlite:////data/shop-1.db", False),
        ("postgresql+psycopg2://lake-1/shop", False),
        ("postgresql+psycopg2://me@lake-2/shop", True),
        ("postgresql+psycopg2://lake-3/shop?sslpassword=also-secret", True),
    ],
)
def test_a_url_is_remembered_as_a_secret_only_if_it_has_one(url, is_secret):
    """Airflow compiles all remembered secrets again for each new one, and the path of a file is none."""
    Database(url)
    assert (masked(f"at {url}") != f"at {url}") == is_secret
    assert ("***" in masked(f"at {url}").replace("://***@", "")) == is_secret


def test_a_variable_that_is_not_set_is_refused(monkeypatch):
    monkeypatch.delenv("SHOP", raising=False)
    with pytest.raises(InvalidConfigurationError, match="SHOP"):
        Database.open("env:SHOP")


@pytest.mark.parametrize("url", [f"no url {SECRET}", sqlalchemy.make_url(URL), None, f"mysql:{SECRET}"])
def test_what_is_no_url_is_refused_and_not_shown(url):
    with pytest.raises(InvalidConfigurationError, match="URL of a database") as raised:
        Database(url)
    assert hides(str(raised.value))
    assert raised.value.__cause__ is None


def test_an_address_is_shown_without_its_secrets():
    assert shown_address("env:SHOP") == "env:SHOP"
    assert hides(shown_address(URL) + repr(Database(URL)) + shown_address(lambda: URL))


def test_a_database_that_does_not_answer_is_told_without_secrets():
    with pytest.raises(SourceError, match="cannot be read") as raised, Database(URL).connect():
        pass
    assert "OperationalError" in str(raised.value)
    assert hides(str(raised.value))
    assert raised.value.__cause__ is None
    assert raised.value.__suppress_context__


def test_secrets_of_a_message_are_blotted_out(monkeypatch):
    def fail(*_, **__):
        raise RuntimeError(f"of {URL}: {SECRETS}")

    monkeypatch.setattr(sqlalchemy, "create_engine", fail)
    with pytest.raises(SourceError, match="RuntimeError") as raised, Database(URL).connect():
        pass
    assert hides(str(raised.value))


def test_a_refused_statement_is_told_without_its_values(tmp_path):
    database = Database(f"sqlite:///{tmp_path}/a.db")
    with pytest.raises(SourceError, match="no such table") as raised, database.connect() as connection:
        connection.execute(sqlalchemy.text("select * from missing where id = :id"), {"id": "somebody's"})
    assert "somebody's" not in str(raised.value)


def test_values_are_not_logged(tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "sqlalchemy.engine")
    with Database(f"sqlite:///{tmp_path}/a.db").connect() as connection:
        connection.execute(sqlalchemy.text("select 1 where 'x' = :name"), {"name": "somebody's"})
    assert "select 1" in caplog.text
    assert "somebody's" not in caplog.text


@pytest.mark.parametrize("url", ["mssql+pymssql://host/shop", "nosuch://host/shop"])
def test_a_missing_driver_names_what_to_install(url):
    with pytest.raises(EnvironmentNotReadyError, match="postgres"), Database(url).connect():
        pass


def test_sqlalchemy_that_is_missing_where_tasks_run_is_named(monkeypatch):
    database = Database(URL)
    monkeypatch.setitem(sys.modules, "sqlalchemy", None)
    with pytest.raises(EnvironmentNotReadyError, match="install SQLAlchemy"), database.connect():
        pass


def test_a_database_reaches_its_tasks(tmp_path):
    with pickle.loads(pickle.dumps(Database(f"sqlite:///{tmp_path}/a.db"))).connect() as connection:
        assert connection.execute(sqlalchemy.text("select 1")).scalar() == 1


@pytest.mark.parametrize(
    "url", ["sqlite:///data/a.db", "sqlite+pysqlite:///./data/a.db", "sqlite:///file:data/a.db?mode=rw&uri=true"]
)
def test_a_relative_file_is_below_the_directory_of_the_driver_for_tasks_too(tmp_path, monkeypatch, url):
    (tmp_path / "data").mkdir()
    sqlite3.connect(tmp_path / "data/a.db").execute("create table orders (id int)").connection.close()
    monkeypatch.chdir(tmp_path)
    pickled = pickle.dumps(Database.open(url))
    (tmp_path / "executor").mkdir()
    monkeypatch.chdir(tmp_path / "executor")
    with pickle.loads(pickled).connect() as connection:
        assert connection.execute(sqlalchemy.text("select name from sqlite_master")).scalar() == "orders"


@pytest.mark.parametrize(
    "url",
    [
        "sqlite://",
        "sqlite:///:memory:",
        "sqlite:////data/a.db",
        "sqlite:///file::memory:?uri=true",
        "sqlite:///file:a?mode=memory&uri=true",
        "sqlite:///file:/data/a.db?uri=true",
        "postgresql+psycopg2://me@127.0.0.1/shop?sslmode=disable",
    ],
)
def test_an_address_that_is_the_same_everywhere_stays_as_it_is_written(url):
    assert resolved_url(url) == url


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
        (pa.timestamp("us"), "TIMESTAMP(0)"),
        (pa.timestamp("us", "UTC"), "TIMESTAMPTZ(3)"),
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
        (pa.timestamp("us"), "TIMESTAMP(6)"),
    ],
)
def test_a_column_that_is_wide_enough_fits(is_refused, kind, column):
    assert not is_refused(kind, column)
