"""Columns of a user in the types of state."""

from __future__ import annotations

from datetime import UTC, datetime, time, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from airflow_provider_statecheck.exceptions import UnsupportedStateError
from airflow_provider_statecheck.spark.state_dataframes import to_spark_types
from airflow_provider_statecheck.state.serializers.nested_columns import conformed

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
