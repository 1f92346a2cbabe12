"""
Conversion of a snapshot's columns between Spark, Arrow and Parquet.

Columns of the files are named by position, and the manifest stores the original schema: Spark's Parquet writer does not
support names that differ only in case, and interprets some names and metadata. Fields of a struct are renamed only if
their names collide, because that needs a cast.

Spark converts more types to Arrow than from Arrow: it loses or rejects collations, units of day-time intervals and
year-month intervals. Such columns are transferred as plain types, and a cast restores them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.versions import is_at_least, is_calendar_interval
from airflow_provider_statecheck.storage.snapshot_manifest import column_name

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType, StructField, StructType


_TRUSTED_UDT_PREFIX = "pyspark."


def file_type(data_type: DataType) -> DataType:
    """Return the type of a column in the files: all parts nullable, colliding field names replaced by positions."""
    return _map_type(data_type, _file_leaf, is_positional=True)


def readable_type(data_type: DataType) -> DataType:
    """Return the type of a restored column: the original type with all parts nullable."""
    return _map_type(data_type, lambda leaf: leaf)


def file_schema(schema: StructType) -> StructType:
    """Return the schema of the files."""
    from pyspark.sql.types import StructField, StructType

    return StructType(
        [StructField(column_name(i), file_type(field.dataType), True) for i, field in enumerate(schema.fields)]
    )


def refuse_unsupported(schema: StructType) -> None:
    """
    Reject a schema whose data cannot be restored unchanged from Parquet.

    :raises UnsupportedStateError: for a schema without columns, or a column of an unsupported type.
    """
    if not schema.fields:
        raise UnsupportedStateError(
            "Expected a DataFrame with columns for a snapshot, found none; add a column, or save its count as state."
        )
    for field in schema.fields:
        for part in nested_types(field.dataType):
            _refuse_type(field.name, part)


def contains_timestamp(schema: StructType) -> bool:
    """Return whether a column, or a part of one, is a timestamp with a time zone."""
    from pyspark.sql.types import TimestampType

    return any(isinstance(part, TimestampType) for field in schema.fields for part in nested_types(field.dataType))


def _refuse_type(column: str, part: DataType) -> None:
    from pyspark.sql.types import StructType, UserDefinedType

    if is_calendar_interval(part):
        advice = "use a day-time or a year-month interval, or numbers"
    elif isinstance(part, StructType) and not part.fields:
        advice = "add a field to the struct or drop it"
    elif isinstance(part, UserDefinedType) and not _is_trusted_udt(part.module()):
        advice = "convert it to a struct of plain types, because a restore must not load user classes"
    else:
        return
    raise UnsupportedStateError(
        f"Expected types that a snapshot supports, found {part.simpleString()} in column {column!r}; {advice}.",
        column=column,
        type=part.simpleString(),
    )


def nested_types(data_type: DataType) -> Iterator[DataType]:
    """Yield a type and the types of all its parts."""
    from pyspark.sql.types import ArrayType, MapType, StructType

    yield data_type
    if isinstance(data_type, ArrayType):
        yield from nested_types(data_type.elementType)
    elif isinstance(data_type, MapType):
        yield from nested_types(data_type.keyType)
        yield from nested_types(data_type.valueType)
    elif isinstance(data_type, StructType):
        for field in data_type.fields:
            yield from nested_types(field.dataType)


Leaf = Callable[[Any], "DataType"]


def _map_type(data_type: DataType, leaf: Leaf, *, is_positional: bool = False, is_optional: bool = True) -> DataType:
    """
    Return a type with other types of its leaves.

    :param is_positional: Whether names of fields that collide are replaced by positions.
    :param is_optional: Whether all parts can be null; as before otherwise.
    """
    from pyspark.sql.types import ArrayType, MapType, StructField, StructType

    def mapped(part: DataType) -> DataType:
        return _map_type(part, leaf, is_positional=is_positional, is_optional=is_optional)

    if isinstance(data_type, ArrayType):
        return ArrayType(mapped(data_type.elementType), is_optional or data_type.containsNull)
    if isinstance(data_type, MapType):
        is_nullable = is_optional or data_type.valueContainsNull
        return MapType(mapped(data_type.keyType), mapped(data_type.valueType), is_nullable)
    if isinstance(data_type, StructType):
        names = [field.name for field in data_type.fields]
        if is_positional and len({name.lower() for name in names}) < len(names):
            names = [column_name(i) for i in range(len(names))]
        fields = [
            StructField(name, mapped(f.dataType), is_optional or f.nullable, f.metadata)
            for name, f in zip(names, data_type.fields, strict=True)
        ]
        return StructType(fields)
    return leaf(data_type)


def with_plain_text(schema: StructType) -> StructType:
    """Return a schema with text of any length instead of ``char`` and ``varchar``, which Arrow does not have."""
    return cast("StructType", _map_type(schema, _file_leaf, is_optional=False))


def _file_leaf(leaf: DataType) -> DataType:
    from pyspark.sql.types import CharType, StringType, VarcharType

    return StringType() if isinstance(leaf, CharType | VarcharType) else leaf


def transfer_schema(schema: StructType) -> StructType:
    """
    Return the schema in which the columns of a DataFrame are transferred between Spark and Python.

    :raises UnsupportedStateError: for a column that Spark does not accept from Python.
    """
    from pyspark.sql.types import StructField, StructType

    fields = enumerate(schema.fields)
    return StructType([StructField(column_name(i), _transfer_type(field), True) for i, field in fields])


def stored_schema(transferred: Any) -> Any:
    """
    Return the Arrow schema of the files.

    :param transferred: Arrow schema in which the columns are transferred.
    """
    return pa.schema([_stored_field(field) for field in transferred])


def to_file_columns(df: DataFrame) -> DataFrame:
    """
    Return a DataFrame with the columns of the files.

    :raises UnsupportedStateError: for a column that this version of Spark cannot store.
    """
    for field in df.schema.fields:
        if _has_void(field.dataType) and not is_at_least(df.sparkSession, "4.2"):
            raise _not_stored(field)
    return _converted(df, lambda field: [file_type(field.dataType)])


def from_file_columns(files: DataFrame, schema: StructType) -> DataFrame:
    """Return the columns of files with their original names, types and metadata."""
    return _original(files, schema, lambda field: [file_type(field.dataType)])


def _has_void(data_type: DataType) -> bool:
    from pyspark.sql.types import NullType

    return any(isinstance(part, NullType) for part in nested_types(data_type))


def _not_stored(field: StructField) -> UnsupportedStateError:
    found = field.dataType.simpleString()
    return UnsupportedStateError(
        f"Expected types that a snapshot supports before Spark 4.2, found {found} in column {field.name!r}; cast void "
        "to another type, or use Spark 4.2 or newer.",
        column=field.name,
        type=found,
    )


def to_transfer_columns(df: DataFrame) -> DataFrame:
    """Return a DataFrame with the columns in the transfer schema."""
    return _converted(df, _transfer_steps)


def from_transfer_columns(frame: DataFrame, schema: StructType) -> DataFrame:
    """Return a DataFrame with the original names, types and metadata."""
    return _original(frame, schema, _transfer_steps)


def _transfer_steps(field: StructField) -> list[DataType]:
    return [file_type(field.dataType), _type_in_months(field), _transfer_type(field)]


def _converted(df: DataFrame, steps: Callable[[StructField], list[DataType]]) -> DataFrame:
    """Rename columns by position, and cast them to one type after the other."""
    chains = [[readable_type(field.dataType), *steps(field)] for field in df.schema.fields]
    renamed = df.toDF(*(column_name(i) for i in range(len(chains))))
    if not any(map(_is_cast, chains)):
        return renamed
    columns = [_cast(renamed[column_name(i)], types).alias(column_name(i)) for i, types in enumerate(chains)]
    return renamed.select(columns)


def _original(frame: DataFrame, schema: StructType, steps: Callable[[StructField], list[DataType]]) -> DataFrame:
    chains = [[*reversed(steps(field)), readable_type(field.dataType)] for field in schema.fields]
    if not any(map(_is_cast, chains)) and not any(field.metadata for field in schema.fields):
        return frame.toDF(*schema.names)
    return frame.select(
        [
            _cast(frame[column_name(i)], types).alias(field.name, metadata=field.metadata)
            for i, (field, types) in enumerate(zip(schema.fields, chains, strict=True))
        ]
    )


def _is_cast(types: list[DataType]) -> bool:
    # Without casts, columns are renamed by one call of the JVM instead of several for each column.
    return any(wanted != known for known, wanted in pairwise(types))


def _cast(column: Column, types: list[DataType]) -> Column:
    # The first type is that of the column; equal ones need no cast.
    for known, wanted in pairwise(types):
        column = column if wanted == known else column.cast(wanted)
    return column


def _transfer_type(field: StructField) -> DataType:
    from pyspark.sql.types import MapType, NullType

    stored = file_type(field.dataType)
    for part in nested_types(stored):
        # Arrow has no map with keys of the null type, because keys must not be null.
        if isinstance(part, MapType) and isinstance(part.keyType, NullType):
            raise _not_transferable(field.name, part)
    return _map_type(stored, _transfer_leaf(field.name))


def _type_in_months(field: StructField) -> DataType:
    return _map_type(file_type(field.dataType), _months_leaf)


def _months_leaf(leaf: DataType) -> DataType:
    from pyspark.sql.types import YearMonthIntervalType

    # Spark casts only intervals of a single unit to numbers.
    return YearMonthIntervalType(1, 1) if isinstance(leaf, YearMonthIntervalType) else leaf


def _transfer_leaf(column: str) -> Leaf:
    def leaf(original: DataType) -> DataType:
        from pyspark.sql.types import (
            DayTimeIntervalType,
            IntegerType,
            StringType,
            UserDefinedType,
            YearMonthIntervalType,
        )

        if isinstance(original, UserDefinedType):
            raise _not_transferable(column, original)
        if isinstance(original, YearMonthIntervalType):
            return IntegerType()
        if isinstance(original, DayTimeIntervalType):
            return DayTimeIntervalType()
        return StringType() if isinstance(original, StringType) else original

    return leaf


def _not_transferable(column: str, original: DataType) -> UnsupportedStateError:
    return UnsupportedStateError(
        "Expected types that Spark accepts from Python, because its Hadoop has no filesystem for the checkpoint "
        f"directory, found {original.simpleString()} in column {column!r}; convert it to an array or a struct, or use "
        "another directory.",
        column=column,
    )


def _stored_field(field: Any) -> Any:
    return field.with_type(_stored_type(field.type))


def _stored_type(transferred: Any) -> Any:
    if pa.types.is_time64(transferred):
        # Spark only reads times of day in microseconds from Parquet, and has no finer ones.
        return pa.time64("us")
    if pa.types.is_list(transferred):
        return pa.list_(_stored_field(transferred.value_field))
    if pa.types.is_map(transferred):
        return pa.map_(_stored_field(transferred.key_field), _stored_field(transferred.item_field))
    if pa.types.is_struct(transferred):
        return pa.struct([_stored_field(field) for field in transferred])
    return transferred


def parse_schema(schema_json: str) -> StructType:
    """
    Return a schema that was stored as JSON.

    :raises CorruptStateError: if it is not a schema, or reading it would run code from the storage.
    """
    from pyspark.sql.types import StructType

    try:
        document = json.loads(schema_json)
        _refuse_foreign_classes(document)
        return StructType.fromJson(document)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptStateError(
            f"Expected the schema of a snapshot, found {str(schema_json)[:80]!r}; restore from an earlier checkpoint."
        ) from error


def _refuse_foreign_classes(document: Any) -> None:
    # pyspark unpickles "serializedClass" and imports "pyClass" of a schema, which must not come from the storage.
    if isinstance(document, dict):
        if document.get("type") == "udt" and not _has_trusted_class(document):
            raise CorruptStateError(
                f"Expected a schema without user classes, found {document.get('pyClass')!r}, which a restore does not "
                "load; this package did not write the snapshot, restore from an earlier checkpoint."
            )
        for value in document.values():
            _refuse_foreign_classes(value)
    elif isinstance(document, list):
        for value in document:
            _refuse_foreign_classes(value)


def _is_trusted_udt(module: str) -> bool:
    """Return whether the class of a user-defined type may be loaded, by its module or its full name."""
    return module.startswith(_TRUSTED_UDT_PREFIX)


def _has_trusted_class(document: dict[str, Any]) -> bool:
    name = document.get("pyClass")
    return "serializedClass" not in document and isinstance(name, str) and _is_trusted_udt(name)
