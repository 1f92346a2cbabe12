"""Snapshots on an object store of which Spark's Hadoop knows nothing, written and read by Python on the executors."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from pyspark.sql import functions as F
from pyspark.sql.types import StructField, StructType

from airflow_provider_statecheck.exceptions import CorruptStateError, EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark import plan_digest
from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.fingerprint import step_fingerprint
from airflow_provider_statecheck.spark.snapshots import dataframes
from airflow_provider_statecheck.spark.snapshots.columns import file_schema, readable_type
from airflow_provider_statecheck.spark.snapshots.dataframes import StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotWriter, build_manifest, verify_files
from tests.object_store import SECRET
from tests.shared_spark import needs_spark, setting
from tests.soak import every_nth
from tests.spark.test_dataframe_snapshots import TYPES, as_text

# A map without types is the only one that only Spark's own writer takes.
CROSSING = {**TYPES, "nested": TYPES["nested"].replace(" map() n,", "")}


@pytest.fixture
def store(object_store):
    return object_store


@pytest.fixture
def options(store):
    return store.storage_options


@pytest.fixture
def storage(store, options):
    return CheckpointStorage.open(f"s3://{store.make_bucket()}/checkpoints", **options)


@pytest.fixture
def frames(storage):
    return StoredDataFrames(storage)


def uri_of(storage, name="step"):
    return f"{storage.base_uri}/{name}/data"


def read(spark, frames, uri, manifest):
    return frames.read(spark, [StoredSnapshot(uri.removesuffix("/data"), manifest)])


def round_trip(spark, frames, df, uri):
    return read(spark, frames, uri, frames.write(df, uri))


@pytest.mark.parametrize("query", every_nth(CROSSING.values(), 10), ids=CROSSING.keys())
def test_types_and_names_survive(spark, storage, frames, query):
    df = spark.sql(query)
    restored = round_trip(spark, frames, df, uri_of(storage))
    assert restored.schema == readable_type(df.schema)
    assert restored.columns == df.columns
    assert as_text(restored) == as_text(df)


@pytest.mark.soak
@pytest.mark.parametrize("query", every_nth(CROSSING.values(), 10), ids=CROSSING.keys())
def test_files_are_ordinary_parquet_to_spark_and_pyarrow(spark, storage, frames, tmp_path, query):
    df = spark.sql(query)
    manifest = frames.write(df, uri_of(storage))
    for file in manifest.files:
        content = storage.read_bytes(f"{uri_of(storage)}/{file.name}")
        assert pq.read_table(io.BytesIO(content)).num_rows > 0
        Path(tmp_path, file.name).write_bytes(content)
    schema = file_schema(df.schema)
    plain = spark.read.schema(schema).parquet(f"file://{tmp_path}")
    stored = df.toDF(*schema.names).select([F.col(f.name).cast(f.dataType) for f in schema.fields])
    assert as_text(plain) == as_text(stored)


@needs_spark("4.1", "the type time")
def test_time_of_day_survives_where_spark_has_it(spark, storage, frames):
    with setting(spark, "spark.sql.timeType.enabled", "true"):
        df = spark.sql("select time'12:34:56.123456' t, array(named_struct('t', time'00:00:00.000001')) n")
        assert as_text(round_trip(spark, frames, df, uri_of(storage))) == as_text(df)


def test_a_class_that_spark_does_not_take_back_is_refused(spark, storage, frames):
    from pyspark.ml.linalg import Vectors, VectorUDT

    df = spark.createDataFrame([(Vectors.dense([1.0]),)], StructType([StructField("v", VectorUDT())]))
    with pytest.raises(UnsupportedStateError, match="convert it to an array"):
        frames.write(df, uri_of(storage))


@pytest.mark.soak
def test_many_partitions_and_empty_ones_give_the_rows_that_were_there(spark, storage, frames):
    df = spark.range(0, 1000, 1, 60).where("id < 500").selectExpr("id % 7 k", "cast(id as string) s")
    manifest = frames.write(df, uri_of(storage))
    assert (manifest.rows, len(manifest.files)) == (500, 30)
    assert manifest.writer is SnapshotWriter.EXECUTORS
    assert sorted(read(spark, frames, uri_of(storage), manifest).collect()) == sorted(df.collect())


def test_an_empty_dataframe_has_no_files_and_keeps_its_schema(spark, storage, frames):
    df = spark.range(5).where("id > 10").selectExpr("id", "named_struct('a', id) s")
    manifest = frames.write(df, uri_of(storage))
    restored = read(spark, frames, uri_of(storage), manifest)
    assert (manifest.files, manifest.rows, storage.list_files(uri_of(storage))) == ((), 0, {})
    assert restored.schema == readable_type(df.schema)
    assert restored.collect() == []


def test_the_manifest_is_what_reading_every_footer_would_give(spark, storage, frames):
    manifest = frames.write(spark.range(0, 100, 1, 3), uri_of(storage))
    found = build_manifest(storage, uri_of(storage), manifest.schema_json)
    assert (found.files, found.rows) == (manifest.files, manifest.rows)


def test_the_restored_plan_starts_at_the_snapshot(spark, storage, frames):
    df = spark.range(10).groupBy((F.col("id") % 2).alias("k")).count()
    plan = round_trip(spark, frames, df, uri_of(storage))._jdf.queryExecution().optimizedPlan().toString()
    assert "Aggregate" not in plan
    assert uri_of(storage) in plan


def test_options_are_in_no_plan(spark, storage, frames, capsys):
    df = round_trip(spark, frames, spark.range(10), uri_of(storage))
    df.explain(True)
    df.explain("formatted")
    shown = capsys.readouterr().out + df._jdf.queryExecution().toString()
    assert uri_of(storage) in shown
    assert SECRET not in shown


def test_a_task_that_fails_leaves_only_whole_files(spark, storage, frames):
    df = spark.range(0, 4000, 1, 4).selectExpr("id", "if(id = 3500, raise_error('broken row'), 1) x")
    with pytest.raises(Exception, match="broken row"):
        frames.write(df, uri_of(storage))
    for name in storage.list_files(uri_of(storage)):
        assert pq.read_table(io.BytesIO(storage.read_bytes(f"{uri_of(storage)}/{name}"))).num_rows == 1000


def test_an_executor_without_the_package_of_the_store_is_told_in_one_line(spark, storage, frames, monkeypatch):
    monkeypatch.setattr(type(storage), "options", {"endpoint_url": _Unpicklable()}, raising=False)
    with pytest.raises(EnvironmentNotReadyError, match=r"airflow-provider-statecheck\[s3\]"):
        frames.write(spark.range(1), uri_of(storage))


class _Unpicklable:
    """Fails on an executor as an import does there."""

    def __reduce__(self):
        return exec, ("raise ModuleNotFoundError(\"No module named 's3fs'\")",)


class TestDamage:
    @pytest.fixture
    def written(self, spark, storage, frames):
        manifest = frames.write(spark.range(0, 100, 1, 2), uri_of(storage))
        return manifest, f"{uri_of(storage)}/{manifest.files[0].name}"

    @pytest.mark.soak
    def test_files_of_repeated_tasks_are_neither_damage_nor_read(self, spark, storage, frames, written):
        manifest, _ = written
        storage.write_bytes(f"{uri_of(storage)}/part-00000-99-0-loser.parquet", b"half a file")
        verify_files(storage, uri_of(storage), manifest)
        assert read(spark, frames, uri_of(storage), manifest).count() == 100

    def test_a_missing_file_is_found_before_and_while_reading(self, spark, storage, frames, written, options):
        import fsspec

        manifest, uri = written
        fsspec.filesystem("s3", **options).rm(uri)
        with pytest.raises(CorruptStateError, match="is missing"):
            verify_files(storage, uri_of(storage), manifest)
        with pytest.raises(Exception, match=r"CorruptStateError.*found none"):
            read(spark, frames, uri_of(storage), manifest).count()


class TestFingerprints:
    @pytest.fixture
    def fingerprint(self, spark, frames, storage):
        def of(df, known):
            return step_fingerprint(df, version=None, snapshots=known)

        return of

    @pytest.mark.soak
    def test_a_snapshot_counts_by_its_fingerprint_and_not_by_its_files(self, spark, frames, storage, fingerprint):
        """Another try writes other files, in another number of tasks, at another place."""
        one = round_trip(spark, frames, spark.range(100).repartition(2), uri_of(storage, "one"))
        two = round_trip(spark, frames, spark.range(100).repartition(7), uri_of(storage, "two"))
        known = {uri_of(storage, "one"): "f" * 64, uri_of(storage, "two"): "f" * 64}
        assert fingerprint(one.where("id > 3"), known) == fingerprint(two.where("id > 3"), known)

    def test_another_snapshot_is_another_step(self, spark, frames, storage, fingerprint):
        one = round_trip(spark, frames, spark.range(100), uri_of(storage, "one"))
        two = round_trip(spark, frames, spark.range(100), uri_of(storage, "two"))
        known = {uri_of(storage, "one"): "f" * 64, uri_of(storage, "two"): "e" * 64}
        assert fingerprint(one, known) != fingerprint(two, known)

    def test_how_many_tasks_read_it_does_not_count(self, spark, frames, storage, fingerprint, monkeypatch):
        from airflow_provider_statecheck.spark.snapshots import executor_io

        manifest = frames.write(spark.range(0, 1000, 1, 8), uri_of(storage))
        known = {uri_of(storage): "f" * 64}
        whole = read(spark, frames, uri_of(storage), manifest)
        monkeypatch.setattr(executor_io, "MIN_TASK_BYTES", 1)
        shared = read(spark, frames, uri_of(storage), manifest)
        assert (whole.rdd.getNumPartitions(), shared.rdd.getNumPartitions()) == (2, 8)
        assert fingerprint(whole, known) == fingerprint(shared, known)

    def test_how_this_package_reads_does_not_count(self, spark, frames, storage, fingerprint, monkeypatch):
        """Another release reads the same snapshots, by other code."""
        manifest = frames.write(spark.range(10), uri_of(storage))
        before = fingerprint(read(spark, frames, uri_of(storage), manifest), {})
        monkeypatch.setattr(dataframes, "read_snapshot", read_otherwise)
        monkeypatch.setattr(plan_digest, "read_snapshot", read_otherwise)
        assert fingerprint(read(spark, frames, uri_of(storage), manifest), {}) == before

    def test_a_function_that_travels_as_a_broadcast_is_no_reason_to_fail(self, spark, fingerprint):
        """Spark sends what has more than a MiB of data behind it in another way."""
        data = os.urandom(2 * 1024 * 1024)

        def function(number):
            return len(data) + number

        first, second = (fingerprint(spark.range(3).select(F.udf(function, "int")("id")), {}) for _ in range(2))
        assert first == second


def read_otherwise(reader, batches):
    yield from reader.read(iter(list(batches)))


class Stage:
    """Two steps, whose end fails where it is told to."""

    def __init__(self, spark, base_uri, metadata, options):
        self._open = {"job": "job", "checkpoint_dir": base_uri, "metadata": metadata, "storage_options": options}
        self._spark = spark
        self.computed: list[str] = []

    def run(self, *, fails: bool) -> int:
        self.computed.clear()
        with StageContext.open(self._spark, **self._open) as checkpoint:
            one = checkpoint.snapshot("one", lambda: self._build("one", self._spark.range(100)))
            two = checkpoint.snapshot("two", lambda: self._build("two", one.selectExpr("id * 2 id")))
            if fails:
                raise RuntimeError("the end is broken")
            return sum(row.id for row in two.collect())

    def _build(self, name, frame):
        self.computed.append(name)
        return frame


class TestStages:
    @pytest.fixture
    def stage(self, spark, storage, options, tmp_path):
        return Stage(spark, storage.base_uri, f"sqlite:///{tmp_path}/rows.db", options)

    def test_a_second_try_restores_and_computes_nothing_twice(self, stage):
        with pytest.raises(RuntimeError, match="the end is broken"):
            stage.run(fails=True)
        assert stage.computed == ["one", "two"]
        assert stage.run(fails=False) == 9900
        assert stage.computed == []

    @pytest.mark.soak
    def test_a_changed_page_is_told_and_computed_anew(self, stage, storage, options):
        import fsspec

        with pytest.raises(RuntimeError, match="the end is broken"):
            stage.run(fails=True)
        filesystem = fsspec.filesystem("s3", **options)
        path = max(f for f in filesystem.find(storage.base_uri) if f.endswith(".parquet") and "/two-" in f)
        content = bytearray(filesystem.cat_file(path))
        chunk = pq.read_metadata(io.BytesIO(content)).row_group(0).column(0)
        content[chunk.dictionary_page_offset + chunk.total_compressed_size - 1] ^= 1
        filesystem.pipe_file(path, bytes(content))
        with pytest.raises(Exception, match="CRC checksum verification failed"):
            stage.run(fails=False)
        assert stage.computed == []
        assert stage.run(fails=False) == 9900
        assert stage.computed == ["two"]


RETRIED = """
import json, os
from pyspark import TaskContext
from pyspark.sql import SparkSession
from airflow_provider_statecheck.spark.snapshots import dataframes
from airflow_provider_statecheck.spark.snapshots.executor_io import ExecutorFiles
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage

class Losing(ExecutorFiles):
    def publish(self, local, name):
        super(Losing, self).publish(local, name)
        task = TaskContext.get()
        if task.partitionId() == 1 and task.attemptNumber() == 0:
            raise RuntimeError("lost after it wrote")

dataframes.ExecutorFiles = Losing
conf = json.loads(os.environ["SPARK_CONF"]) | {
    "spark.master": "local[2,3]",
    "spark.eventLog.enabled": "true",
    "spark.eventLog.dir": "file://" + os.environ["EVENTS"],
    "spark.eventLog.compress": "false",
}
spark = SparkSession.builder.config(map=conf).getOrCreate()
storage = CheckpointStorage.open(os.environ["BASE"], **json.loads(os.environ["OPTIONS"]))
frames = dataframes.StoredDataFrames(storage)
uri = storage.base_uri + "/data"
manifest = frames.write(spark.range(0, 90, 1, 3), uri)
rows = sorted(row.id for row in frames.read(spark, [dataframes.StoredSnapshot(storage.base_uri, manifest)]).collect())
spark.stop()
print(json.dumps({"rows": rows, "named": len(manifest.files), "found": len(storage.list_files(uri))}))
"""


@pytest.mark.soak
def test_a_repeated_task_leaves_a_file_that_is_not_read_and_events_hold_no_secret(
    run_child, storage, options, tmp_path
):
    events = tmp_path / "events"
    events.mkdir()
    done = run_child(RETRIED, BASE=storage.base_uri, OPTIONS=json.dumps(options), EVENTS=str(events))
    assert done == {"rows": list(range(90)), "named": 3, "found": 4}
    logged = "".join(path.read_text() for path in events.rglob("*") if path.is_file())
    assert storage.base_uri in logged
    assert SECRET not in logged
