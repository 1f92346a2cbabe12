"""
Write a DataFrame to checkpoint storage with Spark's own Parquet writer, and read it back.

What comes back equals what was written up to nullability and the order of rows, and its plan starts at the files.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.schema import (
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
