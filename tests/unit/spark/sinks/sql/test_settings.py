"""How a SQL sink is told its database, and who never hears of it."""

from __future__ import annotations

import copy
import pickle

import pytest

from airflow_provider_statecheck.exceptions import (
    CoordinatorError,
    EnvironmentNotReadyError,
    InvalidConfigurationError,
    StorageError,
)
from airflow_provider_statecheck.spark.sinks.table_sinks import SqlSink
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt

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
    "url", ["mysql+pymysql://host/name", "postgresql+asyncpg://host/name", "sqlite+aiosqlite:///a.db"]
)
def test_a_database_that_nobody_tried_is_refused(tmp_path, url):
    with pytest.raises(InvalidConfigurationError, match="postgresql\\+psycopg2"):
        SinkAttempt(a_sink(url, tmp_path), 1).open()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_refused(tmp_path, url):
    with pytest.raises(InvalidConfigurationError, match="of an SQLite file"):
        SinkAttempt(a_sink(url, tmp_path), 1).open()


def test_a_staging_directory_that_is_a_file_is_refused(sqlite):
    (sqlite.folder / "staging").write_text("")
    with pytest.raises(EnvironmentNotReadyError, match="found a file"):
        sqlite.open(1)


@pytest.mark.parametrize(
    "settings", [{"upsert_by": "key"}, {"upsert_by": ["a", "a"]}, {"upsert_by": [""]}, {"on_earlier_output": "keep"}]
)
def test_a_setting_out_of_its_range_is_refused(tmp_path, settings):
    with pytest.raises(InvalidConfigurationError):
        a_sink("sqlite:///x.db", tmp_path, **settings)
