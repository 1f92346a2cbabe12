"""Common types of columns, without Spark: fields by name, parts without a type, and what is read from files."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyspark.sql import types as t

from airflow_provider_statecheck.spark.tables.common_types import TypeRules

INT, LONG, DOUBLE, VOID = t.IntegerType(), t.LongType(), t.DoubleType(), t.NullType()
RULES = TypeRules(cast("Any", SimpleNamespace(version="4.2.0")), is_case_sensitive=False)
OF_SPARK_3_5 = TypeRules(cast("Any", SimpleNamespace(version="3.5.9")), is_case_sensitive=False)


def struct(**kinds: Any) -> t.StructType:
    return t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])


XY = struct(x=INT, y=LONG)
COMMON = [
    (XY, struct(x=INT), XY),
    (struct(x=INT), XY, XY),
    (XY, struct(y=LONG, x=INT), XY),
    (XY, struct(Y=LONG, X=INT), XY),
    (struct(x=INT), struct(y=LONG), XY),
    (t.ArrayType(XY), t.ArrayType(struct(Y=LONG)), t.ArrayType(XY)),
    (t.MapType(INT, struct(x=INT)), t.MapType(INT, XY), t.MapType(INT, XY)),
    (struct(a=struct(x=INT)), struct(A=struct(y=LONG)), struct(a=XY)),
    (t.ArrayType(INT), t.ArrayType(VOID), t.ArrayType(INT)),
    (t.ArrayType(VOID), t.ArrayType(INT), t.ArrayType(INT)),
    (XY, struct(x=VOID), XY),
    (t.MapType(INT, VOID), t.MapType(VOID, LONG), t.MapType(INT, LONG)),
]


@pytest.mark.parametrize(("mine", "theirs", "expected"), COMMON)
def test_fields_have_a_common_type_by_name_and_parts_without_a_type_fit_all(
    mine: Any, theirs: Any, expected: Any
) -> None:
    assert RULES.common(mine, theirs) == expected
    assert RULES.holds(expected, mine)
    assert RULES.holds(expected, theirs)
    assert RULES.holds(mine, theirs) is (mine == expected)


def test_names_in_another_case_are_other_fields_in_a_session_that_is_sensitive_to_it() -> None:
    rules = TypeRules(cast("Any", None), is_case_sensitive=True)
    assert rules.common(struct(x=INT), struct(X=INT)) == struct(x=INT, X=INT)
    assert rules.further_fields(struct(x=INT), struct(X=INT)) == ["X"]
    assert RULES.further_fields(struct(x=INT), struct(X=INT)) == []


def test_further_fields_are_found_in_all_parts_of_columns() -> None:
    known = struct(s=struct(x=INT), a=t.ArrayType(struct(x=INT)), m=t.MapType(struct(x=INT), struct(x=INT)))
    found = struct(new=INT, S=XY, a=t.ArrayType(XY), m=t.MapType(XY, XY))
    assert RULES.further_fields(known, found) == ["new", "S.y", "a.element.y", "m.key.y", "m.value.y"]
    assert RULES.further_fields(found, known) == []


READ = [(INT, LONG), (INT, DOUBLE), (t.FloatType(), DOUBLE), (t.DateType(), t.TimestampNTZType())]
UNREAD = [(LONG, DOUBLE), (t.DateType(), t.TimestampType()), (INT, t.FloatType()), (t.DecimalType(10, 2), DOUBLE)]


@pytest.mark.parametrize(
    ("stored", "kind", "expected"), [*((*each, True) for each in READ), *((*each, False) for each in UNREAD)]
)
def test_fewer_types_are_read_from_files_than_a_union_widens(stored: Any, kind: Any, expected: bool) -> None:
    assert RULES.is_read_as(stored, kind) is expected
    assert RULES.is_read_as(t.ArrayType(struct(x=stored)), t.ArrayType(struct(y=INT, X=kind))) is expected
    assert RULES.is_read_as(t.MapType(INT, stored), t.MapType(INT, kind)) is expected


def test_spark_3_5_reads_integers_and_texts_only_as_others_of_the_same_width() -> None:
    assert [OF_SPARK_3_5.is_read_as(*each) for each in READ] == [False] * len(READ)
    assert OF_SPARK_3_5.is_read_as(t.ByteType(), INT)
    assert OF_SPARK_3_5.is_read_as(INT, INT)


def test_integers_are_read_as_decimals_with_all_their_digits() -> None:
    assert RULES.is_read_as(INT, t.DecimalType(12, 2))
    assert RULES.is_read_as(LONG, t.DecimalType(22, 2))
    assert not RULES.is_read_as(t.ByteType(), t.DecimalType(9, 2))
    assert not RULES.is_read_as(LONG, t.DecimalType(20, 1))
