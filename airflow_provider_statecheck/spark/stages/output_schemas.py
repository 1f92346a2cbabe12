"""The columns that functions give, as they are declared: DDL text, a schema of Spark's or Arrow's, or a dataclass."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def arrow_schema_of(spark: SparkSession, declared: Any, uid: str) -> Any:
    """
    Return what a function gives as an Arrow schema.

    :param declared: What stands behind ``output=``.
    :param uid: Of the function, for people.
    :raises InvalidConfigurationError: for what is no schema.
    """
    import pyarrow as pa
    from pyspark.sql.types import StructType

    if isinstance(declared, pa.Schema):
        return declared
    if isinstance(declared, StructType):
        return arrow_of_spark(declared)
    if isinstance(declared, type) and dataclasses.is_dataclass(declared):
        from airflow_provider_statecheck.state.serializers.resolve import serializer_of

        return pa.schema(list(serializer_of(declared).arrow_type))
    if isinstance(declared, str):
        return arrow_of_spark(_parsed(spark, declared, uid))
    raise InvalidConfigurationError(
        f"Expected output= of {uid!r} to be a DDL text, a schema of Spark or Arrow or a dataclass, found {declared!r}."
    )


def arrow_of_spark(schema: Any) -> Any:
    """Return the Arrow schema in which Spark gives rows of a schema to Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def spark_of_arrow(schema: Any) -> Any:
    """Return the schema of Spark for rows that Python gives as Arrow batches."""
    from pyspark.sql.pandas.types import from_arrow_schema

    return from_arrow_schema(schema)


def _parsed(spark: SparkSession, ddl: str, uid: str) -> Any:
    from pyspark.errors import PySparkException

    try:
        return spark.createDataFrame([], ddl).schema
    except PySparkException as error:
        raise InvalidConfigurationError(
            f"Expected output= of {uid!r} to be columns such as 'account string, balance double', found {ddl!r}: {error}"
        ) from error
