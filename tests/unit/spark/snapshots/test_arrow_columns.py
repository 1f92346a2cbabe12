from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.ml.linalg import VectorUDT
from pyspark.sql.types import (
    ArrayType,
    DayTimeIntervalType,
    IntegerType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    VarcharType,
    YearMonthIntervalType,
)

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.snapshots.columns import stored_schema, transfer_schema
from airflow_provider_statecheck.spark.tables.schemas import arrow_schema


def crossing(data_type):
    return transfer_schema(StructType([StructField("a.b", data_type, False)])).fields[0]


def test_columns_cross_by_position_and_may_be_null():
    field = crossing(IntegerType())
    assert (field.name, field.dataType, field.nullable) == ("_c0", IntegerType(), True)


@pytest.mark.parametrize(
    ("original", "plain"),
    [
        (YearMonthIntervalType(0, 1), IntegerType()),
        (DayTimeIntervalType(0, 0), DayTimeIntervalType()),
        (StringType("UNICODE_CI"), StringType()),
        (VarcharType(3), StringType()),
    ],
    ids=["months", "days", "collation", "varchar"],
)
def test_what_arrow_would_lose_crosses_as_something_plain_at_every_depth(original, plain):
    assert crossing(original).dataType == plain
    nested = MapType(StringType(), ArrayType(StructType([StructField("x", original, True)]), True), True)
    expected = MapType(StringType(), ArrayType(StructType([StructField("x", plain, True)]), True), True)
    assert crossing(nested).dataType == expected


@pytest.mark.parametrize("original", [VectorUDT(), MapType(NullType(), NullType(), True)], ids=["class", "void-keys"])
def test_a_column_that_spark_does_not_take_back_is_named(original):
    with pytest.raises(UnsupportedStateError, match=r"in column 'a\.b'"):
        crossing(ArrayType(original, True))


def test_times_of_day_are_stored_in_microseconds_at_every_depth():
    time = pa.time64("ns")
    nested = pa.map_(pa.string(), pa.list_(pa.struct([("t", time), ("n", pa.int32())])))
    stored = stored_schema(pa.schema([("a", time), ("b", nested)]))
    assert stored.field("a").type == pa.time64("us")
    assert stored.field("b").type.item_type.value_type.field("t").type == pa.time64("us")
    assert stored.field("b").type.item_type.value_type.field("n").type == pa.int32()


def test_a_variant_keeps_the_mark_by_which_spark_knows_it():
    from pyspark.sql.types import VariantType

    stored = stored_schema(arrow_schema(StructType([StructField("v", ArrayType(VariantType(), True))])))
    assert stored.field("v").type.value_type.field("metadata").metadata == {b"variant": b"true"}
