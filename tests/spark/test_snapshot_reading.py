"""Snapshots of both writers as Arrow record batches: the values that Spark itself gives to Arrow."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql.types import MapType, StructField, StructType

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.columns import to_transfer_columns
from airflow_provider_statecheck.spark.snapshots.dataframes import HadoopFilesystems, StoredDataFrames
from airflow_provider_statecheck.spark.state_dataframes import read_snapshot as read_with_spark
from airflow_provider_statecheck.spark.versions import is_at_least
from airflow_provider_statecheck.state.reading.snapshot_reader import read_snapshot
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotWriter
from tests.shared_spark import needs_spark, require_spark_of, setting, to_arrow
from tests.soak import every_nth
from tests.spark.test_dataframe_snapshots import TYPES, as_text
from tests.written_snapshots import SnapshotJob, flip

# Spark gives Arrow neither maps without types, nor structs with equal names inside maps.
QUERIES = {
    **TYPES,
    "nested": TYPES["nested"].replace(" map() n,", ""),
    "equal-nested-names": TYPES["equal-nested-names"].partition(", map(")[0],
}
SHREDDED = (SnapshotWriter.SPARK, "variant")


@pytest.fixture(params=list(SnapshotWriter))
def writer(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> SnapshotWriter:
    if request.param is SnapshotWriter.EXECUTORS:
        monkeypatch.setattr(HadoopFilesystems, "spark_uri", lambda *_: None)
    return SnapshotWriter(request.param)


@pytest.fixture
def job(storage: Any) -> SnapshotJob:
    return SnapshotJob(storage)


def saved(job: SnapshotJob, df: Any, writer: SnapshotWriter) -> str:
    uri = job.new_uri("step")
    if writer is SnapshotWriter.EXECUTORS:
        Path(f"{uri}/data".removeprefix("file://")).mkdir(parents=True)
    manifest = StoredDataFrames(job.storage).write(df, f"{uri}/data")
    assert manifest.writer is writer
    return job.take(job.add(uri, "step", (), manifest))


def given_to_arrow(df: Any) -> pa.Table:
    """Return what Spark gives to Arrow, with intervals of months as numbers."""
    has_map = any(isinstance(field.dataType, MapType) for field in df.schema.fields)
    return to_arrow(df) if has_map else to_arrow(to_transfer_columns(df))


def texts_of(table: pa.Table) -> list[tuple[str, ...]]:
    values = ([text_of(column.slice(i, 1)) for i in range(len(column))] for column in table.columns)
    return sorted(zip(*values, strict=True))


def text_of(value: pa.ChunkedArray) -> str:
    # Structs with equal names are no dictionaries in Python, but have a text in Arrow, here without the names of
    # fields.
    return re.sub(r"type: .*", "", value.combine_chunks().to_string())


@pytest.mark.parametrize("name", every_nth(QUERIES, 6))
def test_both_forms_have_the_rows_of_the_dataframe(spark, job, writer, name):
    if (writer, name) == SHREDDED:
        pytest.skip("only Spark reads the shredded variants of its own writer")
    require_spark_of(QUERIES[name])
    df = spark.sql(QUERIES[name])
    if (
        writer is SnapshotWriter.SPARK
        and not is_at_least(spark, "4.2")
        and any("void" in kind for _, kind in df.dtypes)
    ):
        pytest.skip("Spark stores void since version 4.2")
    pointer = saved(job, df, writer)
    with_spark = read_with_spark(spark, pointer, "step")
    assert as_text(with_spark) == as_text(df)
    table = read_snapshot(pointer, "step").read_all()
    assert table.schema.names == df.columns
    assert texts_of(table) == texts_of(given_to_arrow(with_spark))


def test_types_are_those_that_spark_gives_to_arrow(spark, job, writer):
    names = ("numbers", "decimals", "text-and-bytes", "old-and-late-times", "no-rows")
    selects = [f"(select * from ({QUERIES[name]}))" for name in names[:-1]]
    df = spark.sql(f"select * from {' cross join '.join(selects)}")
    df = df.toDF(*(f"c{i}" for i in range(len(df.columns))))
    with setting(spark, "spark.sql.session.timeZone", "UTC"):
        assert read_snapshot(saved(job, df, writer), "step").schema.types == to_arrow(df).schema.types


@needs_spark("4.1", "the type time")
def test_time_of_day_is_read(spark, job, writer):
    with setting(spark, "spark.sql.timeType.enabled", "true"):
        pointer = saved(job, spark.sql("select time'12:34:56.123456' t"), writer)
        (row,) = read_snapshot(pointer, "step").read_all().to_pylist()
        assert row["t"].isoformat() == "12:34:56.123456"


@needs_spark("4.2", "void in a part of a stored column")
def test_shredded_variants_and_untyped_maps_need_spark(spark, job):
    df = spark.sql("""select 1 a, parse_json('{"a":1}') v, map() m""")
    pointer = saved(job, df, SnapshotWriter.SPARK)
    for column in ("v", "m"):
        with pytest.raises(UnsupportedStateError, match=f"'{column}'"):
            read_snapshot(pointer, "step", columns=[column]).read_all()
    assert read_snapshot(pointer, "step", columns=["a"]).read_all().to_pylist() == [{"a": 1}]
    assert as_text(read_with_spark(spark, pointer, "step")) == as_text(df)


def test_vectors_have_the_type_that_they_are_stored_as(spark, job):
    from pyspark.ml.linalg import Vectors, VectorUDT

    df = spark.createDataFrame([(Vectors.dense([1.0, 2.0]),)], StructType([StructField("v", VectorUDT())]))
    pointer = saved(job, df, SnapshotWriter.SPARK)
    (row,) = read_snapshot(pointer, "step").read_all().to_pylist()
    assert row["v"] == {"type": 1, "size": None, "indices": None, "values": [1.0, 2.0]}


def test_changed_byte_is_an_error_in_both_forms(spark, job, writer):
    pointer = saved(job, spark.range(0, 10_000, 1, 1), writer)
    (path,) = Path(job.storage.base_uri.removeprefix("file://")).rglob("*.parquet")
    flip(path, path.stat().st_size // 2)
    with pytest.raises(CorruptStateError, match="A page of"):
        read_snapshot(pointer, "step").read_all()
    with pytest.raises(Exception, match=r"CRC|[Cc]hecksum"):
        read_with_spark(spark, pointer, "step").agg({"id": "sum"}).collect()
