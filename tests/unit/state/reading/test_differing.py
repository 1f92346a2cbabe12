"""Which values differ, for values of every type."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, strategies as st

from airflow_provider_statecheck.state.serializers.nested_columns import differing

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
