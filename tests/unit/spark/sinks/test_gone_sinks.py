"""A sink that is new in a place refuses output of a stage that is gone from its job, whatever kind of place it is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError
from airflow_provider_statecheck.spark.sinks.delta_sink import DeltaSink
from airflow_provider_statecheck.spark.sinks.iceberg_sink import IcebergSink
from airflow_provider_statecheck.spark.sinks.parquet_sink import ParquetSink
from airflow_provider_statecheck.spark.sinks.sink import Sink
from tests.unit.spark.sinks.iceberg.tables import TABLE, create_table, properties_in
from tests.unit.spark.sinks.sql.databases import Place
from tests.unit.spark.sinks.two_phase.attempts import Attempt
from tests.unit.spark.sinks.two_phase.folder_sink import FolderSink

Make = Callable[[], Sink]
GONE = ("old/sink",)


def iceberg_sink(folder: Path) -> Sink:
    pytest.importorskip("pyiceberg")
    if not (folder / "catalog.db").exists():
        create_table(folder)
    return IcebergSink(TABLE, properties=properties_in(folder))


def delta_sink(folder: Path) -> Sink:
    pytest.importorskip("deltalake")
    return DeltaSink(f"file://{folder}/delta")


KINDS: dict[str, Callable[[Path], Sink]] = {
    "parquet": lambda folder: ParquetSink(f"file://{folder}/table"),
    "delta": delta_sink,
    "iceberg": iceberg_sink,
    "sqlite": lambda folder: Place(f"sqlite:///{folder}/output.db", folder).sink(),
    "two phases": FolderSink,
}


@pytest.fixture(params=[*KINDS, pytest.param("postgres", marks=pytest.mark.db)])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    """Make a sink of each kind, all in one place."""
    if request.param != "postgres":
        return lambda: KINDS[request.param](tmp_path)
    place = Place(request.getfixturevalue("postgres_url"), tmp_path)
    place.clear()
    return place.sink


def attempt(make: Make, uid: str, epoch: int = 1, *, gone: tuple[str, ...] = (), job: str = "balances") -> Attempt:
    """Return an attempt of one of several stages that share the place."""
    found = Attempt(make, epoch, job=job)
    found.context = replace(found.context, uid=f"{uid}/sink", gone_uids=gone)
    return found


def test_a_new_sink_refuses_output_of_a_stage_that_is_gone(make: Make) -> None:
    attempt(make, "old").open().add(1, 1, 2)
    for epoch in (1, 2):
        with pytest.raises(
            EnvironmentNotReadyError, match=r"output of 'old'.*renamed_uids=\{'old': 'new'\} or uid='old'"
        ):
            attempt(make, "new", epoch, gone=GONE).open()


def test_stages_that_are_in_use_share_a_place(make: Make) -> None:
    attempt(make, "old").open().add(1, 1, 2)
    attempt(make, "new").open().add(2, 3)


def test_a_sink_that_had_the_place_before_keeps_it(make: Make) -> None:
    attempt(make, "old").open().add(1, 1, 2)
    attempt(make, "new").open()
    attempt(make, "new", 2, gone=GONE).open().add(2, 3)


def test_output_of_another_job_is_none_of_this_ones(make: Make) -> None:
    attempt(make, "old", job="orders").open().add(1, 1, 2)
    attempt(make, "new", gone=GONE).open().add(2, 3)


def test_a_stage_that_is_gone_and_wrote_nothing_is_in_nobodys_way(make: Make) -> None:
    attempt(make, "old").open()
    attempt(make, "new", gone=GONE).open().add(2, 3)
