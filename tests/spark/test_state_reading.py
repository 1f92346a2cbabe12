"""
State as a DataFrame: the rows that PyArrow reads, read by Spark's tasks.

And stages that begin from state as data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.state_dataframes import read_state
from airflow_provider_statecheck.state.descriptors import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from tests.written_state import BACKENDS, EACH_BACKEND, StatefulJob


class Level(Enum):
    LOW = 1


@dataclass
class Everything:
    flag: bool
    number: int
    real: float
    text: str
    data: bytes
    amount: Decimal
    day: date
    at: datetime
    clock: time
    took: timedelta
    id: UUID
    level: Level
    tags: list[str]
    counts: dict[str, int]
    pair: tuple[int, str]
    note: str | None = None


SOME = Everything(
    flag=True,
    number=1 << 40,
    real=0.5,
    text="text",
    data=b"\x00\xff",
    amount=Decimal("1.25"),
    day=date(2026, 1, 2),
    at=datetime(2026, 1, 2, 3, tzinfo=UTC),
    clock=time(1, 2, 3, 4),
    took=timedelta(days=1, microseconds=5),
    id=UUID(int=7),
    level=Level.LOW,
    tags=["a", "b"],
    counts={"x": 1},
    pair=(1, "one"),
)


@pytest.fixture(params=EACH_BACKEND)
def job(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StatefulJob]:
    descriptors: list[Any] = [
        ValueStateDescriptor("value", int),
        ValueStateDescriptor("everything", Everything),
        ListStateDescriptor("list", str),
        MapStateDescriptor("map", str, int),
        ValueStateDescriptor("expiring", int, ttl=StateTtlConfig(timedelta(seconds=1))),
        ValueStateDescriptor("unsigned", pa.uint64()),
    ]
    made = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS[request.param](), descriptors)
    made.open(3)
    yield made
    made.close()


def test_every_row_is_read_once_however_many_tasks_there_are(spark: Any, job: StatefulJob) -> None:
    for number in range(60):
        job.state(f"key {number}", "value").update(number)
    pointer = job.save()
    for partitions in (1, 5, 1000):
        found = read_state(spark, pointer, "value", partitions=partitions)
        assert sorted(tuple(row) for row in found.collect()) == sorted((f"key {n}", n) for n in range(60))
    assert read_state(spark, pointer, "value", partitions=5).rdd.getNumPartitions() == 5
    assert read_state(spark, pointer, "value").where("value >= 50").count() == 10


def test_lists_maps_and_times_have_their_columns(spark: Any, job: StatefulJob) -> None:
    job.state("ann", "list").update(["x", "y"])
    job.state("ann", "map").put("tea", 2)
    job.state("ann", "map").put("salt", None)
    job.state("ann", "expiring").update(3)
    pointer = job.save()
    assert [tuple(row) for row in read_state(spark, pointer, "list").collect()] == [("ann", ["x", "y"])]
    entries = read_state(spark, pointer, "map")
    assert entries.columns == ["account", "map_key", "map_value"]
    assert sorted(tuple(row) for row in entries.collect()) == [("ann", "salt", None), ("ann", "tea", 2)]
    expiring = read_state(spark, pointer, "expiring", with_times=True)
    (row,) = expiring.selectExpr("value", "unix_millis(last_access) as at").collect()
    assert tuple(row) == (3, job.now_ms)
    later = datetime.fromtimestamp(job.now_ms / 1000 + 1, UTC)
    assert read_state(spark, pointer, "expiring", now=later).count() == 0


def test_every_type_of_state_has_one_of_spark(spark: Any, job: StatefulJob) -> None:
    job.state("ann", "everything").update(SOME)
    job.state("ann", "unsigned").update((1 << 64) - 1)
    pointer = job.save()
    (row,) = read_state(spark, pointer, "everything").select("value.*").collect()
    found = row.asDict(recursive=True)
    at = {"local": datetime(2026, 1, 2, 3), "zone": "+00:00", "fold": False}  # noqa: DTZ001 - as on the clock
    plain = {
        "id": UUID(int=7).bytes,
        "level": "LOW",
        "at": at,
        "pair": {"_1": 1, "_2": "one"},
        "clock": "01:02:03.000004",
    }
    expected = vars(SOME) | plain | {"data": bytearray(SOME.data)}
    assert {name: found[name] for name in expected} == expected
    (row,) = read_state(spark, pointer, "unsigned").collect()
    assert row.value == (1 << 64) - 1


def test_empty_state_is_an_empty_frame(spark: Any, job: StatefulJob) -> None:
    pointer = job.save()
    found = read_state(spark, pointer, "everything")
    assert found.columns == ["account", "value"]
    assert found.count() == 0


def test_wrong_number_of_partitions_is_refused(spark: Any, job: StatefulJob) -> None:
    with pytest.raises(InvalidConfigurationError, match="partition"):
        read_state(spark, job.save(), "value", partitions=0)


def test_options_of_the_storage_are_not_in_the_plan(spark: Any, job: StatefulJob) -> None:
    job.state("ann", "value").update(1)
    pointer = job.save()
    found = read_state(spark, pointer, "value", storage_options={"auto_mkdir": True, "token": "secret-token"})
    assert found.count() == 1
    shown = found._jdf.queryExecution().toString()
    assert "secret-token" not in shown


def test_types_that_spark_has_not_are_refused(spark: Any, tmp_path: Path) -> None:
    descriptors = [ValueStateDescriptor("large", pa.decimal256(60, 2))]
    job = StatefulJob(CheckpointStorage.open(tmp_path.as_uri()), BACKENDS["arrow"](), descriptors)
    job.open(1)
    with pytest.raises(UnsupportedStateError, match="decimal256"):
        read_state(spark, job.save(), "large")
    job.close()
