"""Key groups of the rows of a DataFrame, computed in the JVM, and the shuffle that brings each to its subtask."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.checkpoint.states.key_groups import require_parallelism
from airflow_provider_statecheck.exceptions import InvalidConfigurationError, UnsupportedStateError
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

KEY_GROUP_COLUMN = "__statecheck_key_group"
"""Of each row, from 0 to below the maximum parallelism; an int."""
SUBTASK_COLUMN = "__statecheck_subtask"
"""The index of the subtask that owns the key group; an int."""


def key_serializer_of(df: DataFrame, key_columns: Sequence[str]) -> KeySerializer:
    """
    Return the serializer of keys that lie in columns of a DataFrame.

    :raises InvalidConfigurationError: for no column, or one that is not there exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    fields = {}
    for name in key_columns:
        found = [field.dataType for field in df.schema.fields if field.name == name]
        if len(found) != 1:
            raise InvalidConfigurationError(
                f"Expected the key column {name} once in the input, found it {len(found)} times in {df.columns}."
            )
        fields[name] = KeyField(name, _arrow_type(name, found[0]))
    if len(fields) < len(key_columns):
        raise InvalidConfigurationError(f"Expected different key columns, found {list(key_columns)}.")
    return KeySerializer(tuple(fields.values()))


def with_key_groups(df: DataFrame, key_columns: Sequence[str], max_parallelism: int, parallelism: int) -> DataFrame:
    """
    Return a DataFrame with the key group and the subtask of each row as last columns.

    Rows without a key have some key group too; the subtask refuses them.

    :raises InvalidConfigurationError: for a parallelism out of bounds, or a key column that is not there exactly once.
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
    Return a DataFrame whose partition i has exactly the rows of the key groups of subtask i, with their key groups.

    :raises InvalidConfigurationError: for a parallelism out of bounds, or a key column that is not there exactly once.
    :raises UnsupportedStateError: for a column whose type cannot be part of a key.
    """
    from pyspark.sql import functions as F

    keyed = with_key_groups(df, key_columns, max_parallelism, parallelism)
    return keyed.repartitionById(parallelism, F.col(SUBTASK_COLUMN)).drop(SUBTASK_COLUMN)


def _key_group(key_columns: Sequence[str], max_parallelism: int) -> Column:
    from pyspark.sql import functions as F

    hashed = F.xxhash64(*(F.col(_quoted(name)) for name in key_columns))
    return F.pmod(hashed, F.lit(max_parallelism)).cast("int")


def _subtask(max_parallelism: int, parallelism: int) -> Column:
    from pyspark.sql import functions as F

    return F.call_function("div", F.col(KEY_GROUP_COLUMN) * parallelism, F.lit(max_parallelism)).cast("int")


def _quoted(name: str) -> str:
    return f"`{name.replace('`', '``')}`"


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
            f"{data_type.simpleString()}; make a column of a simple type from it, such as one of text."
        )
    return found


def _is_plain_text(data_type: Any) -> bool:
    # Under a collation texts of different bytes are equal, and Spark's hash follows it.
    from pyspark.sql.types import CharType, StringType, VarcharType

    is_text = isinstance(data_type, StringType) and data_type.isUTF8BinaryCollation()
    return is_text or isinstance(data_type, CharType | VarcharType)
