"""
The columns of a snapshot as they cross between Spark and Python.

Spark gives Arrow more types than it takes back: collations, units of intervals and intervals of months are lost or
refused on the way. Such columns cross as plain ones, and a cast restores them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.schema import column_name, file_type, readable_type

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType

Leaf = Callable[[Any], "DataType"]


def crossing_schema(schema: StructType) -> StructType:
    """
    Return the schema in which the columns of a DataFrame cross.

    :raises UnsupportedStateError: for a column that Spark does not take back from Python.
    """
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(column_name(i), _crossing(field), True) for i, field in enumerate(schema.fields)])


def arrow_schema(schema: StructType) -> Any:
    """Return the Arrow schema in which Spark takes columns of these types from Python."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def stored_schema(crossing: Any) -> Any:
    """
    Return the Arrow schema of files that hold columns which cross in another one.

    :param crossing: The Arrow schema in which they cross.
    """
    import pyarrow as pa

    return pa.schema([_stored_field(field) for field in crossing])


def to_crossing(df: DataFrame) -> DataFrame:
    """Return a DataFrame with the columns that are to be written."""
    fields = df.schema.fields
    renamed = df.toDF(*(column_name(i) for i in range(len(fields))))
    return renamed.select([_sent(renamed[column_name(i)], i, field) for i, field in enumerate(fields)])


def from_crossing(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return a DataFrame with the original names, types and metadata."""
    return frame.select([_restored(frame[column_name(i)], field) for i, field in enumerate(schema.fields)])


def _sent(column: Column, position: int, field: StructField) -> Column:
    for wanted in _changes([file_type(field.dataType), _in_months(field), _crossing(field)], field.dataType):
        column = column.cast(wanted)
    return column.alias(column_name(position))


def _restored(column: Column, field: StructField) -> Column:
    for wanted in _changes(
        [_in_months(field), file_type(field.dataType), readable_type(field.dataType)], _crossing(field)
    ):
        column = column.cast(wanted)
    return column.alias(field.name, metadata=field.metadata)


def _changes(types: list[DataType], current: DataType) -> list[DataType]:
    # A cast to the same type would only lengthen the plan.
    before = [current, *types]
    return [wanted for known, wanted in zip(before, types, strict=False) if wanted != known]


def _crossing(field: StructField) -> DataType:
    return _map_leaves(file_type(field.dataType), _crossing_leaf(field.name))


def _in_months(field: StructField) -> DataType:
    return _map_leaves(file_type(field.dataType), _months_leaf)


def _months_leaf(leaf: DataType) -> DataType:
    from pyspark.sql.types import YearMonthIntervalType

    # Only an interval of one unit is a number to Spark.
    return YearMonthIntervalType(1, 1) if isinstance(leaf, YearMonthIntervalType) else leaf


def _crossing_leaf(column: str) -> Leaf:
    def leaf(original: DataType) -> DataType:
        from pyspark.sql.types import (
            DayTimeIntervalType,
            IntegerType,
            MapType,
            StringType,
            UserDefinedType,
            YearMonthIntervalType,
        )

        if isinstance(original, (UserDefinedType, MapType)):
            raise _not_taken_back(column, original)
        if isinstance(original, YearMonthIntervalType):
            return IntegerType()
        if isinstance(original, DayTimeIntervalType):
            return DayTimeIntervalType()
        return StringType() if isinstance(original, StringType) else original

    return leaf


def _not_taken_back(column: str, original: DataType) -> UnsupportedStateError:
    return UnsupportedStateError(
        f"Column {column!r} has the type {original.simpleString()}, which Spark does not take back from Python, as is "
        "needed where its Hadoop lacks the filesystem of the checkpoint directory; convert it to an array or a struct, or "
        "use another directory",
        column=column,
    )


def _stored_field(field: Any) -> Any:
    return field.with_type(_stored_type(field.type))


def _stored_type(crossing: Any) -> Any:
    import pyarrow as pa

    if pa.types.is_time64(crossing):
        # Spark reads times of day from Parquet in microseconds only, which is all the precision that it has.
        return pa.time64("us")
    if pa.types.is_list(crossing):
        return pa.list_(_stored_field(crossing.value_field))
    if pa.types.is_map(crossing):
        return pa.map_(_stored_field(crossing.key_field), _stored_field(crossing.item_field))
    if pa.types.is_struct(crossing):
        return pa.struct([_stored_field(field) for field in crossing])
    return crossing


def _map_leaves(data_type: DataType, leaf: Leaf) -> DataType:
    from pyspark.sql.types import ArrayType, MapType, NullType, StructField, StructType

    if isinstance(data_type, ArrayType):
        return ArrayType(_map_leaves(data_type.elementType, leaf), data_type.containsNull)
    # Arrow has no map whose keys, which may not be null, are of the type that is nothing but null.
    if isinstance(data_type, MapType) and not isinstance(data_type.keyType, NullType):
        key, value = _map_leaves(data_type.keyType, leaf), _map_leaves(data_type.valueType, leaf)
        return MapType(key, value, data_type.valueContainsNull)
    if isinstance(data_type, StructType):
        return StructType(
            [StructField(f.name, _map_leaves(f.dataType, leaf), f.nullable, f.metadata) for f in data_type.fields]
        )
    return leaf(data_type)
