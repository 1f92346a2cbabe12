"""
Schemas and columns of a source, and the compatibility of Parquet types with Spark types.

PyArrow reads single row groups of a file. :func:`reads_like_spark` decides whether its rows equal those of Spark's
reader.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType

_LEGACY_CALENDAR_KEYS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def to_struct_type(schema: Any) -> StructType:
    """
    Convert a ``StructType`` or DDL to a ``StructType``; requires an active session.

    :raises InvalidConfigurationError: if the schema is invalid or has no columns.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise _invalid_schema(schema) from error
    if not isinstance(found, StructType) or not found.fields:
        raise _invalid_schema(schema)
    return found


def require_schema(schema: Any, kind: str) -> None:
    """
    Require a schema for files in a format without types.

    :param kind: Format of the files, for the error message.
    :raises InvalidConfigurationError: if there is no schema.
    """
    if schema is None or schema == "":
        raise InvalidConfigurationError(
            f"Expected a schema for {kind} files, because an inferred schema could differ between increments; found none. "
            "Give a StructType, or DDL such as 'id bigint, name string'."
        )


def select_fields(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """
    Return the schema of selected columns; all columns for ``None``.

    :raises InvalidConfigurationError: if a column does not exist.
    """
    from pyspark.sql.types import StructType

    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfigurationError(f"Expected columns of the source, found {missing}; it has {schema.names}.")
    return StructType([schema[name] for name in columns])


def quoted_column(name: str) -> Column:
    """Return a column by its literal name, which may contain dots and backticks."""
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`")


def _invalid_schema(schema: Any) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected schema to be a StructType or DDL such as 'id bigint, name string'; found {schema!r}."
    )


def is_arrow_compatible(data_type: DataType) -> bool:
    """Return whether Spark reads values of a type from Arrow batches unchanged."""
    from pyspark.sql import types

    if isinstance(data_type, types.StructType):
        return all(is_arrow_compatible(field.dataType) for field in data_type.fields)
    if isinstance(data_type, types.ArrayType):
        return is_arrow_compatible(data_type.elementType)
    if isinstance(data_type, types.MapType):
        return is_arrow_compatible(data_type.keyType) and is_arrow_compatible(data_type.valueType)
    # Equality excludes the subclasses for collations and for limited lengths.
    return data_type == types.StringType() or isinstance(data_type, _atomic_types())


def reads_like_spark(metadata: Any, schema: StructType) -> bool:
    """
    Return whether PyArrow reads the same rows from a file as Spark.

    :param metadata: ``pyarrow.parquet.FileMetaData`` of the file.
    :param schema: The columns to read.
    """
    if not all(is_arrow_compatible(field.dataType) for field in schema.fields) or _has_legacy_calendar(metadata):
        return False
    found, wanted = metadata.schema.to_arrow_schema(), arrow_schema(schema)
    if _has_ambiguous_names(found.names) or _has_ambiguous_names(wanted.names) or _has_nanoseconds(metadata.schema):
        return False
    pairs = ((find_column(found.names, field.name), field.type) for field in wanted)
    return all(name is None or _is_compatible(found.field(name).type, kind) for name, kind in pairs)


def find_column(names: Any, wanted: str) -> str | None:
    """Find the name of a column in a file, ignoring case as Spark does."""
    return next((name for name in names if name.lower() == wanted.lower()), None)


def _has_ambiguous_names(names: list[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _has_nanoseconds(schema: Any) -> bool:
    # INT96 timestamps have no logical type; Spark rejects all other nanosecond timestamps.
    return any("timeUnit=nanoseconds" in str(schema.column(i).logical_type) for i in range(len(schema)))


def _atomic_types() -> tuple[type[DataType], ...]:
    from pyspark.sql import types

    return (
        types.BooleanType,
        types.ByteType,
        types.ShortType,
        types.IntegerType,
        types.LongType,
        types.FloatType,
        types.DoubleType,
        types.DecimalType,
        types.BinaryType,
        types.DateType,
        types.TimestampType,
        types.TimestampNTZType,
    )


def _has_legacy_calendar(metadata: Any) -> bool:
    properties = metadata.metadata or {}
    version = properties.get(b"org.apache.spark.version", b"3")
    # Spark rebases old dates of such files to the Gregorian calendar; PyArrow does not.
    return version[:1] in (b"1", b"2") or any(key in properties for key in _LEGACY_CALENDAR_KEYS)


def _is_compatible(found: Any, wanted: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_list(found) and kinds.is_list(wanted):
        return _is_compatible(found.value_type, wanted.value_type)
    if kinds.is_map(found) and kinds.is_map(wanted):
        return _is_compatible(found.key_type, wanted.key_type) and _is_compatible(found.item_type, wanted.item_type)
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        return _are_compatible_fields(list(found), list(wanted))
    if kinds.is_integer(found) and kinds.is_integer(wanted):
        return bool(found.bit_width + kinds.is_unsigned_integer(found) <= wanted.bit_width)
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        # PyArrow returns INT96 timestamps, which are in UTC, as nanoseconds without a zone.
        return (found.tz is None and found.unit != "ns") == (wanted.tz is None)
    return bool(found.equals(wanted) or (kinds.is_large_string(found) and kinds.is_string(wanted)))


def _are_compatible_fields(found: list[Any], wanted: list[Any]) -> bool:
    if [field.name for field in found] != [field.name for field in wanted]:
        return False
    return all(_is_compatible(field.type, other.type) for field, other in zip(found, wanted, strict=True))
