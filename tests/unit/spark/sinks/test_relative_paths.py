"""A relative path is one place for the driver and for all tasks: below the directory in which the driver opened the sink."""

from __future__ import annotations

import json
import pickle
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.sink import Sink, SinkTaskContext
from airflow_provider_statecheck.spark.sinks.sql_sink import SqlSink
from tests.unit.spark.sinks import attempts as parquet_attempts
from tests.unit.spark.sinks.sql.databases import Place as SqlPlace
from tests.unit.spark.sinks.two_phase.attempts import SCHEMA, Committables, context_of, table_of
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink, keys_in


@dataclass(frozen=True)
class Target:
    """
    A sink with a relative path, and what a reader finds below the driver's directory.

    :param make: Makes the sink in the driver's directory.
    :param absolute: Makes the same one with an absolute path.
    """

    make: Callable[[Path], Sink]
    absolute: Callable[[Path], Sink]
    seen: Callable[[Path], list[int]]


class RelativeLogSink(FolderSink):
    """Keeps its log at a relative path."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._log = "log"


def delta_keys(driver: Path) -> list[int]:
    from tests.unit.spark.sinks.delta.attempts import keys_of

    return keys_of(str(driver / "data/table"))


def sql_sink(driver: Path | str) -> SqlSink:
    prefix = "" if driver == "" else f"{driver}/"
    return SqlSink(f"sqlite:///{prefix}output.db", "balances", staging=f"{prefix}data/staging")


TARGETS = {
    "parquet": Target(
        lambda _: ParquetSink("data/table"),
        lambda driver: ParquetSink(f"file://{driver}/data/table"),
        lambda driver: parquet_attempts.seen_in(f"file://{driver}/data/table"),
    ),
    "delta": Target(
        lambda _: DeltaSink("data/table"), lambda driver: DeltaSink(f"file://{driver}/data/table"), delta_keys
    ),
    "sql": Target(
        lambda _: sql_sink(""), sql_sink, lambda driver: SqlPlace(f"sqlite:///{driver}/output.db", driver).seen
    ),
    "two-phase": Target(RelativeLogSink, FolderSink, keys_in),
}


@pytest.fixture
def driver(tmp_path: Path) -> Path:
    folder = tmp_path / "driver"
    folder.mkdir()
    return folder


@pytest.fixture
def executor(tmp_path: Path) -> Path:
    folder = tmp_path / "executor"
    folder.mkdir()
    return folder


@pytest.fixture(params=sorted(TARGETS))
def target(request: pytest.FixtureRequest) -> Target:
    if request.param == "delta":
        pytest.importorskip("deltalake")
    return TARGETS[request.param]


def write(pickled: bytes, *keys: int, epoch: int = 1) -> Committables:
    """Write as a Spark task does, and return what the driver reads from a checkpoint."""
    context = SinkTaskContext(subtask=0, epoch=epoch, task_id=uuid.uuid4().hex, schema=SCHEMA)
    writer = pickle.loads(pickled).writer(context)
    writer.write(table_of(keys))
    found: Committables = json.loads(json.dumps(writer.prepare_commit()))
    return found


def opened(sink: Any, epoch: int, **context: Any) -> Any:
    sink.open(context_of(epoch, **context))
    return sink


def test_what_tasks_write_in_other_directories_is_committed_in_that_of_the_driver(
    target, driver, executor, monkeypatch
):
    monkeypatch.chdir(driver)
    sink = opened(target.make(driver), 1)
    pickled = pickle.dumps(sink)
    monkeypatch.chdir(executor)
    written = write(pickled, 1, 2)
    monkeypatch.chdir(driver)
    sink.commit(1, written)
    sink.close(True)
    assert target.seen(driver) == [1, 2]
    assert list(executor.iterdir()) == []


def test_a_driver_that_leaves_its_directory_goes_on_in_the_place_that_it_opened(target, driver, executor, monkeypatch):
    monkeypatch.chdir(driver)
    sink = opened(target.make(driver), 1)
    monkeypatch.chdir(executor)
    sink.commit(1, write(pickle.dumps(sink), 1, 2))
    sink.close(True)
    assert target.seen(driver) == [1, 2]
    assert list(executor.iterdir()) == []


@pytest.mark.parametrize("first", ["make", "absolute"])
def test_an_attempt_takes_over_what_one_left_that_wrote_the_path_in_the_other_way(target, driver, monkeypatch, first):
    monkeypatch.chdir(driver)
    second = {"make": "absolute", "absolute": "make"}[first]
    sink = opened(getattr(target, first)(driver), 1)
    sink.commit(1, write(pickle.dumps(sink), 1))
    pending = write(pickle.dumps(sink), 2)
    sink = opened(getattr(target, second)(driver), 2, restored=2, restored_epoch=1)
    sink.commit(2, pending)
    sink.commit(3, write(pickle.dumps(sink), 3, epoch=2))
    sink.close(True)
    assert target.seen(driver) == [1, 2, 3]


def test_a_copy_that_was_never_opened_means_the_directory_in_which_it_is_opened(target, driver, executor, monkeypatch):
    monkeypatch.chdir(executor)
    pickled = pickle.dumps(target.make(driver))
    monkeypatch.chdir(driver)
    sink = opened(pickle.loads(pickled), 1)
    sink.commit(1, write(pickle.dumps(sink), 1))
    assert target.seen(driver) == [1]
    assert list(executor.iterdir()) == []
