"""Tables that stages on a Spark Connect server read and write, and their state as data there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from deltalake import DeltaTable, write_deltalake

from airflow_provider_statecheck import Stage
from airflow_provider_statecheck.spark.connectors.delta.sink import DeltaSink
from airflow_provider_statecheck.spark.connectors.delta.source import DeltaSource
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.iceberg.sink import IcebergSink
from airflow_provider_statecheck.spark.connectors.iceberg.source import IcebergSource
from airflow_provider_statecheck.spark.connectors.sql.sink import SqlSink
from airflow_provider_statecheck.spark.connectors.sql.source import SqlSource
from airflow_provider_statecheck.spark.connectors.stage_output.source import StageOutputSource
from airflow_provider_statecheck.spark.driver.readiness import make_ready
from airflow_provider_statecheck.spark.stages.stage import Count, Sum
from airflow_provider_statecheck.spark.state_dataframes import read_state, write_savepoint
from airflow_provider_statecheck.state.descriptors import ValueStateDescriptor
from tests.spark.stages.stage_tries import StageTries
from tests.unit.spark.connectors.iceberg.tables import TABLE, create_table, opened, properties_in, table_in
from tests.unit.spark.connectors.sql.source_tables import Table

pytestmark = pytest.mark.soak

ORDERS = pa.schema([("customer", pa.int64()), ("amount", pa.int64())])
TOTALS = pa.schema([("customer", pa.int64()), ("amount", pa.int64()), ("orders", pa.int64())])
ROWS = [{"customer": number % 3, "amount": number} for number in range(12)]
EXPECTED = [(c, sum(range(c, 12, 3)), 4) for c in range(3)]


@dataclass
class Tables:
    """A table with orders, another one for totals, and how the latter is read."""

    source: Any
    sink: Any
    totals: Callable[[], list[dict[str, Any]]]


def delta(folder: Path) -> Tables:
    write_deltalake(str(folder / "orders"), pa.Table.from_pylist(ROWS, ORDERS))
    totals = str(folder / "totals")
    return Tables(
        DeltaSource(str(folder / "orders")),
        DeltaSink(totals),
        lambda: DeltaTable(totals).to_pyarrow_table().to_pylist(),
    )


def iceberg(folder: Path) -> Tables:
    create_table(folder, ORDERS)
    with table_in(folder) as table:
        table.append(pa.Table.from_pylist(ROWS, ORDERS))
    with opened(folder) as catalog:
        catalog.create_table("sales.totals", TOTALS)
    properties = properties_in(folder)

    def totals() -> list[dict[str, Any]]:
        with opened(folder) as catalog:
            return list(catalog.load_table("sales.totals").scan().to_arrow().to_pylist())

    return Tables(
        IcebergSource(TABLE, properties=properties), IcebergSink("sales.totals", properties=properties), totals
    )


def sql(folder: Path) -> Tables:
    url = f"sqlite:///{folder}/shop.db"
    columns = [
        sa.Column("id", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.BigInteger) for name in ORDERS.names),
    ]
    Table(url, *columns).add(*({"id": number, **row} for number, row in enumerate(ROWS)))
    Table(url, *(sa.Column(name, sa.BigInteger) for name in TOTALS.names), name="totals")

    def totals() -> list[dict[str, Any]]:
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.connect() as connection:
            found = connection.execute(sa.text("SELECT customer, amount, orders FROM totals"))
            return [dict(row._mapping) for row in found]

    sink = SqlSink(url, "totals", staging=f"file://{folder}/staging", mark_rows=False)
    return Tables(SqlSource(url, "orders", key="id"), sink, totals)


@pytest.fixture
def tries(spark: Any, tmp_path: Path) -> StageTries:
    made = StageTries(spark, tmp_path)
    make_ready(spark, made.storage)
    return made


def totals_of(source: Any, sink: Any) -> Stage:
    keyed = Stage("stage", max_parallelism=8, parallelism=2).source(source).key_by("customer")
    return keyed.aggregate(amount=Sum("amount"), orders=Count()).sink(sink)


@pytest.mark.parametrize("kind", [delta, iceberg, sql])
def test_a_stage_reads_a_table_and_writes_another(kind: Callable[[Path], Tables], tries: StageTries) -> None:
    tables = kind(tries.folder)
    tries.run(totals_of(tables.source, tables.sink))
    assert sorted(tuple(row[name] for name in TOTALS.names) for row in tables.totals()) == EXPECTED


def test_a_stage_reads_what_another_one_has_committed(tries: StageTries) -> None:
    tables = delta(tries.folder)
    tries.run(totals_of(tables.source, ParquetSink(str(tries.output))))
    last = Stage("last").source(StageOutputSource(str(tries.output))).key_by("orders")
    counted = last.aggregate(amount=Sum("amount")).sink(ParquetSink(str(tries.folder / "last")))
    tries.run(counted, job_name="last", uid="last")
    found = list((tries.folder / "last").rglob("part-*.parquet"))
    assert [row for file in found for row in pq.read_table(file).to_pylist()] == [
        {"orders": 4, "amount": sum(range(12))}
    ]


def test_a_savepoint_is_written_from_a_frame_and_read_as_one(tries: StageTries, spark: Any) -> None:
    rows = [(f"account {number}", number) for number in range(20)]
    frame = spark.createDataFrame(rows, "account string, value bigint")
    pointer = write_savepoint(
        frame,
        ValueStateDescriptor("balance", int),
        stage="stage",
        function="balance",
        target=f"file://{tries.folder}/savepoints",
        key=["account"],
        max_parallelism=8,
    )
    assert sorted(tuple(row) for row in read_state(spark, pointer, "balance").collect()) == sorted(rows)
