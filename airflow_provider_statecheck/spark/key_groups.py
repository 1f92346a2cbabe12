"""Key groups of DataFrame rows, computed in the JVM, and the shuffle of rows to their subtasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.handles import require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.spark.tables.schemas import quoted_column
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY_GROUP_COLUMN = "__statecheck_key_group"
"""Column of the key group, an int from 0 to below the maximum parallelism."""
SUBTASK_COLUMN = "__statecheck_subtask"
"""Column of the index of the subtask that owns the key group, an int."""


def key_serializer_of(df: DataFrame, key_columns: Sequence[str]) -> KeySerializer:
    """
    Return the serializer of the key in columns of a DataFrame.

    :raises InvalidConfigurationError: without key columns, or for one that does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    fields = {}
    for name in key_columns:
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if len(found) != 1:
            raise InvalidConfigurationError(
                f"Expected the key column {name} once in the input, found it {len(found)} times in {df.columns}; select or "
                f"rename columns of the input."
            )
        fields[name] = KeyField(name, _arrow_type(name, found[0]))
    if len(fields) < len(key_columns):
        raise InvalidConfigurationError(
            f"Expected different key columns, found {list(key_columns)}; name each column once."
        )
    return KeySerializer(tuple(fields.values()))


def with_key_groups(df: DataFrame, key_columns: Sequence[str], max_parallelism: int, parallelism: int) -> DataFrame:
    """
    Return a DataFrame with the key group and the subtask of each row as its last columns.

    Rows with a null key also get a key group; the subtask rejects them.

    :raises InvalidConfigurationError: for a parallelism out of range, or a key column that does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    require_parallelism(parallelism, max_parallelism)
    key_serializer_of(df, key_columns)
    key_group = _key_group(key_columns, max_parallelism)
    return df.select("*", key_group.alias(KEY_GROUP_COLUMN)).select(
        "*", _subtask(max_parallelism, parallelism).alias(SUBTASK_COLUMN)
    )


def shuffled(df: DataFrame, key_columns: Sequence[str], max_parallelism: int, parallelism: int) -> DataFrame:
    """
    Return a DataFrame with the key group of each row, whose partition i contains the rows of subtask i.

    :raises InvalidConfigurationError: for a parallelism out of range, or a key column that does not occur exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    from pyspark.sql import functions as F

    keyed = with_key_groups(df, key_columns, max_parallelism, parallelism)
    return keyed.repartitionById(parallelism, F.col(SUBTASK_COLUMN)).drop(SUBTASK_COLUMN)


def _key_group(key_columns: Sequence[str], max_parallelism: int) -> Column:
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(quoted_column(name) for name in key_columns))
    return F.pmod(hashed, F.lit(max_parallelism)).cast("int")


def _subtask(max_parallelism: int, parallelism: int) -> Column:
    from pyspark.sql import functions as F

    return F.call_function("div", F.col(KEY_GROUP_COLUMN) * parallelism, F.lit(max_parallelism)).cast("int")


def _arrow_type(name: str, data_type: Any) -> Any:
    import pyarrow as pa
    from pyspark.sql import types as spark

    if isinstance(data_type, spark.DecimalType):
        return pa.decimal128(data_type.precision, data_type.scale)
    if _is_plain_text(data_type):
        return pa.string()
    simple = {
        spark.BooleanType: pa.bool_(),
        spark.ByteType: pa.int8(),
        spark.ShortType: pa.int16(),
        spark.IntegerType: pa.int32(),
        spark.LongType: pa.int64(),
        spark.FloatType: pa.float32(),
        spark.DoubleType: pa.float64(),
        spark.BinaryType: pa.binary(),
        spark.DateType: pa.date32(),
        spark.TimestampType: pa.timestamp("us", "UTC"),
        spark.TimestampNTZType: pa.timestamp("us"),
    }
    found = simple.get(type(data_type))
    if found is None:
        raise UnsupportedStateError(
            f"Expected a key column of a type whose equal values have equal bytes, found {name} of type "
            f"{data_type.simpleString()}; convert it to a simple type, such as a string."
        )
    return found


def _is_plain_text(data_type: Any) -> bool:
    # Under a collation, strings of different bytes are equal and have the same hash in Spark.
    from pyspark.sql.types import CharType, StringType, VarcharType

    is_text = isinstance(data_type, StringType) and data_type.isUTF8BinaryCollation()
    return is_text or isinstance(data_type, CharType | VarcharType)
