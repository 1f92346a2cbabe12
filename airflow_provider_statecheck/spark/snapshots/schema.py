"""
Between a DataFrame's own columns and those of the Parquet files that hold it.

Parquet, as Spark writes it, cannot hold two names that differ in case only, and would take some names and metadata
for instructions. So a file's columns are named by position, and the original schema is kept beside the files. The same
is done inside a struct, but only where its names collide, because there it costs a cast.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import CorruptStateError, UnsupportedStateError

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType

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
