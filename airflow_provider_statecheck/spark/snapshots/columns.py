"""
Columns of a snapshot as Spark, Arrow and Parquet have them.

Parquet, as Spark writes it, cannot hold two names that differ in case only, and would take some names and metadata
for instructions. So a file's columns are named by position, and the original schema is kept beside the files. The same
is done inside a struct, but only where its names collide, because there it costs a cast.

Spark gives Arrow more types than it takes back: collations, units of intervals and intervals of months are lost or
refused on the way. Such columns cross as plain ones, and a cast restores them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


_TRUSTED_UDT_PREFIX = "pyspark."


def column_name(position: int) -> str:
    """Return the name of a column in the files."""
    return f"_c{position}"


def file_type(data_type: DataType) -> DataType:
    """Return the type that a column has in the files: all nullable, names by position where they would collide."""
    return _map_type(data_type, _positional_struct)


def readable_type(data_type: DataType) -> DataType:
    """Return the type that a column has after it was restored: the original one, all nullable."""
    return _map_type(data_type, _named_struct)


def file_schema(schema: StructType) -> StructType:
    """Return the schema to read the files with."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [StructField(column_name(i), file_type(field.dataType), True) for i, field in enumerate(schema.fields)]
    )


def parse_schema(schema_json: str) -> StructType:
    """
    Return the schema in a manifest.

    :raises CorruptStateError: It is not a schema, or one that would run code to be read.
    """
    from pyspark.sql.types import StructType

    try:
        document = json.loads(schema_json)
        _refuse_foreign_classes(document)
        return StructType.fromJson(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStateError(
            f"A snapshot's schema was expected, found {schema_json[:80]!r}; restore from an earlier checkpoint"
        ) from error


def refuse_unsupported(schema: StructType) -> None:
    """
    Refuse a schema whose data Parquet would not give back as they were.

    :raises UnsupportedStateError: Says which column and what to do.
    """
    if not schema.fields:
        raise UnsupportedStateError(
            "A DataFrame without columns cannot be saved as a snapshot; add a column, or keep its count instead"
        )
    for field in schema.fields:
        for part in _parts(field.dataType):
            _refuse_type(field.name, part)


def contains_timestamp(schema: StructType) -> bool:
    """Say whether a value with a time and a time zone occurs anywhere."""
    from pyspark.sql.types import TimestampType

    return any(isinstance(part, TimestampType) for field in schema.fields for part in _parts(field.dataType))


def _refuse_type(column: str, part: DataType) -> None:
    from pyspark.sql.types import CalendarIntervalType, StructType, UserDefinedType

    if isinstance(part, CalendarIntervalType):
        advice = "use a day-time or a year-month interval, or its parts as numbers"
    elif isinstance(part, StructType) and not part.fields:
        advice = "give the struct a field or drop it"
    elif isinstance(part, UserDefinedType) and not part.module().startswith(_TRUSTED_UDT_PREFIX):
        advice = "restoring must not load user classes; convert it to a struct of plain types"
    else:
        return
    raise UnsupportedStateError(
        f"Column {column!r} has the type {part.simpleString()}, which a snapshot cannot hold; {advice}",
        column=column,
        type=part.simpleString(),
    )


def _parts(data_type: DataType) -> Iterator[DataType]:
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield data_type
    if isinstance(data_type, ArrayType):
        yield from _parts(data_type.elementType)
    elif isinstance(data_type, MapType):
        yield from _parts(data_type.keyType)
        yield from _parts(data_type.valueType)
    elif isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from _parts(field.dataType)


def _map_type(data_type: DataType, struct: Any) -> DataType:
    from pyspark.sql.types import ArrayType, CharType, MapType, StringType, StructType, VarcharType

    if isinstance(data_type, ArrayType):
        return ArrayType(_map_type(data_type.elementType, struct), True)
    if isinstance(data_type, MapType):
        return MapType(_map_type(data_type.keyType, struct), _map_type(data_type.valueType, struct), True)
    if isinstance(data_type, StructType):
        result: DataType = struct(data_type)
        return result
    if isinstance(data_type, (CharType, VarcharType)) and struct is _positional_struct:
        return StringType()
    return data_type


def _positional_struct(data_type: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    names = [field.name.lower() for field in data_type.fields]
    collide = len(set(names)) < len(names)
    return StructType(
        [
            StructField(column_name(i) if collide else field.name, file_type(field.dataType), True, field.metadata)
            for i, field in enumerate(data_type.fields)
        ]
    )


def _named_struct(data_type: StructType) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(f.name, readable_type(f.dataType), True, f.metadata) for f in data_type.fields])


def _refuse_foreign_classes(document: Any) -> None:
    # pyspark unpickles "serializedClass" and imports "pyClass" while it reads a schema; storage must not choose either.
    if isinstance(document, dict):
        if document.get("type") == "udt" and not _is_trusted_udt(document):
            raise CorruptStateError(
                f"A snapshot's schema names the class {document.get('pyClass')!r}, which a restore does not load; "
                "such a snapshot cannot have been written by this package"
            )
        for value in document.values():
            _refuse_foreign_classes(value)
    elif isinstance(document, list):
        for value in document:
            _refuse_foreign_classes(value)


def _is_trusted_udt(document: dict[str, Any]) -> bool:
    name = document.get("pyClass")
    return "serializedClass" not in document and isinstance(name, str) and name.startswith(_TRUSTED_UDT_PREFIX)


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
