"""Values for Python's functions are the very ones that Arrow gives."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.spark.stages.executor.elements import python_values

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
