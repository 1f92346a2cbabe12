"""
Write DataFrames to checkpoint storage and read them back, whoever of Spark and Python reaches it.

Spark's own writer is the faster one and is taken where Spark's Hadoop has the filesystem. Elsewhere Python writes on the
executors, through the same fsspec that the rest of a checkpoint goes through. Who wrote a snapshot reads it too.
"""

from __future__ import annotations

import functools
import uuid
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.arrow_columns import (
    arrow_schema,
    crossing_schema,
    from_crossing,
    stored_schema,
    to_crossing,
)
from airflow_provider_statecheck.spark.snapshots.dataframes import (
    read_dataframe,
    refuse_unwritable,
    schema_json_of,
    write_dataframe,
)
from airflow_provider_statecheck.spark.snapshots.executor_failures import explained
from airflow_provider_statecheck.spark.snapshots.executor_files import ExecutorFiles, HiddenOptions
from airflow_provider_statecheck.spark.snapshots.executor_reader import (
    SnapshotReader,
    pack_tasks,
    plan_tasks,
    read_snapshot,
)
from airflow_provider_statecheck.spark.snapshots.executor_writer import HANDLES, PartitionWriter, write_partition
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
from airflow_provider_statecheck.spark.snapshots.manifest import (
    SnapshotFile,
    SnapshotManifest,
    SnapshotWriter,
    build_manifest,
)
from airflow_provider_statecheck.spark.snapshots.schema import parse_schema
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import open_filesystem, serves
from airflow_provider_statecheck.storage.uris import redact

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class StoredDataFrames:
    """
    The DataFrames in a checkpoint storage.

    :param storage: Where their bytes are; its options travel to the executors inside pickled functions only.
    """

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._filesystems = HadoopFilesystems()

    def write(self, df: DataFrame, data_uri: str) -> SnapshotManifest:
        """
        Compute a DataFrame and write it below a directory that does not exist yet.

        :raises UnsupportedStateError: for a DataFrame that could not be restored equal.
        :raises EnvironmentNotReadyError: if the executors lack a package.
        """
        spark_uri = self._filesystems.spark_uri(df.sparkSession, data_uri)
        if spark_uri is None:
            return self._write_on_executors(df, data_uri)
        write_dataframe(df, spark_uri)
        return build_manifest(self._storage, data_uri, schema_json_of(df))

    def read(self, spark: SparkSession, data_uri: str, manifest: SnapshotManifest) -> DataFrame:
        """
        Return a DataFrame that was written; its plan starts at the files.

        :raises CorruptStateError: if its schema cannot be read.
        :raises LocationNotAllowedError: for a directory elsewhere than in the allowed places.
        :raises UnsupportedStateError: if Spark wrote it and this session does not reach it.
        """
        self._storage.allowed.require(data_uri)
        if manifest.writer is SnapshotWriter.EXECUTORS:
            return self._read_on_executors(spark, data_uri, manifest)
        spark_uri = self._filesystems.spark_uri(spark, data_uri)
        if spark_uri is None:
            raise UnsupportedStateError(
                f"Spark wrote the snapshot {redact(data_uri)}, but the Hadoop of this session has no filesystem for it; "
                "add the package of its connector to spark.jars.packages, as it was then",
                uri=redact(data_uri),
            )
        return read_dataframe(spark, spark_uri, manifest.schema_json)

    def _write_on_executors(self, df: DataFrame, data_uri: str) -> SnapshotManifest:
        refuse_unwritable(df)
        schema = stored_schema(arrow_schema(crossing_schema(df.schema)))
        writer = PartitionWriter(self._files(data_uri), schema, uuid.uuid4().hex)
        task = _named(functools.partial(write_partition, writer), f"write {redact(data_uri)}")
        with explained(data_uri):
            handles = to_crossing(df).mapInArrow(task, HANDLES).collect()
        files = [SnapshotFile(name=h.name, size_bytes=h.size_bytes, footer_sha256=h.footer_sha256) for h in handles]
        return SnapshotManifest(
            schema_json=schema_json_of(df),
            files=tuple(sorted(files, key=lambda file: file.name)),
            rows=sum(handle.rows for handle in handles),
            writer=SnapshotWriter.EXECUTORS,
        )

    def _read_on_executors(self, spark: SparkSession, data_uri: str, manifest: SnapshotManifest) -> DataFrame:
        schema = parse_schema(manifest.schema_json)
        crossing = crossing_schema(schema)
        tasks = plan_tasks(manifest.files)
        reader = SnapshotReader(self._files(data_uri), arrow_schema(crossing), pack_tasks(tasks))
        # The name is what tells one snapshot from another in a plan.
        task = _named(functools.partial(read_snapshot, reader), redact(data_uri))
        count = max(1, len(tasks))
        return from_crossing(spark.range(0, count, 1, count).mapInArrow(task, crossing), schema)

    def _files(self, data_uri: str) -> ExecutorFiles:
        base, options = self._storage.base_uri, dict(self._storage.options)
        # Another place that an older checkpoint names is not given the credentials of this one.
        is_served = serves(open_filesystem(base, options), base, data_uri)
        return ExecutorFiles(data_uri, HiddenOptions(options if is_served else {}))


def _named(function: Any, name: str) -> Any:
    function.__name__ = name
    return function
