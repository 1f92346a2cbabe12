"""Types of columns whose values Spark tasks compare as Spark does."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_provider_statecheck.spark.versions import has_binary_collation

if TYPE_CHECKING:
    from pyspark.sql.types import DataType

PLAIN_TYPES = frozenset(
    {
        "boolean",
        "byte",
        "short",
        "integer",
        "long",
        "float",
        "double",
        "decimal",
        "binary",
        "date",
        "timestamp",
        "timestamp_ntz",
    }
)
"""
Types besides text whose equal values have equal bytes, and that Arrow compares as Spark does, but for null and NaN.
"""


def is_plain_text(data_type: DataType) -> bool:
    """
    Return whether values are strings that are equal only if their bytes are.

    Under a collation, others are equal too.
    """
    from pyspark.sql.types import CharType, StringType, VarcharType

    is_text = isinstance(data_type, StringType) and has_binary_collation(data_type)
    return is_text or isinstance(data_type, CharType | VarcharType)


def uncompared_part(data_type: DataType) -> DataType | None:
    """
    Return the first part of a type whose values Spark tasks cannot compare as Spark does.

    ``None`` if there is none.
    """
    from pyspark.sql.types import ArrayType, DayTimeIntervalType, StructType

    if isinstance(data_type, StructType):
        return next(filter(None, (uncompared_part(field.dataType) for field in data_type.fields)), None)
    if isinstance(data_type, ArrayType):
        return uncompared_part(data_type.elementType)
    is_compared = data_type.typeName() in PLAIN_TYPES or isinstance(data_type, DayTimeIntervalType)
    return None if is_compared or is_plain_text(data_type) else data_type
