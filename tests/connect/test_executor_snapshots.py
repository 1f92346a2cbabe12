"""Snapshots on an object store of which the server's Hadoop knows nothing, over Spark Connect."""

from __future__ import annotations

import pytest

from airflow_provider_statecheck.spark.context import StageContext
from airflow_provider_statecheck.spark.snapshots.dataframes import HadoopFilesystems, StoredDataFrames, StoredSnapshot
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.snapshot_manifest import SnapshotWriter
from tests.object_store import SECRET


@pytest.fixture
def store(object_store):
    return object_store


@pytest.fixture
def storage(store):
    return CheckpointStorage.open(f"s3://{store.make_bucket()}/checkpoints", **store.storage_options)


def test_the_server_tells_which_filesystems_it_has(spark, tmp_path):
    filesystems = HadoopFilesystems()
    assert filesystems.spark_uri(spark, f"file://{tmp_path}/data") == f"file://{tmp_path}/data"
    assert [filesystems.spark_uri(spark, f"{s}://bucket/data") for s in ("s3", "s3a", "gs", "nosuch")] == [None] * 4


@pytest.mark.soak
def test_what_comes_back_equals_what_was_written(spark, storage):
    frames, uri = StoredDataFrames(storage), f"{storage.base_uri}/data"
    df = spark.range(0, 100, 1, 3).selectExpr("id `a.b`", "array(interval '2' month) m", "cast(id as string) s")
    manifest = frames.write(df, uri)
    restored = frames.read(spark, [StoredSnapshot(storage.base_uri, manifest)])
    assert (manifest.writer, manifest.rows, len(manifest.files)) == (SnapshotWriter.EXECUTORS, 100, 3)
    assert restored.dtypes == df.dtypes
    assert sorted(map(str, restored.selectExpr("`a.b`", "cast(m as string)", "s").collect())) == sorted(
        map(str, df.selectExpr("`a.b`", "cast(m as string)", "s").collect())
    )


@pytest.mark.soak
def test_a_second_try_restores_and_shows_no_secret(spark, storage, store, server, tmp_path, capsys):
    computed = []

    def numbers():
        computed.append("numbers")
        return spark.range(10)

    def stage(*, fails):
        with StageContext.open(
            spark,
            job="j",
            checkpoint_dir=storage.base_uri,
            metadata=f"sqlite:///{tmp_path}/state.db",
            storage_options=store.storage_options,
        ) as checkpoint:
            restored = checkpoint.snapshot("numbers", numbers)
            restored.explain(True)
            if fails:
                raise RuntimeError("planned")
            return sum(row.id for row in restored.collect())

    with pytest.raises(RuntimeError, match="planned"):
        stage(fails=True)
    assert stage(fails=False) == 45
    assert computed == ["numbers"]
    shown = capsys.readouterr().out + (server.folder / "server.log").read_text()
    assert storage.base_uri in shown
    assert SECRET not in shown
