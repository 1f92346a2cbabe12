from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import types as t

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.tables.column_types import require_stored, spark_name
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema, spark_schema


def schema_of(kind: t.DataType) -> t.StructType:
    return t.StructType([t.StructField("id", t.LongType(), False), t.StructField("a.b", kind)])


def within(kind: t.DataType) -> list[t.DataType]:
    """Return a type, and types of which it is a part."""
    struct = t.StructType([t.StructField("x", kind)])
    return [kind, t.ArrayType(kind), t.MapType(t.StringType(), kind), t.ArrayType(struct)]


UNEXCHANGED = (
    t.YearMonthIntervalType(0, 0),
    t.CalendarIntervalType(),
    VectorUDT(),
    t.StructType([t.StructField("a", t.LongType()), t.StructField("a", t.DateType())]),
    t.StructType([]),
)


@pytest.mark.parametrize("part", UNEXCHANGED, ids=repr)
@pytest.mark.parametrize("form", range(4))
def test_a_column_that_python_would_change_is_refused_by_name_and_type(part: t.DataType, form: int) -> None:
    with pytest.raises(UnsupportedStateError, match=rf"found {part.simpleString()} in column 'a\.b'; \w"):
        arrow_schema(schema_of(within(part)[form]))


@pytest.mark.parametrize("text", [t.CharType(3), t.VarcharType(3)], ids=str)
def test_text_of_limited_length_is_text_to_python_with_its_nullability(text: t.DataType) -> None:
    inner = t.StructType([t.StructField("x", text, False), t.StructField("y", text)])
    found = arrow_schema(t.StructType([t.StructField("s", t.ArrayType(inner, False), False)])).field("s")
    fields = [pa.field("x", pa.string(), nullable=False), pa.field("y", pa.string())]
    assert found == pa.field("s", pa.list_(pa.field("element", pa.struct(fields), nullable=False)), nullable=False)


@pytest.mark.parametrize("part", [t.VariantType(), t.GeometryType(0), t.GeographyType(4326)], ids=repr)
@pytest.mark.parametrize("form", range(4))
def test_a_null_variant_or_geometry_is_converted(part: t.DataType, form: int) -> None:
    schema = schema_of(within(part)[form])
    found = arrow_schema(schema)
    parts = pa.struct(
        [field.with_nullable(True).remove_metadata() for field in arrow_schema(schema_of(part)).field("a.b").type]
    )
    value = [None, None]
    nested = [value, [value], [[("k", None)], []], [[{"x": None}], None]][form]
    assert spark_schema(found).fields[1].dataType.simpleString() == within(part)[form].simpleString()
    plain = pa.array(
        nested, [parts, pa.list_(parts), pa.map_(pa.string(), parts), pa.list_(pa.struct([("x", parts)]))][form]
    )
    assert plain.cast(found.field("a.b").type).to_pylist() == plain.to_pylist()


UNSTORED: tuple[tuple[t.DataType, str], ...] = (
    (t.VariantType(), "variant"),
    (t.GeometryType(0), "geometry"),
    (t.GeographyType(4326), "geography"),
    (t.DayTimeIntervalType(0, 0), "interval day to second"),
    (t.TimeType(), "time"),
    (t.NullType(), "void"),
    (
        t.StructType([t.StructField("a", t.LongType()), t.StructField("A", t.LongType())]),
        "a struct with the fields a, a",
    ),
)


@pytest.mark.parametrize(("part", "name"), UNSTORED, ids=[name for _, name in UNSTORED])
@pytest.mark.parametrize("form", range(4))
def test_a_column_that_tables_lack_is_refused_by_name_and_type(part: t.DataType, name: str, form: int) -> None:
    found = arrow_schema(schema_of(within(part)[form]))
    with pytest.raises(UnsupportedStateError, match=f"a table stores, found {name} in column 'a.b'; "):
        require_stored(found, "a table")


@pytest.mark.parametrize(
    "kind",
    [t.DecimalType(38, 18), t.MapType(t.DateType(), t.TimestampNTZType()), t.StructType().add("value", t.BinaryType())],
    ids=str,
)
def test_a_column_of_a_plain_type_is_stored(kind: t.DataType) -> None:
    found = arrow_schema(schema_of(kind))
    require_stored(found, "a table")
    with pytest.raises(UnsupportedStateError, match="in column 'last';"):
        require_stored(found.append(pa.field("last", pa.null())), "a table")


def test_a_struct_without_fields_is_refused_by_name_and_type() -> None:
    with pytest.raises(UnsupportedStateError, match="a table stores, found struct<> in column 'x'; add a field"):
        require_stored(pa.schema([("x", pa.list_(pa.struct([])))]), "a table")


def test_an_unknown_schema_is_decided_later() -> None:
    require_stored(None, "a table")


@pytest.mark.parametrize(
    ("kind", "name"),
    [(pa.list_(pa.int64()), "array<bigint>"), (pa.uint64(), "uint64"), (pa.month_day_nano_interval(), "month")],
)
def test_a_type_is_shown_as_spark_writes_it(kind: Any, name: str) -> None:
    assert spark_name(kind).startswith(name)
