"""
DataFrames written to checkpoint storage and read back.

Spark's own writer is the faster one and is taken where Spark's Hadoop has the filesystem. Elsewhere Python writes on the
executors, through the same fsspec that the rest of a checkpoint goes through. Who wrote a snapshot reads it too.

What comes back equals what was written up to nullability and the order of rows, and its plan starts at the files.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import EnvironmentNotReadyError, UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.columns import (
    arrow_schema,
    column_name,
    contains_timestamp,
    crossing_schema,
    file_schema,
    file_type,
    from_crossing,
    parse_schema,
    readable_type,
    refuse_unsupported,
    stored_schema,
    to_crossing,
)
from airflow_provider_statecheck.spark.snapshots.executor_io import (
    HANDLES,
    ExecutorFiles,
    HiddenOptions,
    PartitionWriter,
    SnapshotReader,
    pack_tasks,
    plan_tasks,
    read_snapshot,
    write_partition,
)
from airflow_provider_statecheck.spark.snapshots.hadoop_filesystems import HadoopFilesystems
from airflow_provider_statecheck.spark.snapshots.manifest import (
    SnapshotFile,
    SnapshotManifest,
    SnapshotWriter,
    build_manifest,
)
from airflow_provider_statecheck.storage.filesystem import CheckpointStorage
from airflow_provider_statecheck.storage.schemes import EXTRAS, open_filesystem, serves
from airflow_provider_statecheck.storage.uris import redact, scheme_of

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField


_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"

VERIFIED_PAGES = {
    "parquet.page.verify-checksum.enabled": "true",
    # Parquet does not verify what it skips rows by: a changed byte in a dictionary or an index would lose rows in silence.
    "parquet.filter.dictionary.enabled": "false",
    "parquet.filter.columnindex.enabled": "false",
    "parquet.filter.bloom.enabled": "false",
}
"""Options of Spark's reader with which a changed byte in a page is an error and never another value."""

# A session may be set up to leave the checksums of pages out.
_WRITE_OPTIONS = {"parquet.page.write-checksum.enabled": "true"}
# A session may be set up to read past damage or to add up schemas; a restore must do neither.
_READ_OPTIONS = {
    **VERIFIED_PAGES,
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "recursiveFileLookup": "false",
}


def schema_json_of(df: DataFrame) -> str:
    """Return the schema of a DataFrame in the form that a manifest keeps."""
    return df.schema.json()


def refuse_unwritable(df: DataFrame) -> None:
    """
    Refuse a DataFrame that a snapshot could not give back equal.

    :raises UnsupportedStateError: Says why and what to do.
    """
    if df.isStreaming:
        raise UnsupportedStateError(
            "A streaming DataFrame has no end and cannot be saved as a snapshot; read its source with spark.read"
        )
    refuse_unsupported(df.schema)


def write_dataframe(df: DataFrame, data_uri: str) -> None:
    """
    Compute a DataFrame and write it below a directory that does not exist yet.

    :param df: What to write.
    :param data_uri: Where to; Spark and its executors must reach it.
    :raises UnsupportedStateError: The DataFrame is one that Spark cannot write and restore faithfully.
    """
    refuse_unwritable(df)
    _refuse_lossy_settings(df)
    _to_file_columns(df).write.mode("error").options(**_WRITE_OPTIONS).parquet(data_uri)


def read_dataframe(spark: SparkSession, data_uri: str, schema_json: str) -> DataFrame:
    """
    Return the DataFrame that was written, with its original names, types and metadata.

    :param spark: The session to read with.
    :param data_uri: Where it was written.
    :param schema_json: Its schema, as its manifest has it.
    :raises CorruptStateError: The schema cannot be read.
    """
    schema = parse_schema(schema_json)
    files = spark.read.schema(file_schema(schema)).options(**_READ_OPTIONS).parquet(data_uri)
    return files.select([_restored(files[column_name(i)], field) for i, field in enumerate(schema.fields)])


def _refuse_lossy_settings(df: DataFrame) -> None:
    if not contains_timestamp(df.schema):
        return
    if df.sparkSession.conf.get(_TIMESTAMP_TYPE) == "TIMESTAMP_MILLIS":
        raise UnsupportedStateError(
            f"{_TIMESTAMP_TYPE} is TIMESTAMP_MILLIS, with which a snapshot would lose the microseconds of timestamps; "
            "set it to TIMESTAMP_MICROS or INT96",
            setting=_TIMESTAMP_TYPE,
        )


def _to_file_columns(df: DataFrame) -> DataFrame:
    fields = df.schema.fields
    renamed = df.toDF(*(column_name(i) for i in range(len(fields))))
    if not any(_needs_cast(field) for field in fields):
        return renamed
    return renamed.select([_stored(renamed[column_name(i)], i, field) for i, field in enumerate(fields)])


def _needs_cast(field: StructField) -> bool:
    return file_type(field.dataType) != readable_type(field.dataType)


def _stored(column: Column, position: int, field: StructField) -> Column:
    if not _needs_cast(field):
        return column
    return column.cast(file_type(field.dataType)).alias(column_name(position))


def _restored(column: Column, field: StructField) -> Column:
    original = column.cast(readable_type(field.dataType)) if _needs_cast(field) else column
    return original.alias(field.name, metadata=field.metadata)


_PACKAGE = "airflow_provider_statecheck"
# Nothing else: what the user's own functions import is not ours to explain.
_OURS = (_PACKAGE, "fsspec", "pyarrow", "s3fs", "gcsfs", "adlfs", "aiobotocore")
_MISSING = re.compile(rf"No module named '({'|'.join(_OURS)})[.']|\b(pyarrow)\b[^\n]*must be installed", re.IGNORECASE)


@contextmanager
def explained(data_uri: str) -> Iterator[None]:
    """
    Run a job whose tasks use this package.

    :param data_uri: What they write.
    :raises EnvironmentNotReadyError: if they failed for want of a package.
    """
    try:
        yield
    except Exception as error:
        found = _MISSING.search(str(error))
        if found is None:
            raise
        raise _lacking((found.group(1) or found.group(2)).lower(), data_uri) from error


def _lacking(name: str, data_uri: str) -> EnvironmentNotReadyError:
    return EnvironmentNotReadyError(
        f"Expected the package {name} in the Python of Spark's executors, to write to {redact(data_uri)}; found none. "
        f"{_advice(name, data_uri)}",
        package=name,
    )


def _advice(name: str, data_uri: str) -> str:
    if name == _PACKAGE:
        return "Install airflow-provider-statecheck there, or ship it with spark.submit.pyFiles."
    extra = EXTRAS.get(scheme_of(data_uri))
    if extra is None or name in ("fsspec", "pyarrow"):
        return f"Install it there: pip install {name}."
    return f"Install it there: pip install 'airflow-provider-statecheck[{extra}]'."


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
