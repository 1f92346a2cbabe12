"""Columns of nested values: conversion to the types of state, comparison, and lists with values behind their nulls."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.state_dataframes import to_spark_types
from airflow_provider_statecheck.state.serializers.nested_columns import conformed, differing
from airflow_provider_statecheck.state.serializers.resolve import serializer_of

MOMENT = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
COLUMNS: list[Any] = [
    pa.array([1, None, 255], pa.uint8()),
    pa.array([1, None, (1 << 64) - 1], pa.uint64()),
    pa.array([0.5, None], pa.float16()),
    pa.array([b"0123456789abcdef", None], pa.binary(16)),
    pa.array([time(1, 2, 3, 4), None], pa.time64("us")),
    pa.array([time(1, 2, 3), None], pa.time32("s")),
    pa.array([timedelta(seconds=5), None], pa.duration("ms")),
    pa.array([MOMENT, None], pa.timestamp("s", "Europe/Berlin")),
    pa.array([Decimal("1.25"), None], pa.decimal256(20, 2)),
    pa.array(["text", None], pa.large_string()),
    pa.array([[time(1)], [], None], pa.list_(pa.time64("us"))),
    pa.array([[("a", 1), ("b", None)], [], None], pa.map_(pa.string(), pa.uint16())),
    pa.array([{"a": 1, "b": [time(2)]}, None], pa.struct([("a", pa.uint8()), ("b", pa.list_(pa.time64("us")))])),
]


@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: str(column.type))
def test_what_spark_was_given_comes_back_in_its_own_type(column: Any) -> None:
    taken = to_spark_types(pa.table({"value": column})).column("value").combine_chunks()
    back = conformed(taken, column.type, "value")
    assert back.type == column.type
    assert back.to_pylist() == column.to_pylist()
    assert conformed(taken.slice(1), column.type, "value").to_pylist() == column.to_pylist()[1:]


def test_fields_of_structs_go_by_their_names() -> None:
    given = pa.array([{"b": 1, "a": "x"}, None], pa.struct([("b", pa.int32()), ("a", pa.string())]))
    wanted = pa.struct([("a", pa.string()), ("b", pa.int64())])
    assert conformed(given, wanted, "value").to_pylist() == [{"a": "x", "b": 1}, None]


def test_other_numbers_fit_where_they_are_exact() -> None:
    given = pa.array([0.25, None, float("nan")])
    assert repr(conformed(given, pa.float32(), "value").to_pylist()) == "[0.25, None, nan]"
    assert conformed(pa.array([0.1, None]), pa.decimal128(10, 2), "value").to_pylist() == [Decimal("0.10"), None]


def test_nulls_alone_and_dictionaries_fit_too() -> None:
    assert conformed(pa.nulls(2), pa.int64(), "value").equals(pa.nulls(2, pa.int64()))
    texts = pa.array(["a", None, "a"])
    assert conformed(texts.dictionary_encode(), pa.string(), "value").equals(texts)


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        (pa.array([1.5]), pa.int64()),
        (pa.array([0.126]), pa.decimal128(10, 2)),
        (pa.array([1e300]), pa.float32()),
        (pa.array([Decimal("12345678901234567.89")]), pa.float64()),
        (pa.array([1 << 40]), pa.int32()),
        (pa.array(["1:2:3"]), pa.time64("us")),
        (pa.array([MOMENT]), pa.int64()),
        (pa.array([MOMENT]), pa.timestamp("us")),
        (pa.array([1]), pa.string()),
        (pa.array(["1"]), pa.int64()),
        (pa.array([["a"]]), pa.list_(pa.int64())),
        (pa.array([[1]]), pa.struct([("a", pa.int64())])),
    ],
)
def test_values_that_do_not_fit_are_refused(given: Any, wanted: Any) -> None:
    with pytest.raises(UnsupportedStateError, match=r"Expected value to be of type"):
        conformed(given, wanted, "value")


NAN = float("nan")
RECORD = pa.struct([("a", pa.int64()), ("b", pa.list_(pa.string()))])


@pytest.mark.parametrize(
    ("kind", "a", "b"),
    [
        (pa.int64(), [1, 1, None, None], [1, 2, 1, None]),
        (pa.float64(), [0.5, NAN, NAN, -0.0], [0.5, NAN, 1.0, 0.0]),
        (pa.float16(), [0.5, NAN], [1.5, NAN]),
        (pa.string(), ["a", "a", ""], ["a", "b", None]),
        (pa.bool_(), [True, True], [True, False]),
        (pa.binary(2), [b"ab", b"ab"], [b"ab", b"ac"]),
        (pa.decimal128(5, 2), [Decimal("1.00"), Decimal("1.00")], [Decimal("1.00"), Decimal("1.01")]),
        (pa.date32(), [date(2026, 1, 1)], [date(2026, 1, 2)]),
        (pa.null(), [None], [None]),
        (
            RECORD,
            [{"a": 1, "b": ["x"]}, {"a": 1, "b": ["x"]}, None],
            [{"a": 1, "b": ["x"]}, {"a": 1, "b": ["y"]}, None],
        ),
        (RECORD, [{"a": None, "b": None}, None], [{"a": None, "b": []}, {"a": None, "b": None}]),
        (pa.list_(pa.int64()), [[1, 2], [1], [], None], [[1, 2], [1, 2], None, None]),
        (pa.list_(pa.float64()), [[NAN, None], [1.0]], [[NAN, None], [None]]),
        (pa.map_(pa.string(), pa.int64()), [[("a", 1)], [("a", 1)]], [[("a", 1)], [("a", 2)]]),
    ],
    ids=str,
)
def test_values_of_every_type_are_compared(kind: Any, a: list[Any], b: list[Any]) -> None:
    x, y = pa.array(a, kind), pa.array(b, kind)
    expected = [not is_equal(p, q) for p, q in zip(a, b, strict=True)]
    assert differing(x, y).to_pylist() == expected
    assert differing(x.slice(1), y.slice(1)).to_pylist() == expected[1:]
    assert differing(x, x).to_pylist() == [False] * len(a)


def is_equal(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and a != a:
        return b != b
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(is_equal, a, b))
    return bool(a == b)


NESTED = st.none() | st.lists(st.none() | st.integers(0, 2), max_size=3)


@given(st.lists(st.tuples(NESTED, NESTED), max_size=20))
def test_lists_differ_as_python_says(pairs: list[tuple[Any, Any]]) -> None:
    kind = pa.list_(pa.int64())
    a, b = pa.array([p for p, _ in pairs], kind), pa.array([q for _, q in pairs], kind)
    assert differing(a, b).to_pylist() == [p != q for p, q in pairs]


@pytest.mark.parametrize("kind", [pa.decimal128(5, -2), pa.decimal256(50, -2)], ids=str)
def test_decimals_with_a_negative_scale_differ_by_their_values(kind: Any) -> None:
    a = pa.array([Decimal(100), Decimal(200), None, Decimal(0)], kind)
    b = pa.array([Decimal(100), Decimal(300), Decimal(0), Decimal(0)], kind)
    assert differing(a, b).to_pylist() == [False, True, True, False]


NULLS = pa.array([False, True, False])
OFFSETS = pa.array([0, 1, 3, 4], pa.int32())
NUMBERS = pa.array([1, 2, 3, 4], pa.int32())
LISTS = pa.ListArray.from_arrays(OFFSETS, NUMBERS, mask=NULLS)
MAPS = pa.MapArray.from_arrays(OFFSETS, NUMBERS, NUMBERS, mask=NULLS)


@pytest.mark.parametrize(
    ("narrow", "wide", "array", "expected"),
    [
        (pa.list_(pa.int32()), list[int], LISTS, [[1], None, [4]]),
        (pa.map_(pa.int32(), pa.int32()), dict[int, int], MAPS, [{1: 1}, None, {4: 4}]),
    ],
    ids=["lists", "maps"],
)
@pytest.mark.parametrize("start", [0, 1, 2])
def test_what_lies_behind_a_null_counts_for_nothing(
    narrow: Any, wide: Any, array: Any, expected: list[Any], start: int
) -> None:
    assert serializer_of(narrow).from_arrow(array[start:]) == expected[start:]
    verdict = serializer_of(pa.list_(pa.int64()) if wide == list[int] else pa.map_(pa.int64(), pa.int64()))
    migrate = verdict.resolve_compatibility(serializer_of(narrow).snapshot()).migrate
    assert migrate is not None
    converted = migrate(array[start:])
    converted.validate(full=True)
    assert serializer_of(wide).from_arrow(converted) == expected[start:]
