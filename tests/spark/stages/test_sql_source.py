"""Tables of databases read by a real Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
import sqlalchemy as sa

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.connectors.files.sink import ParquetSink
from airflow_provider_statecheck.spark.connectors.sql.source import SqlSource
from airflow_provider_statecheck.spark.stages.stage import Stage
from tests.messages import make_owner
from tests.spark.stages.functions import FailingOnce
from tests.spark.stages.stage_tries import StageTries
from tests.spark.stages.test_stage import RUNNING, running
from tests.unit.spark.connectors.runs import following, rows_read, state_of
from tests.unit.spark.connectors.sql.source_tables import Table

NOON = datetime(2026, 11, 21, 12, 30, 0, 123456, tzinfo=UTC)


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.soak), pytest.param("postgresql", marks=pytest.mark.db)]
)
def url(request, tmp_path):
    return f"sqlite:///{tmp_path}/shop.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def test_columns_have_the_types_and_values_of_the_table(spark, url):
    columns: dict[str, tuple[Any, Any]] = {
        "id": (sa.Integer, 7),
        "small": (sa.SmallInteger, 3),
        "large": (sa.BigInteger, 2**60),
        "is_new": (sa.Boolean, True),
        "price": (sa.Numeric(10, 2), Decimal("1.25")),
        "ratio": (sa.Double, 0.1),
        "name": (sa.String(20), "Zoë's 100%"),
        "day": (sa.Date, date(1500, 1, 1)),
        "local": (sa.DateTime, NOON.replace(tzinfo=None)),
        "content": (sa.LargeBinary, b"\0\xff"),
    }
    table = Table(url, *(sa.Column(name, kind) for name, (kind, _) in columns.items()))
    table.add({name: value for name, (_, value) in columns.items()}, {**dict.fromkeys(columns), "id": 8})

    enumerator = SqlSource(url, "orders").open(spark)
    frame = enumerator.load(following(enumerator))

    assert frame.schema.simpleString() == (
        "struct<id:bigint,small:bigint,large:bigint,is_new:boolean,price:decimal(10,2),ratio:double,name:string,day:date,"
        "local:timestamp_ntz,content:binary>"
    )
    first, second = [row.asDict() for row in frame.collect()]
    assert first == {name: value for name, (_, value) in columns.items()}
    assert second == {**dict.fromkeys(columns), "id": 8}


def test_columns_that_only_postgresql_has(spark, postgres_url):
    table = Table(
        postgres_url,
        sa.Column("id", sa.DateTime(timezone=True)),
        sa.Column("code", sa.Uuid),
        sa.Column("kind", sa.Enum("new", "old", name="kinds")),
        sa.Column("more", sa.JSON),
        sa.Column("any", sa.Numeric),
    )
    code = UUID(int=5)
    table.add({"id": NOON, "code": code, "kind": "old", "more": "a text", "any": Decimal("0.5")})

    enumerator = SqlSource(postgres_url, "orders").open(spark)
    ((row),) = enumerator.load(following(enumerator)).selectExpr("*", "unix_micros(id) as micros").collect()

    assert row["micros"] == int(NOON.timestamp()) * 1_000_000 + 123456
    assert (row["code"], row["kind"], row["any"]) == (str(code), "old", Decimal("0.5"))
    assert json.loads(row["more"]) == "a text"
    table.drop()


def test_a_schema_gives_types_that_the_table_does_not_tell(spark, postgres_url):
    table = Table(postgres_url, sa.Column("id", sa.Integer), sa.Column("tags", sa.ARRAY(sa.Text)))
    table.add({"id": 1, "tags": ["a", None]})
    source = SqlSource(postgres_url, "orders", schema="id int, tags array<string>")
    assert [row.asDict() for row in rows_read(source.open(spark))] == [{"id": 1, "tags": ["a", None]}]


@pytest.mark.parametrize("schema", ["id big big", "id interval"])
def test_what_is_no_schema_or_has_no_counterpart_is_refused(spark, tmp_path, schema):
    table = Table(f"sqlite:///{tmp_path}/shop.db", sa.Column("id", sa.Integer))
    with pytest.raises((InvalidConfigurationError, UnsupportedStateError)):
        SqlSource(table.url, "orders", schema=schema).open(spark)


def test_each_range_is_a_task_of_its_own(spark, tmp_path):
    table = Table(f"sqlite:///{tmp_path}/shop.db", sa.Column("id", sa.Integer))
    table.add_keys(range(9))
    enumerator = SqlSource(table.url, "orders", rows_per_increment=9, readers=3).open(spark)
    frame = enumerator.load(following(enumerator)).selectExpr("id", "spark_partition_id() as task")
    assert {(row["id"] // 3, row["task"]) for row in frame.collect()} == {(0, 0), (1, 1), (2, 2)}


def test_the_address_is_in_no_plan_and_no_message(spark, postgres_url):
    table = Table(postgres_url, sa.Column("id", sa.Integer))
    table.add_keys(range(3))
    secret = sa.make_url(postgres_url).update_query_dict({"application_name": "very-secret"})
    source = SqlSource(secret.render_as_string(hide_password=False), "orders")
    enumerator = source.open(spark)
    increment = following(enumerator)
    frame = enumerator.load(increment)
    plan = frame._jdf.queryExecution().toString() + frame._jdf.queryExecution().explainString(
        spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString("extended")
    )
    table.drop()

    with pytest.raises(Exception, match="orders") as raised:
        frame.collect()

    assert "MapInArrow" in plan
    assert "very-secret" not in plan
    assert postgres_url not in plan
    assert "very-secret" not in str(raised.value)
    assert "very-secret" not in repr(state_of(enumerator))


def test_a_stage_that_failed_goes_on_in_the_table_and_the_next_run_behind_the_mark(tries, url):
    table = Table(url, *(sa.Column(name, kind) for name, kind in PAYMENT.items()))
    table.add(*payments(0, 40))
    function = FailingOnce(tries.folder / "failed", number=25)
    stage = stage_of(tries, url, function)
    with pytest.raises(Exception, match="planned"):
        tries.run(stage)
    table.add(*payments(40, 45))  # above the mark
    assert tries.run(stage).rows == 20
    assert tries.rows() == running([pa.Table.from_pylist(payments(0, 40)).to_pydict()])
    tries.run(stage, owner=make_owner(run_key="tomorrow"))
    assert tries.rows() == running([pa.Table.from_pylist(payments(0, 45)).to_pydict()])


PAYMENT = {"account": sa.Text, "number": sa.BigInteger, "amount": sa.BigInteger, "purpose": sa.Text}


def payments(start, end):
    return [{"account": f"a{n % 3}", "number": n, "amount": n, "purpose": "rent"} for n in range(start, end)]


def stage_of(tries: StageTries, url: str, function: FailingOnce) -> Stage:
    source = SqlSource(url, "orders", key="number", rows_per_increment=10, readers=2)
    keyed = Stage("stage").source(source).key_by("account", order_by="number")
    return keyed.process(function, uid="balance", output=RUNNING).sink(ParquetSink(str(Path(tries.output))))
