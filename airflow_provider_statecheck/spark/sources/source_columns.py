"""Columns of a source, and how Parquet types map to Spark's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import InvalidConfigurationError
from airflow_provider_statecheck.spark.snapshots.columns import arrow_schema

if TYPE_CHECKING:
    from pyspark.sql import Column
    from pyspark.sql.types import DataType, StructType


def struct_of(schema: Any) -> StructType:
    """
    Return a schema that a user gave as a type or as DDL; a session must be there.

    :raises InvalidConfigurationError: if it is none.
    """
    from pyspark.errors import PySparkException
    from pyspark.sql.types import StructType

    try:
        found = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except (PySparkException, TypeError, ValueError) as error:
        raise _no_schema(schema) from error
    if not isinstance(found, StructType) or not found.fields:
        raise _no_schema(schema)
    return found


def require_schema(schema: Any, kind: str) -> None:
    """
    Refuse a source whose files do not say what is in them, and whose user does not either.

    :param kind: What the files are, for the message.
    :raises InvalidConfigurationError: if there is no schema.
    """
    if schema is None or schema == "":
        raise InvalidConfigurationError(
            f"Expected a schema for {kind} files, because what Spark infers would differ between increments; found none. "
            "Give a StructType, or DDL such as 'id bigint, name string'."
        )


def chosen(schema: StructType, columns: Sequence[str] | None) -> StructType:
    """
    Return the part of a schema that is to be read.

    :raises InvalidConfigurationError: if there is no such column.
    """
    from pyspark.sql.types import StructType

    if columns is None:
        return schema
    missing = [name for name in columns if name not in schema.names]
    if missing:
        raise InvalidConfigurationError(f"Expected columns of the source, found {missing}; it has {schema.names}.")
    return StructType([schema[name] for name in columns])


def named(name: str) -> Column:
    """Return a column by its name, whatever characters it has."""
    from pyspark.sql import functions

    return functions.col(f"`{name.replace('`', '``')}`")


def _no_schema(schema: Any) -> InvalidConfigurationError:
    return InvalidConfigurationError(
        f"Expected schema to be a StructType or DDL such as 'id bigint, name string'; found {schema!r}."
    )


_OLD_CALENDARS = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def crosses(data_type: DataType) -> bool:
    """Tell whether Spark takes a type from Python as it is."""
    from pyspark.sql import types

    if isinstance(data_type, types.StructType):
        return all(crosses(field.dataType) for field in data_type.fields)
    if isinstance(data_type, types.ArrayType):
        return crosses(data_type.elementType)
    if isinstance(data_type, types.MapType):
        return crosses(data_type.keyType) and crosses(data_type.valueType)
    # Not an instance of: texts with a collation and of a limited length are kinds of text.
    return data_type == types.StringType() or isinstance(data_type, _plain_types())


def is_read_alike(metadata: Any, schema: StructType) -> bool:
    """
    Tell whether PyArrow reads a file as Spark would.

    :param metadata: The file's, of PyArrow.
    :param schema: The columns that are to be read from it.
    """
    if not all(crosses(field.dataType) for field in schema.fields) or _is_of_an_old_calendar(metadata):
        return False
    found, wanted = metadata.schema.to_arrow_schema(), arrow_schema(schema)
    if _differ_by_capitals(found.names) or _differ_by_capitals(wanted.names) or _has_nanoseconds(metadata.schema):
        return False
    pairs = ((column_of(found.names, field.name), field.type) for field in wanted)
    return all(name is None or _is_alike(found.field(name).type, kind) for name, kind in pairs)


def column_of(names: Any, wanted: str) -> str | None:
    """Return the name that a column has in a file, where capital letters do not count."""
    return next((name for name in names if name.lower() == wanted.lower()), None)


def _differ_by_capitals(names: list[str]) -> bool:
    return len({name.lower() for name in names}) < len(names)


def _has_nanoseconds(schema: Any) -> bool:
    # Those of INT96 have no logical type; Spark refuses all others.
    return any("timeUnit=nanoseconds" in str(schema.column(i).logical_type) for i in range(len(schema)))


def _plain_types() -> tuple[type[DataType], ...]:
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


def _is_of_an_old_calendar(metadata: Any) -> bool:
    told = metadata.metadata or {}
    version = told.get(b"org.apache.spark.version", b"3")
    # Spark shifts old days in such files; PyArrow does not.
    return version[:1] in (b"1", b"2") or any(key in told for key in _OLD_CALENDARS)


def _is_alike(found: Any, wanted: Any) -> bool:
    import pyarrow as pa

    kinds = pa.types
    if kinds.is_list(found) and kinds.is_list(wanted):
        return _is_alike(found.value_type, wanted.value_type)
    if kinds.is_map(found) and kinds.is_map(wanted):
        return _is_alike(found.key_type, wanted.key_type) and _is_alike(found.item_type, wanted.item_type)
    if kinds.is_struct(found) and kinds.is_struct(wanted):
        return _are_fields_alike(list(found), list(wanted))
    if kinds.is_integer(found) and kinds.is_integer(wanted):
        return bool(found.bit_width + kinds.is_unsigned_integer(found) <= wanted.bit_width)
    if kinds.is_timestamp(found) and kinds.is_timestamp(wanted):
        # Nanoseconds are those of INT96, which counts from midnight in UTC.
        return (found.tz is None and found.unit != "ns") == (wanted.tz is None)
    return bool(found.equals(wanted) or (kinds.is_large_string(found) and kinds.is_string(wanted)))


def _are_fields_alike(found: list[Any], wanted: list[Any]) -> bool:
    if [field.name for field in found] != [field.name for field in wanted]:
        return False
    return all(_is_alike(field.type, other.type) for field, other in zip(found, wanted, strict=True))
