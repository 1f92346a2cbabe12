"""Partial results of declared aggregates: NaN, nested values, and sums that are too large."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Context, Decimal, localcontext
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.state.combining.partial_results import (
    combined_by_group,
    merged_values,
    within_type,
)

NAN = float("nan")
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PAIR = pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.float64())])
EARLY, LATE = {"at": NOON, "n": NAN}, {"at": NOON + timedelta(1), "n": 1.0}


@pytest.mark.parametrize(
    ("function", "kind", "low", "high", "expected"),
    [
        ("max", pa.timestamp("us", "UTC"), NOON, NOON + timedelta(hours=1), NOON + timedelta(hours=1)),
        ("min", pa.timestamp("us", "UTC"), NOON, NOON + timedelta(hours=1), NOON),
        ("max", pa.bool_(), False, True, True),
        ("max", pa.float64(), 1.0, NAN, NAN),
        ("min", pa.float64(), 1.0, NAN, 1.0),
        ("max", pa.duration("us"), timedelta(1), timedelta(2), timedelta(2)),
        ("sum", pa.duration("us"), timedelta(1), timedelta(2), timedelta(3)),
        ("sum", pa.decimal128(38, 2), Decimal("1.25"), Decimal("2.25"), Decimal("3.50")),
        ("sum", pa.int64(), -(2**62), 2**62, 0),
        ("max", PAIR, EARLY, LATE, LATE),
        ("min", PAIR, EARLY, LATE, EARLY),
        ("max", PAIR, LATE | {"at": NOON}, EARLY, EARLY),
        ("min", PAIR, {"at": None, "n": None}, EARLY, {"at": None, "n": None}),
        ("max", pa.list_(pa.int64()), [1], [1, None], [1, None]),
        ("min", pa.list_(pa.int64()), [], [None], []),
        ("max", pa.list_(PAIR), [LATE, None], [LATE, EARLY], [LATE, EARLY]),
    ],
)
def test_aggregates_of_rows_and_of_increments_are_those_of_spark(
    function: str, kind: Any, low: Any, high: Any, expected: Any
) -> None:
    single = [pa.array([value], kind) for value in (low, high)]
    rows = pa.table({"group": [1, 0, 1, 1], "v": pa.array([low, None, high, None], kind)})
    (groups,), values = combined_by_group(rows, ["group"], {"v": function})
    found = [values["v"].cast(kind)[1], *(merged_values(function, *pair)[0] for pair in (single, single[::-1]))]
    assert groups.to_pylist() == [0, 1]
    assert values["v"][0].as_py() is None
    assert [str(each.as_py()) for each in found] == [str(pa.scalar(expected, kind).as_py())] * 3


@pytest.mark.parametrize("function", ["max", "min"])
@pytest.mark.parametrize("kind", [pa.int64(), pa.string(), pa.float64(), PAIR, pa.list_(pa.int64())], ids=str)
def test_value_replaces_null_and_null_replaces_no_value(function: str, kind: Any) -> None:
    value = {pa.string(): "a", PAIR: LATE, pa.list_(pa.int64()): [1]}.get(kind, 1)
    old, new = pa.array([None, value, None], kind), pa.array([value, None, None], kind)
    assert merged_values(function, old, new).to_pylist() == pa.array([value, value, None], kind).to_pylist()


@pytest.mark.parametrize("kind", [pa.decimal128(38, 0), pa.decimal128(37, 10)])
def test_sum_of_decimals_that_is_too_large_is_exact_and_null_in_its_type(kind: Any) -> None:
    largest = Decimal("9" * kind.precision).scaleb(-kind.scale, Context(prec=kind.precision))
    rows = pa.table({"group": [0] * 20, "v": pa.array([largest] * 20, kind)})
    with localcontext() as exact:
        exact.prec = 40
        _, values = combined_by_group(rows, ["group"], {"v": "sum"})
        assert values["v"].to_pylist() == [largest * 20]
        merged = merged_values("sum", pa.array([largest.copy_negate()], kind), values["v"])
        assert merged.to_pylist() == [largest * 19]
    found = [within_type(sums, kind) for sums in (merged, pa.array([largest.copy_negate()]), pa.array([None], kind))]
    assert [(value.to_pylist(), flag.to_pylist()) for value, flag in found] == [
        ([None], [True]),
        ([largest.copy_negate()], [False]),
        ([None], [False]),
    ]
