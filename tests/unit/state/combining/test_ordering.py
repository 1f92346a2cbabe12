"""Spark's order of values of any type, compared with a few lines of Python."""

from __future__ import annotations

import math
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.combining.ordering import order_numbers, sorted_by

NAN = float("nan")
SCALARS = {
    pa.float64(): st.floats(),
    pa.float32(): st.floats(width=32),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
}
Typed = tuple[Any, Any]
"""An Arrow type and a strategy for its values."""


def lists_of(inner: Typed) -> Typed:
    return pa.list_(inner[0]), st.lists(st.none() | inner[1], max_size=3)


def structs_of(inner: list[Typed]) -> Typed:
    fields = {f"f{i}": each for i, each in enumerate(inner)}
    values = {name: st.none() | each[1] for name, each in fields.items()}
    return pa.struct([(name, each[0]) for name, each in fields.items()]), st.fixed_dictionaries(values)


def types() -> Any:
    nested = lambda inner: inner.map(lists_of) | st.lists(inner, min_size=1, max_size=3).map(structs_of)  # noqa: E731
    return st.recursive(st.sampled_from(list(SCALARS.items())), nested, max_leaves=4)


def key(value: Any, kind: Any) -> Any:
    """Return what Python compares as Spark compares the value."""
    if value is None:
        return (0,)
    if pa.types.is_struct(kind):
        return (1, tuple(key(value[field.name], field.type) for field in kind))
    if pa.types.is_list(kind):
        return (1, tuple(key(each, kind.value_type) for each in value))
    if pa.types.is_floating(kind):
        return (1, math.isnan(value), 0.0 if math.isnan(value) else value)
    return (1, value)


@given(st.data())
def test_numbers_compare_as_values_of_any_type_do_in_spark(data: Any) -> None:
    kind, values = data.draw(types())
    array = pa.array(data.draw(st.lists(st.none() | values, max_size=8)), kind)
    array = array.slice(data.draw(st.integers(0, 2)))
    numbers = [number or 0 for number in order_numbers(array).to_pylist()]
    keys = [key(value, kind) for value in array.to_pylist()]
    for number, own in zip(numbers, keys, strict=True):
        assert [number < each for each in numbers] == [own < each for each in keys]
        assert [number == each for each in numbers] == [own == each for each in keys]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([None, 1, 2], pa.int64()),
        ([None, -math.inf, 0.0, NAN], pa.float64()),
        ([1.0, NAN], pa.float64()),
        ([None, "", "a", "b"], pa.string()),
        ([None, {"a": None}, {"a": 1}], pa.struct([("a", pa.int64())])),
        ([None, [], [None], [1], [1, None]], pa.list_(pa.int64())),
        ([None, None], pa.null()),
    ],
    ids=lambda value: str(value),
)
def test_rows_are_ordered_with_null_first_and_nan_last(values: list[Any], kind: Any) -> None:
    table = pa.table({"group": [1] * len(values) + [0] * len(values), "v": pa.array(values[::-1] * 2, kind)})
    assert repr(sorted_by(table, ("group", "v")).column("v").to_pylist()) == repr(
        pa.array(values * 2, kind).to_pylist()
    )
