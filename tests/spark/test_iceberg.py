"""A table of Iceberg read and written by stages in a real Spark, without a connector."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.transforms import IdentityTransform

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.stages.stage import Count, Stage, Sum
from tests.messages import make_owner
from tests.shared_spark import to_arrow
from tests.spark.stages.stage_tries import StageTries
from tests.unit.spark.connectors.iceberg.tables import TABLE, create_table, opened, properties_in, table_in
from tests.unit.spark.connectors.runs import rows_read

EVERY_TYPE = pa.schema(
    [
        ("id", pa.int64()),
        ("small", pa.int32()),
        ("text", pa.string()),
        ("raw", pa.binary()),
        ("at", pa.timestamp("us", "UTC")),
        ("local", pa.timestamp("us")),
        ("day", pa.date32()),
        ("money", pa.decimal128(20, 2)),
        ("half", pa.float64()),
        ("quarter", pa.float32()),
        ("yes", pa.bool_()),
        ("tags", pa.list_(pa.string())),
        ("pairs", pa.map_(pa.string(), pa.int64())),
        ("place", pa.struct([("lat", pa.float64()), ("lon", pa.float64())])),
    ]
)
ORDERS = pa.schema([("customer", pa.int64()), ("amount", pa.int64())])
TOTALS = pa.schema([("customer", pa.int64()), ("amount", pa.int64()), ("orders", pa.int64())])
TOTALS_TABLE = "sales.totals"


def in_order(spark, source):
    return sorted(rows_read(source.open(spark), lambda frame: to_arrow(frame).to_pylist()), key=lambda row: row["id"])


def row_of(number: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "id": number,
        "small": number % 5,
        "text": f"text {number}",
        "raw": bytes([number % 256]),
        "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC) + dt.timedelta(hours=number),
        "local": dt.datetime(2026, 1, 1, number % 24),  # noqa: DTZ001 - the type has no zone
        "day": dt.date(2026, 1, 1 + number % 3),
        "money": Decimal(number) / 4,
        "half": number / 2,
        "quarter": number / 4,
        "yes": number % 2 == 0,
        "tags": ["a", None, str(number)],
        "pairs": [("k", number)],
        "place": {"lat": 1.5, "lon": None},
    }
    return row if number % 7 else {**dict.fromkeys(row), "id": number}


@pytest.fixture
def every_type(tmp_path):
    create_table(tmp_path, EVERY_TYPE, [("small", IdentityTransform(), "small_value")])
    with table_in(tmp_path) as table:
        table.append(pa.Table.from_pylist([row_of(n) for n in range(20)], EVERY_TYPE))
        table.append(pa.Table.from_pylist([row_of(n) for n in range(20, 30)], EVERY_TYPE))
        table.delete("id = 11")
    return tmp_path


@pytest.mark.soak
@pytest.mark.parametrize("limit", [{}, {"files_per_increment": 2}])
def test_rows_of_every_type_are_read_as_pyiceberg_reads_them(spark, every_type, limit):
    with table_in(every_type) as table:
        expected = sorted(table.scan().to_arrow().to_pylist(), key=lambda row: row["id"])
    found = in_order(spark, IcebergSource(TABLE, properties=properties_in(every_type), **limit))
    assert len(found) == 29
    assert found == expected


def test_chosen_columns_alone_are_read(spark, every_type):
    source = IcebergSource(TABLE, properties=properties_in(every_type), columns=["id", "text"])
    assert in_order(spark, source)[:2] == [{"id": 0, "text": None}, {"id": 1, "text": "text 1"}]


def test_columns_that_spark_has_no_type_for_are_refused(spark, tmp_path):
    create_table(tmp_path, pa.schema([("id", pa.int64()), ("key", pa.uuid())]))
    source = IcebergSource(TABLE, properties=properties_in(tmp_path))
    with table_in(tmp_path) as table:
        table.append(pa.table({"id": [1], "key": pa.array([bytes(16)], pa.uuid())}))
    enumerator = source.open(spark)
    increment = enumerator.next_increment()
    assert increment is not None
    with pytest.raises(InvalidConfigurationError, match="columns that Spark has types for"):
        enumerator.load(increment)


def test_what_spark_plans_to_read_shows_no_credentials(spark, every_type):
    properties = {**properties_in(every_type), "s3.secret-access-key": "hush-hush"}
    enumerator = IcebergSource(TABLE, properties=properties).open(spark)
    increment = enumerator.next_increment()
    assert increment is not None
    frame = enumerator.load(increment)
    assert "hush" not in frame._jdf.queryExecution().toString()


# A stage


@pytest.fixture
def tries(spark, tmp_path):
    create_table(tmp_path, ORDERS)
    with opened(tmp_path) as catalog:
        catalog.create_table(TOTALS_TABLE, TOTALS)
    return StageTries(spark, tmp_path)


def order(tries, *orders):
    with table_in(tries.folder) as table:
        table.append(pa.Table.from_pylist([{"customer": c, "amount": a} for c, a in orders], ORDERS))


def stage_of(tries, sink_table=TOTALS_TABLE):
    source = IcebergSource(TABLE, properties=properties_in(tries.folder), files_per_increment=1)
    sink = IcebergSink(sink_table, properties=properties_in(tries.folder))
    stage = Stage("stage", max_parallelism=8, parallelism=2).source(source).key_by("customer")
    return stage.aggregate(emit="changes", amount=Sum("amount"), orders=Count()).sink(sink)


def totals(tries):
    with opened(tries.folder) as catalog:
        rows = catalog.load_table(TOTALS_TABLE).scan().to_arrow().to_pylist()
    return sorted((row["customer"], row["amount"], row["orders"]) for row in rows)


def test_a_stage_reads_a_table_and_writes_another_and_each_run_goes_on_with_what_was_appended(tries):
    order(tries, (1, 10), (2, 20))
    order(tries, (1, 5))
    tries.run(stage_of(tries), owner=make_owner(run_key="monday"))
    found = totals(tries)
    assert {(1, 15, 2), (2, 20, 1)} <= set(found)
    order(tries, (2, 1))
    result = tries.run(stage_of(tries), owner=make_owner(run_key="tuesday"))
    assert result.rows == 1
    assert totals(tries) == sorted([*found, (2, 21, 2)])


def test_output_that_does_not_fit_the_table_is_refused_before_any_work(tries):
    order(tries, (1, 10))
    with pytest.raises(UnsupportedStateError, match=r"fits the columns of the Iceberg table sales\.orders"):
        tries.run(stage_of(tries, sink_table=TABLE))
    with table_in(tries.folder) as table:
        assert len(table.metadata.snapshots) == 1
