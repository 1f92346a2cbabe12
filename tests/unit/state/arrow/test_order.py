"""The order of rows is Arrow's own, however it is computed."""

from __future__ import annotations

import math
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.arrow.layout import order_codes, order_columns, row_tuples

_TYPES = {
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.int64(): st.integers(-(2**63), 2**63 - 1),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.string(): st.text(max_size=3),
    pa.binary(): st.binary(max_size=3),
    pa.bool_(): st.booleans(),
    pa.float64(): st.floats(width=64),
    pa.date32(): st.dates(),
    pa.timestamp("us"): st.datetimes(),
    pa.decimal128(10, 2): st.integers(-(10**9), 10**9).map(lambda i: Decimal(i).scaleb(-2)),
}


@st.composite
def _tables(draw: st.DrawFn) -> pa.Table:
    kinds = draw(st.lists(st.sampled_from(list(_TYPES)), min_size=1, max_size=3))
    rows = draw(st.integers(1, 20))
    columns = [pa.array(draw(st.lists(_TYPES[k], min_size=rows, max_size=rows)), k) for k in kinds]
    return pa.table(columns, names=[str(i) for i in range(len(kinds))])


def _plain(value: Any) -> Any:
    # NaN is equal to NaN here, and -0.0 to 0.0.
    return (
        "nan" if isinstance(value, float) and math.isnan(value) else value + 0.0 if isinstance(value, float) else value
    )


@given(_tables())
def test_rows_order_as_arrow_sorts_them(table: pa.Table) -> None:
    columns = [part for c in table.columns for part in order_columns(c.combine_chunks())]
    codes = order_codes(columns)
    wanted = pc.sort_indices(table, sort_keys=[(name, "ascending") for name in table.column_names]).to_numpy()
    found = np.argsort(codes, kind="stable")
    rows = [tuple(_plain(v) for v in row.values()) for row in table.to_pylist()]
    assert [rows[i] for i in found] == [rows[i] for i in wanted]
    tuples = row_tuples(columns)
    assert sorted(tuples) == [tuples[i] for i in found]


@given(_tables())
def test_rows_have_one_number_only_if_they_are_equal(table: pa.Table) -> None:
    columns = [part for c in table.columns for part in order_columns(c.combine_chunks())]
    codes = order_codes(columns).tolist()
    rows = [tuple(_plain(v) for v in row.values()) for row in table.to_pylist()]
    assert [[a == b for a in codes] for b in codes] == [[a == b for a in rows] for b in rows]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([2, 1, None, -1], pa.int64()),
        (["b", None, "", "a"], pa.string()),
        ([None, float("nan"), -math.inf, 0.5], pa.float64()),
        ([date(2026, 1, 2), None, date(1969, 1, 1), date(2026, 1, 1)], pa.date32()),
        ([timedelta(days=1), None, timedelta(days=-1), timedelta()], pa.duration("us")),
    ],
)
def test_null_is_behind_everything(values: list[Any], kind: pa.DataType) -> None:
    array = pa.array(values, kind)
    found = np.argsort(order_codes(order_columns(array, nullable=True)), kind="stable")
    assert found.tolist() == pc.sort_indices(array).to_pylist()


def test_structs_order_by_their_fields() -> None:
    array = pa.array([{"a": 1, "b": "x"}, None, {"a": 0, "b": "z"}, {"a": 1, "b": None}, {"a": 1, "b": "a"}])
    codes = order_codes(order_columns(array, nullable=True))
    assert np.argsort(codes, kind="stable").tolist() == [2, 4, 0, 3, 1]


@pytest.mark.parametrize(
    "pair",
    [
        pa.array([-0.0, 0.0]),
        pa.array([{"a": -0.0}, {"a": 0.0}]),
        pa.array([[1.0, -0.0], [1.0, 0.0]]),
        pa.array([[{"a": [-0.0]}], [{"a": [0.0]}]]),
        pa.array([[("k", -0.0)], [("k", 0.0)]], pa.map_(pa.string(), pa.float64())),
    ],
    ids=["number", "record", "list", "record in a list", "map"],
)
def test_values_that_are_equal_in_python_have_one_position(pair: pa.Array) -> None:
    one, other = row_tuples(order_columns(pair))
    assert one == other
