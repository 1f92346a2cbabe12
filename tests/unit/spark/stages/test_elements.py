"""Keys and values of the elements of a Spark task."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.stages.executor.elements import KeyedChunk, python_values
from airflow_provider_statecheck.spark.stages.planning import KEY_GROUP_COLUMN
from airflow_provider_statecheck.state.keys.key_serializer import KeyField, KeySerializer

NAN = float("nan")


def chunk(keys: list[Any], groups: list[int], type_: Any) -> KeyedChunk:
    table = pa.table({"key": pa.array(keys, type_), KEY_GROUP_COLUMN: pa.array(groups, pa.int32())})
    return KeyedChunk.of(table, KeySerializer((KeyField("key", type_),)))


def test_each_key_begins_once() -> None:
    found = chunk(["a", "a", "b", "c", "c"], [0, 0, 0, 1, 1], pa.string())
    assert (found.starts, found.keys.columns[0].to_pylist()) == ([0, 2, 3, 5], ["a", "b", "c"])


def test_rows_of_one_key_in_one_table_are_no_two_keys_because_of_nan() -> None:
    assert chunk([-0.0, 0.0, NAN, NAN, NAN], [0, 0, 1, 1, 1], pa.float64()).starts == [0, 2, 5]


def test_single_row_is_one_key() -> None:
    assert chunk([NAN], [0], pa.float64()).starts == [0, 1]


def test_null_is_no_key() -> None:
    with pytest.raises(UnsupportedStateError, match="'key'"):
        chunk([1, None], [0, 0], pa.int64())


UNITS = {"s": 1, "ms": 1_000, "us": 1_000_000}
FIRST, LAST = -62_135_500_000, 253_402_200_000
"""Seconds since 1970, within the years 1 to 9999 in every zone."""
ZONES = [None, "UTC", "Europe/Berlin", "America/St_Johns", "+05:30"]


@given(
    seconds=st.lists(st.none() | st.integers(FIRST, LAST) | st.integers(1_698_530_000, 1_698_550_000)),
    unit=st.sampled_from(sorted(UNITS)),
    zone=st.sampled_from(ZONES),
)
def test_times_are_those_of_arrow_also_where_an_hour_comes_twice(
    seconds: list[int | None], unit: str, zone: str | None
) -> None:
    column = pa.array([None if s is None else s * UNITS[unit] for s in seconds], pa.timestamp(unit, zone))
    found, expected = python_values(column), column.to_pylist()
    assert [repr(value) for value in found] == [repr(value) for value in expected]
    assert [value and value.fold for value in found] == [value and value.fold for value in expected]


@given(days=st.lists(st.none() | st.integers(-700_000, 2_900_000)))
def test_dates_are_those_of_arrow(days: list[int | None]) -> None:
    column = pa.chunked_array([pa.array(days, pa.int32()).cast(pa.date32())])
    assert python_values(column) == column.to_pylist()


@pytest.mark.parametrize(
    "column",
    [
        pa.array([1, None, 3]),
        pa.array([1.5, None, float("inf")]),
        pa.array(["a", None]),
        pa.array([[1], None, []]),
        pa.array([1_000_000_001, None], pa.timestamp("ns")),
        pa.array([], pa.date32()),
    ],
    ids=lambda column: str(column.type),
)
def test_other_values_are_those_of_arrow(column: pa.Array) -> None:
    assert python_values(column) == column.to_pylist()


@pytest.mark.parametrize("zone", [None, "UTC"])
def test_time_that_python_has_none_for_is_refused_as_arrow_does(zone: str | None) -> None:
    column = pa.array([LAST * 2], pa.timestamp("s", zone))
    with pytest.raises((ValueError, OverflowError)):
        column.to_pylist()
    with pytest.raises((ValueError, OverflowError)):
        python_values(column)
