"""A relative path is resolved where the sink is opened; the contract of sinks has the rules for tasks and attempts."""

from __future__ import annotations

import pickle

import pytest

from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.table_sinks import DeltaSink, SqlSink
from airflow_provider_statecheck.testing.sink_contract import SinkAttempt
from tests.unit.spark.sinks.folder_sink import FolderSink


def with_relative_log(driver):
    sink = FolderSink(driver)
    sink._log = "log"
    return sink


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: ParquetSink("table"), id="parquet"),
        pytest.param(lambda _: DeltaSink("table"), id="delta"),
        pytest.param(lambda _: SqlSink("sqlite:///output.db", "balances", staging="staging"), id="sql"),
        pytest.param(with_relative_log, id="two-phase"),
    ],
)
def test_a_copy_that_was_never_opened_means_the_directory_in_which_it_is_opened(make, tmp_path, monkeypatch):
    driver, elsewhere = tmp_path / "driver", tmp_path / "elsewhere"
    driver.mkdir()
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    pickled = pickle.dumps(make(driver))
    monkeypatch.chdir(driver)
    attempt = SinkAttempt(pickle.loads(pickled), 1).open()
    attempt.add(1, 1)
    assert list(driver.iterdir())
    assert list(elsewhere.iterdir()) == []
