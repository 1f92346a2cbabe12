"""Sources read by a real Spark."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.connectors import row_groups
from airflow_provider_statecheck.spark.connectors.files.source import CsvSource, JsonSource, ParquetSource
from airflow_provider_statecheck.spark.connectors.row_groups import read_footer
from tests.shared_spark import setting
from tests.soak import rest_in_soak
from tests.unit.spark.connectors.runs import following, rows_read

EVERY_TYPE = """
    id, cast(id as string) as text, timestamp_seconds(id) as at, timestamp_ntz '2026-11-21 01:02:03' as local,
    named_struct('a', id, 'b', array(id, null)) as nested, map('k', id) as pairs, cast(id as decimal(20, 2)) as money,
    date '1500-01-01' as day, if(id % 7 = 0, null, id * 0.5d) as half, cast(id % 3 as int) as part
"""


@pytest.fixture(scope="module")
def orders(spark, tmp_path_factory):
    """Three files of several row groups, in directories that hold a column."""
    path = tmp_path_factory.mktemp("sources") / "orders"
    rows = spark.sql(f"select {EVERY_TYPE} from range(0, 3000, 1, 1)")
    # The default since Spark 4.0.
    with setting(spark, "spark.sql.parquet.datetimeRebaseModeInWrite", "CORRECTED"):
        rows.write.option("parquet.block.size", "20000").partitionBy("part").parquet(str(path))
    return path


def in_order(rows):
    return sorted(rows, key=lambda row: row["id"])


SHORT = [{"files_per_increment": 1}, {"row_groups_per_increment": 1}]
LIMITS = [{"files_per_increment": 2}, {"bytes_per_increment": 15_000}, {"row_groups_per_increment": 1}, {}]


@pytest.mark.soak
@pytest.mark.parametrize("limit", rest_in_soak(LIMITS, LIMITS[2]), ids=["files", "bytes", "row groups", "automatic"])
def test_all_increments_together_are_what_spark_reads(spark, orders, limit):
    enumerator = ParquetSource(orders, **limit).open(spark)
    schemas = []

    def rows_of(frame):
        schemas.append(frame.schema)
        return frame.collect()

    rows = rows_read(enumerator, rows_of)
    expected = spark.read.parquet(str(orders))
    assert in_order(rows) == in_order(expected.collect())
    assert all(schema == expected.schema for schema in schemas)
    assert enumerator.finished_bytes == enumerator.total_bytes


@pytest.mark.parametrize("limit", rest_in_soak(SHORT, SHORT[1]), ids=["file", "parts"])
def test_a_footer_is_read_once(spark, orders, monkeypatch, limit):
    read = []

    def noted(uri, *arguments):
        read.append(uri)
        return read_footer(uri, *arguments)

    monkeypatch.setattr(row_groups, "read_footer", noted)
    rows_read(ParquetSource(orders, **limit).open(spark), lambda _: [])
    assert len(read) == len(set(read)) == 3


@pytest.mark.parametrize("limit", rest_in_soak(SHORT, SHORT[1]), ids=["file", "parts"])
def test_chosen_columns_come_in_their_order(spark, orders, limit):
    enumerator = ParquetSource(orders, columns=["part", "money"], **limit).open(spark)
    frame = enumerator.load(following(enumerator))
    assert frame.schema.simpleString() == "struct<part:int,money:decimal(20,2)>"
    assert "text" not in frame._jdf.queryExecution().executedPlan().toString()


@pytest.mark.soak
@pytest.mark.parametrize("limit", rest_in_soak(SHORT, SHORT[1]), ids=["file", "parts"])
def test_a_given_schema_decides_columns_and_types(spark, orders, limit):
    source = ParquetSource(orders, schema="part string, id bigint, missing double", **limit)
    enumerator = source.open(spark)
    frame = enumerator.load(following(enumerator))
    assert frame.schema.simpleString() == "struct<part:string,id:bigint,missing:double>"
    assert frame.distinct().where("part = '0' and missing is null").count() == frame.count() > 0


def test_a_column_that_is_not_there_is_refused(spark, orders):
    enumerator = ParquetSource(orders, columns=["no_such"]).open(spark)
    with pytest.raises(InvalidConfigurationError, match="no_such"):
        enumerator.load(following(enumerator))


def test_what_is_no_schema_is_refused(spark, orders):
    enumerator = ParquetSource(orders, schema="id big big").open(spark)
    with pytest.raises(InvalidConfigurationError, match="Expected schema"):
        enumerator.load(following(enumerator))


def test_a_schema_taken_from_files_stays_the_same_over_attempts_and_increments(spark, tmp_path):
    """The type of a column in names of directories depends on all of them."""
    for name in ("1", "2", "x"):
        (tmp_path / f"k={name}").mkdir()
        pq.write_table(pa.table({"id": [1]}), tmp_path / f"k={name}" / "a.parquet")
    source = ParquetSource(tmp_path, files_per_increment=1)
    enumerator = source.open(spark)
    first = following(enumerator)
    assert enumerator.load(first).schema.simpleString() == "struct<id:bigint,k:string>"
    enumerator.finish(first)
    for name in ("2", "x"):
        pq.write_table(pa.table({"id": [2]}), tmp_path / f"k={name}" / "a.parquet")
    again = ParquetSource(tmp_path, files_per_increment=1, on_change="ignore").open(spark, enumerator.snapshot())
    assert sorted(tuple(row) for row in rows_read(again)) == [(2, "2"), (2, "x")]


def test_names_of_files_are_no_patterns(spark, tmp_path):
    names = ["x[1]", "y{a,b}", "z*", "w?", "back\\slash", "sp ace%41", "k=a%2Fb"]
    for name in names:
        (tmp_path / "d=1%3A2").mkdir(exist_ok=True)
        pq.write_table(pa.table({"id": [name]}), tmp_path / "d=1%3A2" / f"{name}.parquet")
    rows = rows_read(ParquetSource(tmp_path, files_per_increment=1).open(spark))
    assert sorted(tuple(row) for row in rows) == sorted((name, "1:2") for name in names)


def test_several_places_are_one_source(spark, tmp_path):
    for place, name in (("old", "a"), ("new", "b")):
        (tmp_path / place / "k=1").mkdir(parents=True)
        pq.write_table(pa.table({"id": [name]}), tmp_path / place / "k=1" / "x.parquet")
    rows = rows_read(ParquetSource([tmp_path / "old", f"{tmp_path}/new/*"], bytes_per_increment=None).open(spark))
    assert sorted(tuple(row) for row in rows) == [("a", 1), ("b", 1)]


def test_an_increment_without_rows_is_fine(spark, tmp_path):
    pq.write_table(pa.table({"id": pa.array([], pa.int64())}), tmp_path / "empty.parquet")
    enumerator = ParquetSource(tmp_path).open(spark)
    assert rows_read(enumerator) == []
    assert enumerator.finished_splits == 1


def test_options_for_spark_leave_files_whole(spark, orders):
    source = ParquetSource(orders, row_groups_per_increment=1, options={"datetimeRebaseMode": "CORRECTED"})
    enumerator = source.open(spark)
    assert len(rows_read(enumerator)) == 3000
    assert enumerator.snapshot()["increments"] == 3


def test_json_files_have_the_columns_of_the_schema(spark, tmp_path):
    (tmp_path / "a.json").write_text('{"id": 1, "x": "no"}\n{"id": 2, "name": "b"}\n')
    (tmp_path / "b.json").write_text('{"id": 3}\n')
    rows = rows_read(JsonSource(tmp_path, schema="id bigint, name string", files_per_increment=1).open(spark))
    assert [tuple(row) for row in rows] == [(1, None), (2, "b"), (3, None)]


def test_csv_files_are_matched_by_their_header_before_columns_are_chosen(spark, tmp_path):
    (tmp_path / "day=2").mkdir()
    (tmp_path / "day=2" / "a.csv").write_text("Name,id,more\na,1,x\nb,2,y\n")
    source = CsvSource(
        tmp_path, schema="id bigint, name string, day int", columns=["day", "name"], options={"header": True}
    )
    assert [tuple(row) for row in rows_read(source.open(spark))] == [(2, "a"), (2, "b")]


@pytest.mark.parametrize("limit", rest_in_soak(SHORT, SHORT[1]), ids=["file", "parts"])
def test_partition_column_that_is_null_in_all_directories_is_null(spark, tmp_path, limit):
    spark.range(0, 3000, 1, 1).selectExpr("id", "cast(null as string) as k").write.option(
        "parquet.block.size", "5000"
    ).partitionBy("k").parquet(f"{tmp_path}/in")
    source = ParquetSource(tmp_path / "in", columns=["K", "ID"], **limit)
    rows = rows_read(source.open(spark))
    assert sorted((row["ID"], row["K"]) for row in rows) == [(number, None) for number in range(3000)]


def test_chosen_columns_are_found_in_any_case_in_csv_files(spark, tmp_path):
    (tmp_path / "a.csv").write_text("fee,id\n2,1\n")
    source = CsvSource(tmp_path, schema="id int, fee int", columns=["FEE", "Id"], options={"header": True})
    assert [row.asDict() for row in rows_read(source.open(spark))] == [{"FEE": 2, "Id": 1}]
