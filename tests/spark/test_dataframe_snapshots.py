from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.columns import readable_type
from airflow_provider_statecheck.spark.snapshots.dataframes import (
    HadoopFilesystems,
    StoredDataFrames,
    StoredSnapshot,
    read_dataframe,
    write_dataframe,
)
from airflow_provider_statecheck.spark.versions import is_at_least
from airflow_provider_statecheck.storage.snapshot_manifest import build_manifest
from tests.shared_spark import needs_spark, require_spark_of, setting
from tests.soak import every_nth, rest_in_soak

# Each is compared by value, and where Python cannot hold the values, by their text in Spark.
TYPES = {
    "numbers": "select 1Y a, 2S b, 3 c, 4L d, cast(1.5 as float) e, 2.5D f, true g",
    "special-doubles": "select cast('nan' as double) n, cast('-0.0' as double) z, cast('inf' as float) i",
    "decimals": "select 1.23BD a, cast(-12345678901234567890.123456789 as decimal(38,9)) b, cast(5 as decimal(18,0)) c",
    "text-and-bytes": "select '' a, 'ä\\u0000b' b, X'00ff' c, cast('' as binary) d, cast(null as string) e",
    "char-and-varchar": "select cast('ab' as char(5)) c, cast('ab' as varchar(5)) v",
    "old-and-late-times": "select timestamp'0001-01-01 00:00:00.123456' a, timestamp_ntz'0001-01-01 01:02:03.123456' b,"
    " date'0001-01-01' c, timestamp'9999-12-31 23:59:59.999999' d, date'1582-10-10' e, date'-0044-03-15' f",
    "intervals": "select interval '1 02:03:04.000005' day to second a, interval '3' day b, interval '2-3' year to "
    "month c",
    "nested-intervals": "select array(interval '1' day) a, named_struct('m', interval '2' month) s",
    "nested": "select map('a', named_struct('x', 1, 'y', array(2))) m, array(named_struct('a', 1, 'b', 'c')) r,"
    " map() n, array() o, array(cast(null as int)) p",
    "void": "select null v, 1 a",
    "only-void": "select null v",
    "nested-void": "select named_struct('a', null, 'b', 1) s, array(null) r, map('a', null) m",
    "variant": """select parse_json('{"a":1,"b":[1,"x",2.5]}') v, array(parse_json('{"a":1}')) r""",
    "collations": "select 'a' collate UNICODE_CI a, array('b' collate UTF8_LCASE) b",
    "odd-names": "select 1 `a.b`, 2 `a b`, 3 `x``y`, 4 `a,;{}()=`, 5 `_c0`, 6 ``, 7 `naïve`",
    "equal-names": "select 1 a, 2 a, 3 A",
    "odd-nested-names": "select named_struct('a.b', 1, 'c d', 2, 'e`f', 3, 'g,;{}()=', 4, '', 5) s",
    "equal-nested-names": "select named_struct('a', 1, 'A', named_struct('b', 2, 'b', 3)) s,"
    " array(named_struct('a', 1, 'a', 2)) r, map(named_struct('k', 1, 'k', 2), named_struct('v', 3, 'V', null)) m",
    "no-rows": "select id, named_struct('a', id, 'A', id) s from range(5) where id > 10",
}


def round_trip(spark, df, uri):
    write_dataframe(df, uri)
    return read_dataframe(spark, [uri], df.schema.json())


def as_text(df):
    numbered = df.toDF(*(f"c{i}" for i in range(len(df.columns))))
    return sorted(map(str, numbered.select([F.col(c).cast("string") for c in numbered.columns]).collect()))


@pytest.mark.parametrize("query", every_nth(TYPES.values(), 4), ids=TYPES.keys())
def test_types_and_names_survive(spark, tmp_path, query):
    require_spark_of(query)
    df, uri = spark.sql(query), f"file://{tmp_path}/data"
    if not is_at_least(spark, "4.2") and any("void" in kind for _, kind in df.dtypes):
        with pytest.raises(UnsupportedStateError, match=r"before Spark 4\.2, found .*void.* in column '"):
            write_dataframe(df, uri)
        assert not Path(tmp_path, "data").exists()
        return
    restored = round_trip(spark, df, uri)
    assert restored.schema == readable_type(df.schema)
    assert restored.columns == df.columns
    assert as_text(restored) == as_text(df)


@needs_spark("4.1", "the type time")
def test_time_of_day_survives_where_spark_has_it(spark, tmp_path):
    with setting(spark, "spark.sql.timeType.enabled", "true"):
        df = spark.sql("select time'12:34:56.123456' t")
        assert as_text(round_trip(spark, df, f"file://{tmp_path}/data")) == as_text(df)


def test_a_spark_class_of_vectors_survives(spark, tmp_path):
    from pyspark.ml.linalg import Vectors, VectorUDT

    rows = [(Vectors.dense([1.0, 2.0]),), (Vectors.sparse(3, [1], [4.0]),)]
    df = spark.createDataFrame(rows, StructType([StructField("v", VectorUDT())]))
    restored = round_trip(spark, df, f"file://{tmp_path}/data")
    assert restored.schema == df.schema
    assert sorted(map(str, restored.collect())) == sorted(map(str, df.collect()))


def test_metadata_of_columns_survives_at_every_depth(spark, tmp_path):
    inner = StructType([StructField("x", IntegerType(), True, {"unit": "m"})])
    schema = StructType(
        [
            StructField("a", IntegerType(), True, {"comment": "first", "parquet.field.id": 7}),
            StructField("s", inner, True, {"nested": {"deep": [1, 2]}}),
        ]
    )
    df = spark.createDataFrame([(1, (2,))], schema)
    assert round_trip(spark, df, f"file://{tmp_path}/data").schema == df.schema


def test_duplicate_rows_and_their_number_survive(spark, tmp_path):
    df = spark.range(1000).selectExpr("id % 3 as k", "cast(id % 2 as string) as s")
    restored = round_trip(spark, df, f"file://{tmp_path}/data")
    assert sorted(restored.collect()) == sorted(df.collect())


def test_values_that_look_like_partitions_keep_their_type(spark, tmp_path):
    """A directory named like a partition above the snapshot must not become a column."""
    df = spark.createDataFrame([("001",), ("",), (None,)], "s string")
    restored = round_trip(spark, df, f"file://{tmp_path}/s=7/day=2026-01-01/data")
    assert sorted(map(str, restored.collect())) == sorted(map(str, df.collect()))


def test_times_are_instants_in_any_session_time_zone(spark, tmp_path):
    df = spark.createDataFrame([(datetime(2026, 3, 29, 1, 30, tzinfo=UTC),)], "t timestamp")
    restored = round_trip(spark, df, f"file://{tmp_path}/data")
    seconds = restored.select(F.unix_micros("t"))
    with setting(spark, "spark.sql.session.timeZone", "Asia/Kathmandu"):
        assert seconds.first()[0] == df.select(F.unix_micros("t")).first()[0]


def test_the_restored_plan_starts_at_the_snapshot(spark, tmp_path):
    df = spark.range(10).groupBy((F.col("id") % 2).alias("k")).count()
    plan = round_trip(spark, df, f"file://{tmp_path}/data")._jdf.queryExecution().optimizedPlan().toString()
    assert "Aggregate" not in plan
    assert "parquet" in plan


def test_a_session_that_reads_past_damage_does_not_do_so_here(spark, tmp_path):
    df = spark.range(100).repartition(2)
    restored = round_trip(spark, df, f"file://{tmp_path}/data")
    with setting(spark, "spark.sql.files.ignoreMissingFiles", "true"):
        next(Path(tmp_path, "data").glob("*.parquet")).unlink()
        with pytest.raises(Exception, match=r"FAILED_READ_FILE|does not exist"):
            restored.collect()


def test_a_place_that_exists_is_not_overwritten(spark, tmp_path):
    uri = f"file://{tmp_path}/data"
    write_dataframe(spark.range(1), uri)
    with pytest.raises(AnalysisException):
        write_dataframe(spark.range(2), uri)
    assert read_dataframe(spark, [uri], spark.range(1).schema.json()).count() == 1


REFUSED = {
    "no-columns": ("select 1 a", "found none; add a column"),
    "calendar-interval": ("select make_interval(1,2,3,4,5,6,7.8) c", "day-time or a year-month"),
    "nested-calendar-interval": ("select map('a', array(make_interval(1))) c", "column 'c'|c MAP<"),
    "empty-struct": ("select named_struct() s", "add a field to the struct"),
}


@pytest.mark.parametrize(("query", "text"), REFUSED.values(), ids=REFUSED.keys())
def test_what_cannot_be_restored_equal_is_refused_before_anything_is_written(spark, tmp_path, query, text):
    require_spark_of(query)
    df = spark.sql(query)
    with pytest.raises(UnsupportedStateError, match=text):
        write_dataframe(df.drop("a") if text == "found none; add a column" else df, f"file://{tmp_path}/data")
    assert not Path(tmp_path, "data").exists()


def test_a_stream_is_refused(spark, tmp_path):
    with pytest.raises(UnsupportedStateError, match="streaming"):
        write_dataframe(spark.readStream.format("rate").load(), f"file://{tmp_path}/data")


def test_a_user_class_is_refused(spark, tmp_path):
    from pyspark.sql.types import UserDefinedType

    class PointUDT(UserDefinedType):
        @classmethod
        def sqlType(cls):
            return ArrayType(LongType(), False)

        @classmethod
        def module(cls):
            return "somewhere"

        def serialize(self, obj):
            return [1]

    df = spark.createDataFrame([([1],)], "p array<bigint>")
    typed = df.select(df["p"].alias("p"))
    typed._schema = StructType([StructField("p", PointUDT())])
    typed.__dict__["schema"] = typed._schema
    with pytest.raises(UnsupportedStateError, match="user classes"):
        write_dataframe(typed, f"file://{tmp_path}/data")


def test_a_setting_that_would_cut_off_microseconds_is_refused(spark, tmp_path):
    with setting(spark, "spark.sql.parquet.outputTimestampType", "TIMESTAMP_MILLIS"):
        with pytest.raises(UnsupportedStateError, match="microseconds"):
            write_dataframe(spark.sql("select array(current_timestamp()) t"), f"file://{tmp_path}/data")
        write_dataframe(spark.range(1), f"file://{tmp_path}/other")


DAYS = (
    "date'1582-10-10' d, timestamp'1582-10-10 01:02:03' t, timestamp_ntz'1582-10-10 01:02:03' n, "
    "array(struct(date'0900-03-01' d)) a"
)


@pytest.mark.parametrize("mode", ["LEGACY", "EXCEPTION"])
@pytest.mark.parametrize("kind", rest_in_soak(["TIMESTAMP_MICROS", "INT96"], "INT96"))
def test_days_before_the_gregorian_calendar_are_kept_in_all_settings_of_a_session(spark, storage, tmp_path, mode, kind):
    names = [f"spark.sql.parquet.{each}RebaseModeInWrite" for each in ("datetime", "int96")]
    uri = f"file://{tmp_path}/data"
    shown = [f"cast({name} as string)" for name in "dtna"]
    with (
        setting(spark, names[0], mode),
        setting(spark, names[1], mode),
        setting(spark, "spark.sql.parquet.outputTimestampType", kind),
    ):
        df = spark.sql(f"select {DAYS}")
        manifest = StoredDataFrames(storage).write(df, uri)
        assert [spark.conf.get(name) for name in names] == [mode, mode]
        found = read_dataframe(spark, [uri], manifest.schema_json)
        assert found.selectExpr(shown).collect() == df.selectExpr(shown).collect()


@pytest.mark.parametrize("uri", ["gs://bucket/data", "s3://b/data", "s3a://b/data"])
def test_a_place_that_spark_cannot_reach_is_left_to_the_executors(spark, uri):
    assert HadoopFilesystems().spark_uri(spark, uri) is None


def test_a_place_that_spark_reaches_is_left_to_it(spark, tmp_path):
    assert HadoopFilesystems().spark_uri(spark, f"file://{tmp_path}/data") == f"file://{tmp_path}/data"


def test_what_spark_wrote_is_told_where_spark_lacks_the_filesystem_now(spark, storage, tmp_path):
    manifest = StoredDataFrames(storage).write(spark.range(1), f"file://{tmp_path}/data")
    with pytest.raises(UnsupportedStateError, match="add the connector that wrote it"):
        StoredDataFrames(storage.allowing("s3://bucket")).read(spark, [StoredSnapshot("s3://bucket", manifest)])


class TestManifest:
    @pytest.fixture
    def written(self, spark, storage, tmp_path):
        df = spark.range(100).selectExpr("id", "named_struct('a', id, 'A', cast(null as int)) s").repartition(3)
        uri = f"file://{tmp_path}/data"
        write_dataframe(df, uri)
        return uri, build_manifest(storage, uri, df.schema.json())

    def test_it_counts_rows_and_names_only_data_files(self, written, tmp_path):
        _, manifest = written
        assert manifest.rows == 100
        assert [file.name for file in manifest.files] == sorted(
            p.name for p in Path(tmp_path, "data").glob("*.parquet")
        )
        assert manifest.size_bytes == sum(p.stat().st_size for p in Path(tmp_path, "data").glob("*.parquet"))

    def test_another_write_of_the_same_rows_has_another_fingerprint(self, written, spark, storage, tmp_path):
        """A digest of the files cannot tell equal rows from rows that merely look alike, so a write is its identity."""
        _, manifest = written
        other = f"file://{tmp_path}/other"
        write_dataframe(spark.range(100), other)
        assert build_manifest(storage, other, manifest.schema_json).fingerprint() != manifest.fingerprint()


def test_readable_type_is_the_original_but_nullable():
    original = StructType(
        [StructField("m", MapType(StringType(), ArrayType(TimestampType(), False), False), False, {"k": 1})]
    )
    readable: Any = readable_type(original)
    (field,) = readable.fields
    assert field.nullable
    assert field.metadata == {"k": 1}
    assert field.dataType == MapType(StringType(), ArrayType(TimestampType(), True), True)
