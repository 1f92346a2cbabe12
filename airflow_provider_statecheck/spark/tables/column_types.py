"""
Types of columns that Python and the tables of sinks cannot hold.

Columns of these types are refused by name before any work. Each error has the type as Spark writes it, although sinks
get Arrow types: Arrow has the parts of some types of Spark as a struct.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.lazy import pa
from airflow_provider_statecheck.spark.snapshots.columns import nested_types
from airflow_provider_statecheck.spark.versions import from_arrow_type, is_calendar_interval

if TYPE_CHECKING:
    from pyspark.sql.types import DataType, StructType


def require_exchanged(schema: StructType) -> None:
    """
    Require columns whose values Spark exchanges with Python unchanged.

    :raises UnsupportedStateError: if a column, or a part of it, has another type.
    """
    for column in schema.fields:
        for part in nested_types(column.dataType):
            advice = _advice_for_python(part)
            if advice is not None:
                found = f"{part.simpleString()} in column {column.name!r}"
                raise UnsupportedStateError(
                    f"Expected types of columns that Spark exchanges with Python unchanged, found {found}; {advice}.",
                    column=column.name,
                    type=part.simpleString(),
                )


def _advice_for_python(part: DataType) -> str | None:
    from pyspark.sql.types import StructType, UserDefinedType, YearMonthIntervalType

    if isinstance(part, YearMonthIntervalType):
        return "cast it to a number of months, such as by cast(cast(age AS interval month) AS int)"
    if is_calendar_interval(part):
        return "use a day-time interval, or numbers"
    if isinstance(part, UserDefinedType):
        return "convert it to an array or a struct of plain types"
    if isinstance(part, StructType) and len(set(part.names)) < max(len(part.names), 1):
        return "give its fields different names" if part.names else "add a field to the struct, or drop it"
    return None


def spark_name(kind: Any) -> str:
    """Return an Arrow type as Spark writes it, or as Arrow does if Spark does not have it."""
    from pyspark.errors import PySparkException

    try:
        return from_arrow_type(kind).simpleString()
    except PySparkException:
        return str(kind)


def require_stored(schema: Any, place: str) -> None:
    """
    Require columns that a table has in the types of Spark.

    :param schema: Arrow schema of the output; ``None`` if it is not known yet.
    :param place: The table, for the error message.
    :raises UnsupportedStateError: if a column, or a part of it, has a type that a reader of the table would take for
        another.
    """
    for column in () if schema is None else schema:
        for kind in _parts_of(column.type):
            for name, advice in _unstored(kind):
                raise UnsupportedStateError(
                    f"Expected types of columns that {place} stores, found {name} in column {column.name!r}; {advice}.",
                    column=column.name,
                    type=name,
                )


def _parts_of(kind: Any) -> Iterator[Any]:
    yield kind
    if _tag_of(kind) is None and pa.types.is_nested(kind):
        for position in range(kind.num_fields):
            yield from _parts_of(kind.field(position).type)


_TAGS = ("variant", "geometry", "geography")


def _tag_of(kind: Any) -> str | None:
    """Return the name of a type that Arrow has as a struct, which PySpark marks in the metadata of a field."""
    if not pa.types.is_struct(kind):
        return None
    marks = [kind.field(position).metadata or {} for position in range(kind.num_fields)]
    return next((tag for tag in _TAGS for mark in marks if mark.get(tag.encode()) == b"true"), None)


def with_null_parts(kind: Any) -> Any:
    """
    Return an Arrow type in which the parts of variants and geometries can be null.

    They are never null to PySpark, but Spark sends null in them if the value is null, and Arrow casts no such values.
    """
    types = pa.types
    if types.is_struct(kind):
        is_tagged, fields = _tag_of(kind) is not None, [kind.field(position) for position in range(kind.num_fields)]
        return pa.struct([_with_null_parts(field).with_nullable(is_tagged or field.nullable) for field in fields])
    if types.is_list(kind):
        return pa.list_(_with_null_parts(kind.value_field))
    return pa.map_(_with_null_parts(kind.key_field), _with_null_parts(kind.item_field)) if types.is_map(kind) else kind


def _with_null_parts(field: Any) -> Any:
    return field.with_type(with_null_parts(field.type))


def _unstored(kind: Any) -> Iterator[tuple[str, str]]:
    types = pa.types
    tag = _tag_of(kind)
    if tag is not None:
        yield (
            tag,
            "convert it to text, such as by to_json" if tag == "variant" else "convert it to bytes by st_asbinary",
        )
    elif types.is_struct(kind):
        yield from _unstored_struct([kind.field(position).name.lower() for position in range(kind.num_fields)])
    elif types.is_duration(kind):
        yield "interval day to second", "convert it to a number, such as by took div interval '1' second"
    elif types.is_time(kind):
        yield "time", "convert it to text, such as by cast(... AS string)"
    elif types.is_null(kind):
        yield "void", "cast it to the type that its values will have"


def _unstored_struct(names: list[str]) -> Iterator[tuple[str, str]]:
    if not names:
        yield "struct<>", "add a field to the struct, or drop it"
    elif len(set(names)) < len(names):
        yield (
            f"a struct with the fields {', '.join(names)}",
            "give the fields names that differ in more than their case",
        )
