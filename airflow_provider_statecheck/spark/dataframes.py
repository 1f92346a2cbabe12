"""
Write a DataFrame to checkpoint storage with Spark's own Parquet writer, and read it back.

What comes back equals what was written up to nullability and the order of rows, and its plan starts at the files.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.manifest import (
    SnapshotFile as SnapshotFile,
    SnapshotManifest as SnapshotManifest,
    SnapshotStorage as SnapshotStorage,
    build_manifest as build_manifest,
    verify_files as verify_files,
)
from airflow_provider_statecheck.spark.snapshot_schema import (
    column_name,
    contains_timestamp,
    file_schema,
    file_type,
    parse_schema,
    readable_type,
    refuse_unsupported,
)

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession
    from pyspark.sql.types import StructField

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):/")
_TIMESTAMP_TYPE = "spark.sql.parquet.outputTimestampType"

# A session may be set up to read past damage or to add up schemas; a restore must do neither.
_READ_OPTIONS = {
    "mergeSchema": "false",
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "recursiveFileLookup": "false",
}


def schema_json_of(df: DataFrame) -> str:
    """Return the schema of a DataFrame in the form that a manifest keeps."""
    return df.schema.json()


def write_dataframe(df: DataFrame, data_uri: str) -> None:
    """
    Compute a DataFrame and write it below a directory that does not exist yet.

    :param df: What to write.
    :param data_uri: Where to; Spark and its executors must reach it.
    :raises UnsupportedStateError: The DataFrame or the place is one that Spark cannot write and restore faithfully.
    """
    if df.isStreaming:
        raise UnsupportedStateError(
            "A streaming DataFrame has no end and cannot be saved as a snapshot; read its source with spark.read"
        )
    refuse_unsupported(df.schema)
    _refuse_lossy_settings(df)
    refuse_unreachable(df.sparkSession, data_uri)
    _to_file_columns(df).write.mode("error").parquet(data_uri)


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


def refuse_unreachable(spark: SparkSession, data_uri: str) -> None:
    """
    Refuse a place for which the session's Hadoop has no filesystem.

    Over Spark Connect the server's classes cannot be asked; there a missing one shows when the write starts.

    :raises UnsupportedStateError: Says which scheme and what to do.
    """
    scheme = _scheme_of(data_uri)
    if scheme == "memory" or not _has_filesystem(spark, scheme):
        raise UnsupportedStateError(
            f"Spark has no filesystem for {scheme}:// and cannot write a DataFrame to {data_uri}; {_advice(scheme)}",
            uri=data_uri,
            scheme=scheme,
        )


def _scheme_of(data_uri: str) -> str:
    found = _SCHEME.match(data_uri)
    if found is None:
        # Without a scheme Spark would take its default filesystem, and everything else the local disk.
        raise InvalidConfigurationError(
            f"A checkpoint directory with a scheme was expected, found {data_uri!r}; write file:///... for a local one",
            uri=data_uri,
        )
    return found.group(1).lower()


def _advice(scheme: str) -> str:
    if scheme == "memory":
        return "its bytes would be in this process only; use file:// or a shared storage"
    if scheme == "s3":
        return "use s3a:// for the checkpoint directory, with the package hadoop-aws in spark.jars.packages"
    return "add the package of its Hadoop connector to spark.jars.packages, or use another checkpoint directory"


def _has_filesystem(spark: Any, scheme: str) -> bool:
    from py4j.protocol import Py4JJavaError

    if type(spark).__module__.startswith("pyspark.sql.connect."):
        return True
    conf = spark._jsparkSession.sessionState().newHadoopConf()
    try:
        spark._jvm.org.apache.hadoop.fs.FileSystem.getFileSystemClass(scheme, conf)
    except Py4JJavaError:
        # Either no class is configured for the scheme, or the configured one is not on the class path.
        return False
    return True


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
